"""How far the logits of a bundle may be from those of its originals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.model import Model
from graphkit.verify.levels import FLOAT16_TOLERANCE, has_float16, level_tolerance, rounds_activations

__all__ = ["TOLERANCE", "Allowed", "distance"]

TOLERANCE = 1e-5  # where the sums of a product may be added up in another order
BLOCK = 1 << 22  # elements that are compared at a time: the logits of a long prompt fill gigabytes
LEVELS = 2  # times as far as onnxruntime's two levels are apart on the originals, where that is more


@dataclass(frozen=True)
class Allowed:
    """Largest differences that count as equal, over how far logits vary where that is more than 1.

    Attributes:
        plain: Where onnxruntime fuses nothing.
        near: The same where the sums of a product may be added up in another order.
        fused: Where onnxruntime fuses operators.
        apart: How far its two levels are apart on the originals, which is why `near` may be larger than was asked for.
        is_raised: Whether it is.
    """

    plain: float
    near: float
    fused: float
    apart: float
    is_raised: bool

    @classmethod
    def of(cls, models: Sequence[Model], apart: float, tolerance: float, *, exact: bool) -> Allowed:
        """Return what is allowed.

        What onnxruntime makes of the digits of one and the same model grows with its depth and its magnitudes. Twice as
        much is allowed, and no more than twice the tolerance between its levels, whatever it makes of them.

        Args:
            models: The originals.
            apart: How far onnxruntime's two levels are apart on them.
            tolerance: The largest difference that was asked for.
            exact: Whether plain logits must be equal to the last bit.
        """
        fused = max(tolerance, *map(level_tolerance, models))
        if any(map(has_float16, models)):
            exact, tolerance = False, max(tolerance, FLOAT16_TOLERANCE)
        if any(map(rounds_activations, models)):
            tolerance = max(tolerance, fused)
        apart = min(apart, fused)
        raised = float(f"{1.05 * LEVELS * apart:.1e}")  # rounded up, so that it can be said in two digits
        near = max(tolerance, raised)
        return cls(0.0 if exact else near, near, max(fused, near), apart, raised > tolerance)


def distance(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest difference, over how far an output varies where that is more than 1; infinity for a NaN.

    Equal arrays, NaN in the same places included, have the distance 0.
    """
    if expected.shape != actual.shape:
        return float("inf")
    flat, other = expected.reshape(-1), actual.reshape(-1)
    worst, count, total, squares = 0.0, 0, 0.0, 0.0
    for first in range(0, flat.size, BLOCK):
        one, two = (array[first : first + BLOCK].astype(np.float64) for array in (flat, other))
        if np.array_equal(one, two, equal_nan=True):
            one = one[np.isfinite(one)]
        elif np.isfinite(one).all() and np.isfinite(two).all():
            worst = max(worst, float(np.abs(one - two).max()))
        else:
            return float("inf")
        count, total, squares = count + one.size, total + float(one.sum()), squares + float((one * one).sum())
    mean = total / count if count else 0.0
    varies = math.sqrt(max(squares / count - mean * mean, 0.0)) if count else 0.0
    return worst / max(1.0, varies)
