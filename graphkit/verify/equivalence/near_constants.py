"""Constants that are equal but for how what computed them was rounded, as one.

What a model holds as it stands is exact: another number is another constant. What a proof computes of constants, a
rewrite may have computed in another order, with another rounding at each step. So each constant has a doubt: how far
rounding may have moved its elements, in halves of the spacing of floats at 1. A number is relative to the size of each
element, and counts the steps that made it; an array is of each element, as sums lose more than their size tells.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.terms import Term

__all__ = ["EXACT", "Doubt", "Near", "is_kept", "of_product", "of_sum"]

Doubt: TypeAlias = "float | np.ndarray"
EXACT = 0.0  # what stands in a model
RUN = 4.0  # what onnxruntime computes of constants
MARGIN = 4  # how many times a rewrite may round where a proof counts one step; once in float16
IN_HALVES = 4.0  # the largest doubt of a number of float16, 0.2 %: more would add up to percents
FIRST = 16  # elements that are compared before all are


def of_product(left: np.ndarray, right: np.ndarray, doubts: tuple[Doubt, Doubt]) -> Doubt:
    """Return the doubt of a product, given those of its factors."""
    if isinstance(doubts[0], float) and isinstance(doubts[1], float):
        return doubts[0] + doubts[1] + 1
    sizes = np.abs(left), np.abs(right)
    return np.asarray(
        sizes[0] * _of_each(doubts[1], right) + sizes[1] * _of_each(doubts[0], left) + sizes[0] * sizes[1]
    )


def of_sum(left: np.ndarray, right: np.ndarray, doubts: tuple[Doubt, Doubt]) -> Doubt:
    """Return the doubt of a sum, given those of its addends."""
    return np.asarray(_of_each(doubts[0], left) + np.abs(left) + _of_each(doubts[1], right) + np.abs(right))


def _of_each(doubt: Doubt, array: np.ndarray) -> np.ndarray:
    return np.asarray(doubt * np.abs(array.astype(np.float64)) if isinstance(doubt, float) else doubt)


def _is_exact(doubt: Doubt) -> bool:
    return isinstance(doubt, float) and doubt == EXACT


def _smaller(one: Doubt, other: Doubt, array: np.ndarray) -> Doubt:
    if isinstance(one, float) and isinstance(other, float):
        return min(one, other)
    return np.asarray(np.minimum(_of_each(one, array), _of_each(other, array)))


class Near:
    """Finds the constant of the original that one of the rewritten model stands for but for rounding.

    Constants of one model are never taken for each other. A computed one is never the term of a constant that a model
    holds, though it has the same bytes: another model may hold other bytes at either place.

    Attributes:
        doubt: By term, of what stands at several places the smallest; of a constant that another one stands for, that
            of the original.
        is_original: Whether the original is read.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.doubt: dict[Term, Doubt] = {}
        self.listed: dict[tuple[str, int, tuple[int, ...]], list[Term]] = defaultdict(list)  # of the original
        self.norms: dict[Term, tuple[float, float]] = {}
        self.sizes: dict[str, dict[Term, float]] = {}  # of terms: see `term_sizes`
        self.is_original = True

    def of_array(self, array: np.ndarray, dtype: int, kind: str, doubt: Doubt = EXACT) -> Term:
        """Return the constant of an array of float64, rounded to a dtype, among those of a kind."""
        with np.errstate(over="ignore"):
            rounded = np.asarray(array).astype(FLOATS[dtype], order="C")
        term = self.constants.of_array(rounded, dtype, is_apart=not _is_exact(doubt))
        return self._nearest(term, kind, doubt)

    def of_term(self, term: Term, kind: str) -> Term:
        """Return the constant that another one stands for, itself where there is none."""
        return self._nearest(term, kind, self.doubt_of(term))

    def doubt_of(self, term: Term | None) -> Doubt:
        """Return how far rounding may have moved the elements of a constant; none is exact."""
        if term is None:
            return EXACT
        return self.doubt.get(term, RUN if self.constants.is_computed(term) else EXACT)

    def norms_of(self, weight: Term, array: np.ndarray) -> tuple[float, float]:
        """Return the least norm but 0 of a matrix's columns, or of the weights of channels, and the largest one."""
        if weight not in self.norms:
            over = 0 if array.ndim == 2 else tuple(range(1, array.ndim))
            squares = np.square(array, dtype=np.float64).sum(axis=over)
            ends = squares[squares > 0].min(initial=np.inf), squares.max(initial=0.0)
            self.norms[weight] = float(np.sqrt(ends[0])), float(np.sqrt(ends[1]))
        return self.norms[weight]

    def _nearest(self, term: Term, kind: str, doubt: Doubt) -> Term:
        array = self.constants.array(term) if term.dtype in FLOATS else None
        if array is None:
            return term
        others = self.listed[kind, term.dtype, array.shape]
        if self.is_original:
            if term not in others:
                others.append(term)
        elif term in others:
            return term
        else:
            for other in others:
                known = self.constants.array(other)
                if known is not None and _is_near(array, known, doubt, self.doubt[other]):
                    return other
        self.doubt[term] = _smaller(doubt, self.doubt.get(term, doubt), array)
        return term


def is_kept(array: np.ndarray, dtype: int) -> bool:
    """Whether numbers of float64 keep their digits in a dtype: none overflows, and none but 0 is below normal ones."""
    kind = np.finfo(FLOATS[dtype])
    sizes = np.abs(array)
    return bool((np.isfinite(array) & (sizes <= kind.max) & ((sizes >= kind.tiny) | (sizes == 0))).all())


def _is_near(left: np.ndarray, right: np.ndarray, doubt: Doubt, other_doubt: Doubt) -> bool:
    """Whether elements are no further apart than rounding may have moved them; the first ones are compared before."""
    is_half = left.dtype == np.float16
    unit = (1 if is_half else MARGIN) * float(np.finfo(left.dtype).eps) / 2
    most = IN_HALVES if is_half else np.inf
    first = (slice(0, 1),) * max(0, left.ndim - 1) + (slice(0, FIRST),) * bool(left.ndim)
    for part in (first, ...):
        one, other = left[part].astype(np.float64), right[part].astype(np.float64)
        with np.errstate(all="ignore"):
            doubts = [_of_each(each if isinstance(each, float) else each[part], one) for each in (doubt, other_doubt)]
            allowed = unit * sum(np.minimum(each, most * np.abs(one)) for each in doubts)
            if not ((one == other) | ((np.abs(one - other) <= allowed) & np.isfinite(allowed))).all():
                return False
    return True
