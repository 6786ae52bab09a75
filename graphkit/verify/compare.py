"""Compare the outputs of two models, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["LIKE_INFINITY", "Difference", "Output", "compare_outputs", "element_counts"]

LIKE_INFINITY = 1e30
Output = object  # what onnxruntime gives: an array; a list of outputs; a dict; None for an optional one without value


@dataclass(frozen=True)
class Difference:
    """How far an output is from the expected one.

    Attributes:
        absolute: The largest absolute difference; infinite where shapes, or NaNs and infinities, differ.
        relative: The largest difference relative to the larger magnitude of the two.
        scaled: The largest absolute difference relative to the largest magnitude in the expected output;
            infinite where integers of more than 8 bits, or booleans, differ.
        problem: What differs besides numbers, "" if nothing.
        exact: Whether it is equal to the last bit.
    """

    output: str
    absolute: float
    relative: float
    scaled: float
    problem: str = ""
    exact: bool = False

    def __str__(self) -> str:
        return self.problem or f"differs by {self.absolute:.3g}"

    def within(self, tolerance: float, *, of_magnitude: bool = False) -> bool:
        """Whether the absolute or the relative difference is at most the tolerance, and nothing else differs.

        With `of_magnitude` it is the difference relative to the largest magnitude in the output.
        """
        found = self.scaled if of_magnitude else min(self.absolute, self.relative)
        return not self.problem and found <= tolerance


def compare_outputs(expected: Mapping[str, Output], actual: Mapping[str, Output]) -> list[Difference]:
    """Compare the outputs of `actual` with those of the same name in `expected`."""
    return [
        _compare(name, expected[name], value) if name in expected else _differs(name, "the original has no such output")
        for name, value in actual.items()
    ]


def _differs(name: str, problem: str) -> Difference:
    return Difference(name, np.inf, np.inf, np.inf, problem)


def _compare(name: str, expected: Output, actual: Output) -> Difference:
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        return _compare_arrays(name, expected, actual)
    if type(expected) is not type(actual):
        return _differs(name, f"{_kind(actual)}, expected {_kind(expected)}")
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if list(expected) != list(actual):
            return _differs(name, "keys differ")
        return _compare(name, list(expected.values()), list(actual.values()))
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return _compare_members(name, expected, actual)
    if isinstance(expected, (bool, int, float)) and isinstance(actual, (bool, int, float)):
        return _compare_arrays(name, np.asarray(expected), np.asarray(actual))
    return Difference(name, 0.0, 0.0, 0.0, exact=True) if expected == actual else _differs(name, "values differ")


def _kind(value: Output) -> str:
    return "no value" if value is None else type(value).__name__


def _compare_members(name: str, expected: Sequence[Output], actual: Sequence[Output]) -> Difference:
    if len(expected) != len(actual):
        return _differs(name, f"{len(actual)} members, expected {len(expected)}")
    found = [_compare(name, one, two) for one, two in zip(expected, actual, strict=True)]
    problem = next((f"member {index}: {one.problem}" for index, one in enumerate(found) if one.problem), "")
    kinds = ("absolute", "relative", "scaled")
    absolute, relative, scaled = (max((getattr(one, kind) for one in found), default=0.0) for kind in kinds)
    return Difference(name, absolute, relative, scaled, problem, all(one.exact for one in found))


def _compare_arrays(name: str, expected: np.ndarray, actual: np.ndarray) -> Difference:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        was, now = (f"{a.dtype} {list(a.shape)}" for a in (expected, actual))
        return _differs(name, f"{now}, expected {was}")
    if expected.dtype.kind in "OUS":
        is_same = np.array_equal(expected, actual)
        return Difference(name, 0.0, 0.0, 0.0, exact=True) if is_same else _differs(name, "values differ")
    if expected.tobytes() == actual.tobytes() or not expected.size:
        return Difference(name, 0.0, 0.0, 0.0, exact=True)
    if expected.dtype.kind not in "fiub":
        return _differs(name, "values differ")
    one, two = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(two)
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    if not np.all(finite | same):
        return _differs(name, "NaNs or infinities differ")
    distance = np.abs(np.subtract(one, two, where=finite & ~same, out=np.zeros_like(one)))
    scale = np.maximum(np.abs(one), np.abs(two))
    relative = np.divide(distance, scale, where=(scale > 0) & finite, out=np.zeros_like(one))
    return Difference(name, float(distance.max()), float(relative.max()), _scaled(expected, float(distance.max())))


def _scaled(expected: np.ndarray, distance: float) -> float:
    """Return a difference relative to the largest magnitude; numbers that stand for infinity do not count for that."""
    if expected.dtype.kind != "f":
        is_rounded = expected.dtype.kind in "iu" and expected.dtype.itemsize == 1
        return distance / 255 if is_rounded or not distance else np.inf
    magnitudes = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    largest = float(magnitudes[magnitudes < LIKE_INFINITY].max(initial=0.0))
    return distance / largest if largest else distance


def element_counts(value: Output) -> tuple[int, int]:
    """Return how many elements an output has, and how many of them are no NaN or infinity."""
    if isinstance(value, np.ndarray):
        is_float = value.dtype.kind == "f"
        return value.size, int(np.isfinite(value).sum()) if is_float else value.size
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        counts = [element_counts(member) for member in value]
        return sum(count for count, _ in counts), sum(finite for _, finite in counts)
    return 1, 1  # a number, a text, or that there is no value
