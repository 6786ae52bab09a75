"""Show that two models are equal at every legal size and for every input, by normal forms over one table of terms.

Terms are rewritten bottom-up, once each, rather than by equality saturation. egglog 13.2 was tried on eight folds of
test models, with 16 rules for Reshapes, Transposes, Expands, Slices and operands in order, over the same inferred
dims: it proved 5 of 31 outputs in 2.0 s of processor time, where these axioms prove 31 in 0.6 s; a fold of 3,211
nodes (DETR) had not ended after 90 s. The trial had no rules that compute with symbolic dims, such as leading axes
made flat and a Slice of a Concat; these prove the rest here, and have one direction each, so that orientation is
enough. It took 60 lines; this package has 5,000, its checks of interfaces, failures and bundles included.
"""

from graphkit.verify.equivalence.bundle_equivalence import check_bundle
from graphkit.verify.equivalence.check import check_equivalence
from graphkit.verify.equivalence.equivalence_result import Equivalence, OutputProof

__all__ = ["Equivalence", "OutputProof", "check_bundle", "check_equivalence"]
