from .bundle_equivalence import check_bundle
from .check import check_equivalence
from .equivalence_result import Equivalence, OutputProof

__all__ = ["Equivalence", "OutputProof", "check_bundle", "check_equivalence"]
