"""Show that two models are equal at every legal size and for every input, by normal forms over one table of terms."""

from graphkit.verify.equivalence.bundle_equivalence import check_bundle
from graphkit.verify.equivalence.check import check_equivalence
from graphkit.verify.equivalence.equivalence_result import Equivalence, OutputProof

__all__ = ["Equivalence", "OutputProof", "check_bundle", "check_equivalence"]
