"""The comparator of all proofs: how far outputs are from the expected ones, by one rule for NaN and infinities.

Elements are equal where they are the same number, both NaN, or both so small that they stand for minus infinity. A NaN
or an infinity against anything else is a problem that no tolerance covers, as other dims and dtypes are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

LIKE_INFINITY = 1e30  # numbers from here on stand for infinity, and measure nothing
USER_DEFINED = 2  # what numpy calls dtypes of others
BLOCK = 1 << 20  # elements compared at a time: the logits of a long prompt fill gigabytes
KINDS = ("NaN", "infinity", "minus infinity", "numbers")
Output = object  # what onnxruntime gives: an array; a list of outputs; a dict; None for an optional one without value


def largest_measured(*numbers: float | None) -> float | None:
    """Return the largest of some numbers, of which those that nobody measured are None; None for none."""
    return max((number for number in numbers if number is not None), default=None)


class Difference(Struct, frozen=True):
    """How far an output is from the expected one."""

    output: str
    absolute: float  # the largest absolute difference; infinite where shapes, or NaNs and infinities, differ
    relative: float  # the largest difference relative to the larger magnitude of the two
    # the largest absolute difference relative to the largest magnitude in the expected output; infinite where integers
    # of more than 8 bits, or booleans, differ
    scaled: float
    problem: str = ""  # what differs besides numbers, "" if nothing
    exact: bool = False  # whether it is equal to the last bit
    magnitude: float = 0.0  # the largest magnitude in the expected output; not measured where it is exact
    spread: float = 0.0  # the standard deviation of the expected output; not measured where it is exact

    def __str__(self) -> str:
        return self.problem or f"differs by {self.absolute:.3g}"

    @property
    def of_magnitude(self) -> float:
        """The largest absolute difference, relative to the largest magnitude in the expected output, of any dtype."""
        return self.absolute / self.magnitude if self.magnitude else self.absolute

    @property
    def of_spread(self) -> float:
        """The largest absolute difference, relative to the spread of the expected output where that is above 1."""
        return self.absolute / max(1.0, self.spread)

    def within(self, tolerance: float, *, of_magnitude: bool = False) -> bool:
        """Whether the absolute or the relative difference is at most the tolerance, and nothing else differs.

        With `of_magnitude` it is the difference relative to the largest magnitude in the output.
        """
        measure = self.scaled if of_magnitude else min(self.absolute, self.relative)
        return not self.problem and measure <= tolerance


def compare_outputs(
    expected: Mapping[str, Output], actual: Mapping[str, Output], *, any_width: bool = False
) -> list[Difference]:
    """Compare the outputs of `actual` with those of the same name in `expected`."""
    return [
        compare_output(expected[name], value, name, any_width=any_width)
        if name in expected
        else _problem_difference(name, "the original has no such output")
        for name, value in actual.items()
    ]


def compare_output(
    expected: Output, actual: Output, name: str = "", *, any_width: bool = False, floor: float = -math.inf
) -> Difference:
    """Compare an output with the expected one.

    With `any_width` floats may have another dtype of floats, and integers another one of integers. Numbers up to
    `floor` stand for minus infinity.
    """
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        return _compare_arrays(name, expected, actual, any_width, floor)
    if type(expected) is not type(actual):
        kinds = ["no value" if each is None else type(each).__name__ for each in (actual, expected)]
        return _problem_difference(name, f"{kinds[0]}, expected {kinds[1]}")
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if list(expected) != list(actual):
            return _problem_difference(name, "keys differ")
        return compare_output(list(expected.values()), list(actual.values()), name)
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return _compare_members(name, expected, actual)
    if isinstance(expected, (bool, int, float)) and isinstance(actual, (bool, int, float)):
        return compare_output(np.asarray(expected), np.asarray(actual), name)
    return _equal_difference(name) if expected == actual else _problem_difference(name, "values differ")


def _equal_difference(name: str) -> Difference:
    return Difference(name, 0.0, 0.0, 0.0, exact=True)


def _problem_difference(name: str, problem: str) -> Difference:
    return Difference(name, np.inf, np.inf, np.inf, problem)


def _compare_members(name: str, expected: Sequence[Output], actual: Sequence[Output]) -> Difference:
    if len(expected) != len(actual):
        return _problem_difference(name, f"{len(actual)} members, expected {len(expected)}")
    members = [compare_output(*pair, name) for pair in zip(expected, actual, strict=True)]
    problem = next((f"member {index}: {member.problem}" for index, member in enumerate(members) if member.problem), "")
    kinds = ("absolute", "relative", "scaled")
    absolute, relative, scaled = (max((getattr(m, kind) for m in members), default=0.0) for kind in kinds)
    return Difference(name, absolute, relative, scaled, problem, all(member.exact for member in members))


def _compare_arrays(name: str, expected: np.ndarray, actual: np.ndarray, any_width: bool, floor: float) -> Difference:
    is_float = expected.dtype.kind == "f", actual.dtype.kind == "f"
    if expected.shape != actual.shape or (is_float[0] != is_float[1] if any_width else expected.dtype != actual.dtype):
        was, now = (f"{a.dtype} {list(a.shape)}" for a in (expected, actual))
        are_floats = expected.shape == actual.shape and all(is_float)
        odd = odd_elements(expected, actual, floor) if are_floats else ""
        return _problem_difference(name, f"{now}, expected {was}" + (f", with {odd}" if odd else ""))
    if expected.dtype.kind in "OUS" or actual.dtype.kind in "OUS":
        is_equal = np.array_equal(expected, actual)
        return _equal_difference(name) if is_equal else _problem_difference(name, "values differ")
    x, y = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (expected, actual))
    if not expected.size or (expected.dtype == actual.dtype and np.array_equal(x, y)):
        return _equal_difference(name)
    expected, actual = widen_array(expected), widen_array(actual)
    if expected.dtype.kind not in "fiub":
        return _problem_difference(name, "values differ")
    return _measure_difference(name, expected.reshape(-1), actual.reshape(-1), floor)


def widen_array(array: np.ndarray) -> np.ndarray:
    """Return an array of a dtype that numpy does not know, such as bfloat16 or int4, in one that holds its numbers."""
    if array.dtype.isbuiltin != USER_DEFINED:
        return array
    return array.astype(np.int16 if array.dtype.name.startswith(("int", "uint")) else np.float32)


def _measure_difference(name: str, expected: np.ndarray, actual: np.ndarray, floor: float) -> Difference:
    absolute = relative = largest = total = squares = 0.0
    count = 0
    for start in range(0, expected.size, BLOCK):
        x, y = (array[start : start + BLOCK].astype(np.float64) for array in (expected, actual))
        apart = elementwise_difference(x, y, floor)
        if not np.isfinite(apart).all():
            return _problem_difference(name, odd_elements(x, y, floor) or "numbers too far apart for float64")
        absolute = max(absolute, float(apart.max()))
        scale = np.maximum(np.abs(x), np.abs(y))
        relative = max(relative, float(np.divide(apart, scale, where=apart > 0, out=np.zeros_like(x)).max()))
        known = _counted_elements(x, floor)
        largest = max(largest, float(np.abs(known).max(initial=0.0)))
        count, total, squares = count + known.size, total + float(known.sum()), squares + float((known * known).sum())
    is_integer = expected.dtype.kind != "f"
    if is_integer and not absolute and not np.array_equal(expected, actual):  # past 2**53, float64 knows no neighbours
        absolute, relative = 1.0, 1.0 / max(largest, 1.0)
    mean = total / count if count else 0.0
    spread = math.sqrt(max(squares / count - mean * mean, 0.0)) if count else 0.0
    scaled = absolute / largest if largest else absolute
    if is_integer:
        is_rounded = expected.dtype.kind in "iu" and expected.dtype.itemsize == 1
        scaled = absolute / 255 if is_rounded or not absolute else np.inf
    return Difference(name, absolute, relative, scaled, magnitude=largest, spread=spread)


def odd_elements(expected: np.ndarray, actual: np.ndarray, floor: float = -math.inf) -> str:
    """Return what stands in the place of NaNs and infinities, or these in its place, "" where they agree."""
    x, y = (widen_array(array).astype(np.float64) for array in (expected, actual))
    was, now = (np.select([np.isnan(z), z == np.inf, z == -np.inf], [0, 1, 2], 3) for z in (x, y))
    pairs = np.unique((4 * now + 3 - was)[(was != now) & ~((x <= floor) & (y <= floor))])
    return f"{KINDS[pairs[0] // 4]} instead of {KINDS[3 - pairs[0] % 4]}" if pairs.size else ""


def distance_of_spread(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest absolute difference, relative to the spread of the expected array where that is above 1."""
    return compare_output(expected, actual, any_width=True).of_spread


