"""The measurement of a pair of tensors: their difference, the angle between them, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.verify.comparator import BLOCK, Difference, compare, magnitude
from graphkit.verify.layers.pairs import Pair

__all__ = ["Measured", "allowed", "measure", "plain"]

FLOOR = -1e8  # at most so much stands for minus infinity in a mask: -1e9, the least float32, -inf


@dataclass(frozen=True, eq=False)
class Measured:
    """A pair of tensors, and how far the second is from the first.

    Attributes:
        pair: The tensors.
        difference: The difference of their elements; None where they have none that are numbers, and agree.
        cosine: Of the angle between them; None where one of them is all zeros, or they cannot be compared.
        agrees: Whether no element differs by more than the tolerance, times the largest magnitude of the first where
            that is above 1. Integers and booleans must be equal.
    """

    pair: Pair
    difference: Difference | None
    cosine: float | None
    agrees: bool


def measure(pair: Pair, one: np.ndarray, two: np.ndarray, tolerance: float) -> Measured:
    """Measure how far the array of B is from that of A."""
    difference = compare(one, two, any_width=True, floor=FLOOR)
    if difference.problem:
        return Measured(pair, difference, None, agrees=False)
    if one.dtype.kind in "OUS" or not one.size:
        return Measured(pair, None, None, agrees=True)
    most = tolerance * max(1.0, difference.magnitude) if one.dtype.kind == "f" else 0.0
    return Measured(pair, difference, _cosine(one.ravel(), two.ravel()), difference.absolute <= most)


def _cosine(one: np.ndarray, two: np.ndarray) -> float | None:
    product = squares = squares_of_two = 0.0
    for start in range(0, one.size, BLOCK):
        x, y = (array[start : start + BLOCK].astype(np.float64) for array in (one, two))
        known = np.isfinite(x) & np.isfinite(y) & ~((x <= FLOOR) & (y <= FLOOR))
        x, y = x[known], y[known]
        product, squares = product + float(x @ y), squares + float(x @ x)
        squares_of_two += float(y @ y)
    norm = float(np.sqrt(squares) * np.sqrt(squares_of_two))
    return min(product / norm, 1.0) if norm else None


def plain(array: np.ndarray) -> np.ndarray:
    """Return an array in float64, with 0 where numbers stand for minus infinity."""
    wide = array.astype(np.float64)
    wide[wide <= FLOOR] = 0.0
    return wide


def allowed(one: np.ndarray, tolerance: float) -> float:
    """Return the largest difference from an array that counts as none; 0 for integers."""
    return tolerance * max(1.0, magnitude(one, FLOOR)) if one.dtype.kind == "f" else 0.0
