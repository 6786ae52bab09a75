"""Constants that are equal up to the rounding of their elements, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.terms import Term

__all__ = ["Near", "is_kept"]

# How many times the spacing of floats two elements may differ, relative to the larger one: sums lose some. Of float16,
# each is a thousandth.
ULPS: Mapping[int, int] = {TensorProto.FLOAT: 64, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 2}
FIRST = 16  # elements that are compared before all are


class Near:
    """Finds the constant, among those that were asked for, whose elements are those of another one but for rounding.

    Two constants that both models hold as they stand are never taken for one: rounding makes none of them another.

    Attributes:
        error: How far the elements of what a constant stands for may be from its own, as `ULPS` counts. What is
            computed of it may be as far, so that many small steps do not add up to a large one.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.error: dict[Term, float] = defaultdict(float)
        self.listed: dict[tuple[int, tuple[int, ...]], list[Term]] = defaultdict(list)

    def of_array(self, array: np.ndarray, dtype: int, error: float = 0.0) -> Term:
        """Return the constant of an array of float64, rounded to a dtype; `error` is of what it was computed of."""
        with np.errstate(over="ignore"):
            term = self.constants.of_array(np.asarray(array).astype(FLOATS[dtype], order="C"), dtype)
        return self._nearest(term, error)

    def of_term(self, term: Term) -> Term:
        """Return the first constant that is nearly equal, the constant itself where there is none."""
        return self._nearest(term, self.error[term])

    def _nearest(self, term: Term, inherited: float) -> Term:
        array = self.constants.array(term) if term.dtype in FLOATS else None
        if array is None:
            return term
        others = self.listed[term.dtype, array.shape]
        allowed = ULPS[term.dtype] - inherited
        for other in others if term not in others else ():
            if self._is_read(term) and self._is_read(other):
                continue
            known = self.constants.array(other)
            if known is None or not _is_near(array.ravel()[:FIRST], known.ravel()[:FIRST], allowed):
                continue
            if _is_near(array, known, allowed):
                self.error[other] = max(self.error[other], inherited + _distance(array, known))
                return other
        if term not in others:
            others.append(term)
        self.error[term] = max(self.error[term], inherited)
        return term

    def _is_read(self, term: Term) -> bool:
        """Whether a constant stands in a model."""
        return term in self.constants.sources


def is_kept(array: np.ndarray, dtype: int) -> bool:
    """Whether numbers of float64 keep their digits in a dtype: none overflows, and none but 0 is below normal ones."""
    kind = np.finfo(FLOATS[dtype])
    sizes = np.abs(array)
    return bool((np.isfinite(array) & (sizes <= kind.max) & ((sizes >= kind.tiny) | (sizes == 0))).all())


def _is_near(left: np.ndarray, right: np.ndarray, ulps: float) -> bool:
    largest = np.maximum(np.abs(left), np.abs(right))
    with np.errstate(all="ignore"):
        return bool(((left == right) | (np.abs(left - right) <= ulps * np.finfo(left.dtype).eps * largest)).all())


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference of two elements, as `ULPS` counts."""
    largest, eps = np.maximum(np.abs(left), np.abs(right)).astype(np.float64), np.finfo(left.dtype).eps
    with np.errstate(all="ignore"):
        apart = np.abs(left.astype(np.float64) - right) / (eps * largest)
    return float(np.where((left == right) | np.isnan(apart), 0, apart).max(initial=0.0))