def elementwise_difference(expected: np.ndarray, actual: np.ndarray, floor: float = -math.inf) -> np.ndarray:
    """Return the absolute difference of each element, in float64; infinity where a NaN or an infinity differs."""
    x, y = expected.astype(np.float64, copy=False), actual.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(x - y)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | ((x <= floor) & (y <= floor))
        return np.asarray(np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart)))


def largest_magnitude(array: np.ndarray, floor: float = -math.inf) -> float:
    """Return the largest magnitude in an array, of numbers that do not stand for infinity."""
    return float(np.abs(_counted_elements(array.astype(np.float64), floor)).max(initial=0.0))


def _counted_elements(wide: np.ndarray, floor: float) -> np.ndarray:
    """Return the elements that are finite numbers, and do not stand for infinity."""
    return np.asarray(wide[(wide > floor) & (np.abs(wide) < LIKE_INFINITY)])


def element_counts(value: Output) -> tuple[int, int]:
    """Return how many elements an output has, and how many of them are no NaN or infinity."""
    if isinstance(value, np.ndarray):
        value = widen_array(value)
        is_float = value.dtype.kind == "f"
        return value.size, int(np.isfinite(value).sum()) if is_float else value.size
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        counts = [element_counts(member) for member in value]
        return sum(count for count, _ in counts), sum(finite for _, finite in counts)
    return 1, 1  # a number, a text, or that there is no value
