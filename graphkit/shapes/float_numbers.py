"""Floats as runtimes compute them: rounded to their dtype, with the signs of zeros; None where these may differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from graphkit.dtypes import FLOATS

__all__ = ["cast_number", "extreme_number", "is_negative_zero", "make_whole", "round_to_dtype"]


def round_to_dtype(value: float, dtype: int) -> float:
    """Return a number as a float dtype holds it."""
    with np.errstate(over="ignore"):
        return float(FLOATS[dtype].type(value))


def cast_number(value: float, dtype: int) -> float | None:
    """Return a number cast to a float dtype; None where it matters whether it is rounded once or by way of others."""
    ways = {round_to_dtype(value, dtype), round_to_dtype(float(np.float64(value)), dtype)}
    if FLOATS[dtype].itemsize < 4:
        with np.errstate(over="ignore"):
            ways.add(round_to_dtype(float(np.float32(value)), dtype))
    if isinstance(value, int):
        ways.add(float(np.asarray(value).astype(FLOATS[dtype])))
    return ways.pop() if len(ways) == 1 or math.isnan(value) else None


def extreme_number(function: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    """Return the least or the largest number; None beside NaN, and where the sign of a zero depends on the order."""
    if any(value != value for value in values):
        return None
    found = function(values)
    return None if len({math.copysign(1, value) for value in values if value == found}) > 1 else found


def make_whole(function: Callable[[float], int], value: float) -> float:
    """Return a number made whole by floor, ceil or round: of its own sign where it becomes 0."""
    if not math.isfinite(value):
        return value
    return float(function(value)) or math.copysign(0.0, value)


def is_negative_zero(value: float) -> bool:
    """Whether a number is -0."""
    return value == 0 and math.copysign(1, value) < 0
