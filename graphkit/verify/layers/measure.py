"""How far a tensor is from the one that it matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Distance", "allowed", "distance", "plain"]

FLOOR = -1e8  # at most so much stands for minus infinity in a mask: -1e9, the least float32, -inf
CHUNK = 1 << 20  # elements


@dataclass(frozen=True)
class Distance:
    """How far two arrays are apart.

    Attributes:
        absolute: The largest absolute difference; None where they cannot be compared, or both have no elements.
        relative: That over the largest magnitude of the first.
        cosine: Of the angle between them; None where one of them is all zeros.
        problem: Why they cannot be compared, "" where they can.
        agrees: Whether they are equal within the tolerance.
    """

    absolute: float | None
    relative: float | None
    cosine: float | None
    problem: str
    agrees: bool


def plain(array: np.ndarray) -> np.ndarray:
    """Return an array in float64, with 0 where numbers stand for minus infinity."""
    wide = array.astype(np.float64)
    wide[wide <= FLOOR] = 0.0
    return wide


def allowed(one: np.ndarray, tolerance: float) -> float:
    """Return the largest difference from an array that counts as none; 0 for integers."""
    if one.dtype.kind != "f":
        return 0.0
    wide = np.abs(plain(one))
    return tolerance * max(1.0, float(wide[np.isfinite(wide)].max(initial=0.0)))


def distance(one: np.ndarray, two: np.ndarray, tolerance: float) -> Distance:
    """Return how far an array is from the one that it should be.

    They agree where no element differs by more than the tolerance, times the largest magnitude of the first where that
    is above 1. Integers and booleans must be equal. Numbers of at most -1e8 stand for minus infinity.
    """
    if one.shape != two.shape:
        return _unlike(f"dims {list(two.shape)}, expected {list(one.shape)}")
    if one.dtype.kind in "OUS" or two.dtype.kind in "OUS":
        return Distance(None, None, None, "", True) if np.array_equal(one, two) else _unlike("strings differ")
    if (one.dtype.kind == "f") != (two.dtype.kind == "f"):
        return _unlike(f"{two.dtype}, expected {one.dtype}")
    if not one.size:
        return Distance(None, None, None, "", True)
    return _numbers(one.ravel(), two.ravel(), tolerance)


def _unlike(problem: str) -> Distance:
    return Distance(None, None, None, problem, False)


def _numbers(one: np.ndarray, two: np.ndarray, tolerance: float) -> Distance:
    largest = magnitude = product = squares = squares_of_two = 0.0
    for start in range(0, one.size, CHUNK):
        x, y = one[start : start + CHUNK].astype(np.float64), two[start : start + CHUNK].astype(np.float64)
        known = ~(((x <= FLOOR) & (y <= FLOOR)) | (x == y) | (np.isnan(x) & np.isnan(y)))
        if not np.all(np.isfinite(x[known]) & np.isfinite(y[known])):
            return _unlike("NaNs or infinities differ")
        largest = max(largest, float(np.abs(x[known] - y[known]).max(initial=0.0)))
        finite = np.isfinite(x) & np.isfinite(y) & ~((x <= FLOOR) & (y <= FLOOR))
        x, y = x[finite], y[finite]
        magnitude = max(magnitude, float(np.abs(x[x > FLOOR]).max(initial=0.0)))
        product, squares = product + float(x @ y), squares + float(x @ x)
        squares_of_two += float(y @ y)
    norm = float(np.sqrt(squares) * np.sqrt(squares_of_two))
    cosine = min(product / norm, 1.0) if norm else None
    most = tolerance * max(1.0, magnitude) if one.dtype.kind == "f" else 0.0
    return Distance(largest, largest / magnitude if magnitude else largest, cosine, "", largest <= most)
