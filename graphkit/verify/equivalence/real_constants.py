"""Constants of real arithmetic: what was computed is one constant where it agrees with its exact value to 1e-6.

A constant that a model holds is exact: another number is another constant. A proof computes in float64, beside which a
rewrite has what it computed in the dtype of the model. These are one constant where each element of a product is within
1e-6 of itself, and each element of a sum, whose addends may cancel out, within 1e-6 of the largest one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.equivalence_result import ComparedConstants
from graphkit.verify.equivalence.terms import Term

__all__ = ["NEAR", "RealArray", "RealConstants"]

NEAR = 1e-6  # of its magnitude, how far a computed constant may be from its exact value
FIRST = 16  # elements that are compared before all are
Origin = Literal["held", "product", "sum"]
ORIGINS: tuple[Origin, ...] = ("held", "product", "sum")


@dataclass(frozen=True, eq=False)
class RealArray:
    """The elements of a constant in float64.

    Attributes:
        origin: Whether a model holds them, or which kind of arithmetic computed them.
    """

    elements: np.ndarray
    origin: Origin = "held"

    def times(self, other: RealArray | np.ndarray | float) -> RealArray:
        """Return the product, element by element."""
        return self._combine_ranges(other, "product", np.multiply)

    def plus(self, other: RealArray | np.ndarray | float) -> RealArray:
        """Return the sum, element by element."""
        return self._combine_ranges(other, "sum", np.add)

    def _combine_ranges(self, other: RealArray | np.ndarray | float, least: Origin, function: np.ufunc) -> RealArray:
        right = other if isinstance(other, RealArray) else RealArray(np.asarray(other))
        origin = max(self.origin, right.origin, least, key=ORIGINS.index)
        with np.errstate(over="ignore", invalid="ignore"):
            return RealArray(np.asarray(function(self.elements, right.elements)), origin)

    def inverse(self) -> RealArray:
        """Return 1 over each element, none of which is 0."""
        return RealArray(np.ones(()), "product")._combine_ranges(self, "product", np.divide)

    def summed(self, axes: int | tuple[int, ...]) -> RealArray:
        """Return the sums along axes."""
        return RealArray(np.asarray(self.elements.sum(axis=axes)), "sum")

    def moved(self, elements: np.ndarray) -> RealArray:
        """Return some of its elements, or all with other dims."""
        return RealArray(elements, self.origin)

    @property
    def is_finite(self) -> bool:
        """Whether all elements are numbers."""
        return bool(np.isfinite(self.elements).all())


class RealConstants:
    """Finds the constant of the original that one of the rewritten model stands for.

    Constants of one model are never taken for each other, nor are two that models hold.

    Attributes:
        is_original: Whether the original is read.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.is_original = True
        self.origins: dict[Term, Origin] = {}
        self.listed: dict[tuple[str, int, tuple[int, ...]], list[Term]] = defaultdict(list)  # of the original
        self.compared: dict[tuple[Term, Term], float] = {}  # how far a constant is from that which it stands for

    def of_array(self, array: RealArray, dtype: int, use: str) -> Term:
        """Return the term of an array among the constants that are used alike."""
        if array.origin == "held":
            return self._find_counterpart(self.constants.of_array(array.elements.astype(FLOATS[dtype]), dtype), use)
        content = np.asarray(array.elements, np.float64, order="C")
        identity = b"computed " + hashlib.blake2b(content.tobytes(), digest_size=32).digest()
        term = self.constants.terms.make("Constant", (dtype, content.shape, identity), (), dtype, content.shape)
        self.constants.terms.arrays[term] = content
        self.origins[term] = max(array.origin, self.origins.get(term, "held"), key=ORIGINS.index)
        return self._find_counterpart(term, use)

    def of_term(self, term: Term, use: str) -> Term:
        """Return the constant that another one stands for, itself where there is none."""
        return self._find_counterpart(term, use)

    def array(self, term: Term | None) -> RealArray | None:
        """Return the elements of a constant of finite floats, None for any other term."""
        elements = None if term is None or not term.is_constant else self.constants.array(term)
        if term is None or elements is None or term.dtype not in FLOATS or elements.dtype.kind != "f":
            return None
        found = RealArray(elements.astype(np.float64), self._origin(term))
        return found if found.is_finite else None

    def compared_constants(self) -> ComparedConstants:
        """Return how many constants stand for others, one of which was computed."""
        return ComparedConstants(len(self.compared), max(self.compared.values(), default=0.0))

    def _origin(self, term: Term) -> Origin:
        return self.origins.get(term) or ("sum" if self.constants.is_computed(term) else "held")

    def _find_counterpart(self, term: Term, use: str) -> Term:
        array = self.constants.array(term) if term.dtype in FLOATS else None
        if array is None:
            return term
        others = self.listed[use, term.dtype, array.shape]
        if self.is_original:
            if term not in others:
                others.append(term)
            return term
        for other in () if term in others else others:
            origin = max(self._origin(term), self._origin(other), key=ORIGINS.index)
            known = self.constants.array(other)
            distance = None if known is None or origin == "held" else _distance_to_exact(known, array, origin)
            if distance is not None:
                self.compared[other, term] = distance
                return other
        return term


def _distance_to_exact(exact: np.ndarray, array: np.ndarray, origin: Origin) -> float | None:
    """Return how far elements are from their exact values, relative to these; None if further than is near."""
    if not np.isfinite(exact).all():
        return None
    whole = np.abs(exact).max(initial=0.0) if origin == "sum" else None
    found = 0.0
    for part in ((slice(0, 1),) * max(0, exact.ndim - 1) + (slice(0, FIRST),) * bool(exact.ndim), ...):
        left, right = exact[part].astype(np.float64), array[part].astype(np.float64)
        sizes = np.abs(left) if whole is None else np.full(left.shape, whole)
        differences = np.abs(left - right)
        if not (differences <= NEAR * sizes).all():
            return None
        found = float((differences[sizes > 0] / sizes[sizes > 0]).max(initial=0.0))
    return found
