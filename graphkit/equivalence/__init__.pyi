from .bundles import check_bundle
from .check import check_equivalence
from .result import Equivalence, OutputProof

__all__ = ["Equivalence", "OutputProof", "check_bundle", "check_equivalence"]
