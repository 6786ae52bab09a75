"""Compare what two models gave, output by output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Difference", "compare_outputs"]


@dataclass(frozen=True)
class Difference:
    """How far an output is from the expected one.

    Attributes:
        output: Its name.
        absolute: The largest absolute difference; infinite where shapes, or NaNs and infinities, differ.
        relative: The largest difference relative to the larger magnitude of the two.
        problem: What differs besides numbers, "" if nothing.
    """

    output: str
    absolute: float
    relative: float
    problem: str = ""

    def within(self, tolerance: float) -> bool:
        """Whether the absolute or the relative difference is at most the tolerance, and nothing else differs."""
        return not self.problem and min(self.absolute, self.relative) <= tolerance


def compare_outputs(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> list[Difference]:
    """Compare the outputs of `actual` with those of the same name in `expected`."""
    return [_compare(name, expected.get(name), value) for name, value in actual.items()]


def _compare(name: str, expected: np.ndarray | None, actual: np.ndarray) -> Difference:
    if expected is None:
        return Difference(name, np.inf, np.inf, "the original has no such output")
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        was, now = (f"{a.dtype} {list(a.shape)}" for a in (expected, actual))
        return Difference(name, np.inf, np.inf, f"{now}, expected {was}")
    if expected.tobytes() == actual.tobytes() or not expected.size:
        return Difference(name, 0.0, 0.0)
    if expected.dtype.kind not in "fiub":
        return Difference(name, np.inf, np.inf, "values differ")
    one, two = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(two)
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    if not np.all(finite | same):
        return Difference(name, np.inf, np.inf, "NaNs or infinities differ")
    distance = np.abs(one - two, where=finite & ~same, out=np.zeros_like(one))
    scale = np.maximum(np.abs(one), np.abs(two))
    relative = np.divide(distance, scale, where=(scale > 0) & finite, out=np.zeros_like(one))
    return Difference(name, float(distance.max()), float(relative.max()))
