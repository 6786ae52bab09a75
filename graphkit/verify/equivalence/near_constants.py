"""Constants that are equal up to the rounding of their elements, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.terms import Term

__all__ = ["Near"]

# How many times the spacing of floats two elements may differ, relative to the larger one: sums lose some. Of float16,
# each is a thousandth.
ULPS: Mapping[int, int] = {TensorProto.FLOAT: 64, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 2}
FIRST = 16  # elements that are compared before all are


class Near:
    """Finds the constant, among those that were asked for, whose elements are those of another one but for rounding."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.found: dict[Term, Term] = {}
        self.listed: dict[tuple[int, tuple[int, ...]], list[Term]] = defaultdict(list)

    def of_array(self, array: np.ndarray, dtype: int) -> Term:
        """Return the constant of an array of float64, rounded to a dtype."""
        with np.errstate(over="ignore"):
            return self.of_term(self.constants.of_array(np.asarray(array).astype(FLOATS[dtype], order="C"), dtype))

    def of_term(self, term: Term) -> Term:
        """Return the first constant that is nearly equal, the constant itself where there is none."""
        if term not in self.found:
            self.found[term] = self._nearest(term)
        return self.found[term]

    def _nearest(self, term: Term) -> Term:
        array = self.constants.array(term) if term.dtype in FLOATS else None
        if array is None:
            return term
        others = self.listed[term.dtype, array.shape]
        for other in others:
            known = self.constants.array(other)
            if known is None:
                continue
            ulps = ULPS[term.dtype]
            if _is_near(array.ravel()[:FIRST], known.ravel()[:FIRST], ulps) and _is_near(array, known, ulps):
                return other
        others.append(term)
        return term


def _is_near(left: np.ndarray, right: np.ndarray, ulps: int) -> bool:
    largest = np.maximum(np.abs(left), np.abs(right))
    with np.errstate(all="ignore"):
        return bool(((left == right) | (np.abs(left - right) <= ulps * np.finfo(left.dtype).eps * largest)).all())
