"""How small constants have made the numbers of a term, whatever operators are in between.

Numbers of about 1 that are scaled by 2^-20 are lost beside a constant of 100 that is added to them: what was added does
not go away again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphkit.graph.operator_traits import names
from graphkit.verify.equivalence.application import Tools
from graphkit.verify.equivalence.terms import Term

__all__ = ["size"]

Least = Callable[[np.ndarray], "np.floating | float"]
# What gives numbers of about 1, however small those are that it reads.
OF_ONE = names("Cos Exp HardSigmoid LayerNormalization Log Normalised Reciprocal Sigmoid Softmax Softplus") | {
    "Softmax of rows"
}
SUMS, PRODUCTS = names("Add Mean Sub Sum"), names("Conv ConvTranspose MatMul Mul")
TINIEST = float(np.finfo(np.float32).tiny)
TINY_WEIGHT = 2.0**-10  # the norm of a column below which a product scales down


def size(tools: Tools, term: Term | None, of: Least = np.min) -> float:
    """Return how small numbers of about 1 have become by constants, at most 1.

    Args:
        tools: The table of terms and what is beside it.
        term: The term; none has numbers of about 1.
        of: Which of the factors of several channels counts.
    """
    if term is None:
        return 1.0
    known = tools.near.sizes.setdefault("least" if of is np.min else "most", {})
    waiting = [term]
    while waiting:
        last = waiting[-1]
        inner = [arg for arg in last.args if arg is not None and arg not in known]
        if inner and last not in known:
            waiting += inner
            continue
        waiting.pop()
        if last not in known:
            known[last] = min(1.0, _size(tools, last, [1.0 if arg is None else known[arg] for arg in last.args], of))
    return known[term]


def _size(tools: Tools, term: Term, sizes: Sequence[float], of: Least) -> float:
    """Return the size of a term, given those of its arguments."""
    op, constant = term.op, term.args[1] if len(term.args) > 1 else None
    array = None if constant is None else tools.constants.array(constant)
    if op in ("Scaled", "Scaled apart") and array is not None:
        return sizes[0] * min(1.0, float(of(np.abs(array))))
    if op in ("Shifted", "Shifted apart") and array is not None:
        return max(sizes[0], float(np.abs(array).min()))
    if op == "Linear" and array is not None and constant is not None:
        norm = tools.near.norm(constant, array)
        return sizes[0] * (1.0 if TINY_WEIGHT <= norm <= 1 else norm)
    if op in OF_ONE or not sizes:
        return 1.0
    if op in SUMS:
        return max(sizes)
    if op in PRODUCTS:
        return float(np.prod(sizes))
    if op == "Div":
        return sizes[0] / max(sizes[1], TINIEST)
    if op == "Sqrt":
        return float(np.sqrt(sizes[0]))
    if op == "Pow":
        return sizes[0] if array is None or array.size != 1 else sizes[0] ** max(0.0, float(array.ravel()[0]))
    return min(sizes)
