"""The comparator of all proofs: how far outputs are from the expected ones, by one rule for NaN and infinities.

Behind it are the tolerances: the largest differences that count as none, by the dtypes of a model.

Elements are equal where they are the same number, both NaN, or both so small that they stand for minus infinity. A NaN
or an infinity against anything else is a problem that no tolerance covers, as other dims and dtypes are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import HALVES
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import MOVING, QUANTIZED
from graphkit.graph.view import Value, all_nodes
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model
from graphkit.runtime.providers import CPU, Provider, find_provider
from graphkit.shapes.infer import infer

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


def largest_magnitude(array: np.ndarray) -> float:
    """Return the largest magnitude in an array, of numbers that do not stand for infinity."""
    return float(np.abs(_counted_elements(array.astype(np.float64), -math.inf)).max(initial=0.0))


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


# The tolerances of proofs: the largest differences that count as none, by the dtypes of a model.
#
# Measured on the exports of `tests/models` and their folds, at onnxruntime's default level: float32 at most 1.6e-6;
# int4 blocks 0.009 and static 8-bit quantisation 0.024, where the originals differ by as much; statically quantised
# decoders that were calibrated on few runs 0.2, where the originals differ by 0.08.

BUNDLE_TOLERANCE = 1e-5  # where the sums of a product may be added up in another order
LOWERING_TOLERANCE = 1e-4
HALF_TOLERANCE = 2.0**-8  # of float16, whose errors grow with the magnitude, that of a bias too
FLOAT32_TOLERANCE = 1e-4  # sums of thousands of products in another order, with room for a layer or two that amplify
SHADER_TOLERANCE = 1e-3  # with sines and cosines, which WGSL allows to be 2**-11 off
FLOAT16_TOLERANCE = 1e-2  # ten bits of precision: 5e-4 a rounding
QUANTIZED_TOLERANCE = 2e-2  # a number that falls on the other side of a rounding to 8 bits is 1/255 off
UNIT_OF_FLOAT16 = 2.0**-10  # in the last place, of numbers in [1, 2)
LEVELS = 2  # times as far as onnxruntime's two levels are apart on the originals, where that is more
ROUNDED = 2  # units in the last place
QUANTIZING = frozenset().union(*QUANTIZED.values())
ROUNDING = QUANTIZED["dynamic"] | {"QuantizeLinear"}
IN_8_BITS = 4  # the accuracy level of MatMulNBits at which its data is rounded to 8 bits


def has_float16(model: Model) -> bool:
    """Whether there are tensors of 16-bit floats in a model."""
    return not _dtypes_of(model).isdisjoint(HALVES)


def has_bfloat16(model: Model) -> bool:
    """Whether there are tensors of bfloat16 in a model."""
    return TensorProto.BFLOAT16 in _dtypes_of(model)


def _dtypes_of(model: Model) -> set[int]:
    dtypes = {tensor.data_type for tensor, _ in walk_tensors(model.proto)}
    return dtypes | {declared.dtype for value in model.graph.inputs if (declared := declared_type(value)) is not None}


def rounds_activations(model: Model) -> bool:
    """Whether a model rounds activations to 8 bits: a difference in the last digit may become one of 1/255."""
    nodes = all_nodes(model.scopes)
    return any(node.op_type in ROUNDING or node.attr("accuracy_level", 0) == IN_8_BITS for node in nodes)


def float16_tolerance(model: Model) -> float:
    """Return the tolerance at the plain level for a model with 16-bit floats, of the largest magnitude in an output.

    onnxruntime computes in float32 between the nodes that it finds kernels for, and rounds there. A rounding is off by
    at most half a unit in the last place; those of nodes one after the other add up as a random walk does.
    """
    depth: dict[Value, int] = {}
    for node in all_nodes(model.scopes):
        before = max((depth.get(value, 0) for value in node.inputs if value is not None), default=0)
        for value in node.outputs:
            if value is not None:
                depth[value] = before + (node.operator not in MOVING)
    return min(UNIT_OF_FLOAT16 * math.sqrt(max(1, *depth.values())), FLOAT16_TOLERANCE)


def level_tolerance(model: Model, provider: Provider = CPU) -> float:
    """Return the tolerance at the default level for the types in a model, and for how a device computes."""
    if find_provider(provider.name).is_coarse:
        return max(FLOAT16_TOLERANCE, level_tolerance(model))
    if not provider.is_cpu and any(node.is_op("Sin", "Cos") for node in all_nodes(model.scopes)):
        return max(SHADER_TOLERANCE, level_tolerance(model))
    if any(node.op_type in QUANTIZING for node in all_nodes(model.scopes)):
        return QUANTIZED_TOLERANCE
    return FLOAT16_TOLERANCE if has_float16(model) else FLOAT32_TOLERANCE


def error_tolerance(model: Model, error: float) -> float:
    """Return the tolerance, of the magnitude of an output, for rewrites whose nodes are off by up to an error."""
    tolerance = level_tolerance(model)
    return error if tolerance <= FLOAT32_TOLERANCE else max(error, tolerance)


class BundleTolerance(Struct, frozen=True):
    """Largest differences that count as equal, over how far logits vary where that is more than 1."""

    plain: float  # where onnxruntime fuses nothing
    near: float  # the same where the sums of a product may be added up in another order
    fused: float  # where onnxruntime fuses operators
    apart: float  # how far its two levels are apart on the originals, why `near` may be larger than was asked for
    is_raised: bool  # whether it is

    @classmethod
    def of(
        cls, models: Sequence[Model], apart: float, tolerance: float, *, exact: bool, is_wide: bool = False
    ) -> BundleTolerance:
        """Return the tolerances of a bundle of these models, where onnxruntime's two levels are so far apart on them.

        What onnxruntime makes of the digits of one and the same model grows with its depth and its magnitudes. Twice as
        much is allowed, and no more than twice the tolerance between its levels, whatever it makes of them. With
        `exact`, plain logits must be equal to the last bit; `is_wide` says whether models that round run in float32.
        """
        fused = max(tolerance, *map(level_tolerance, models))
        if is_wide:
            exact, tolerance = False, max(tolerance, FLOAT32_TOLERANCE)
            fused = max(tolerance, QUANTIZED_TOLERANCE) if any(map(rounds_activations, models)) else tolerance
        elif any(map(has_float16, models)):
            exact, tolerance = False, max(tolerance, FLOAT16_TOLERANCE)
        if any(map(rounds_activations, models)):
            tolerance = max(tolerance, fused)
        apart = min(apart, fused)
        raised = float(f"{1.05 * LEVELS * apart:.1e}")  # rounded up, so that it can be said in two digits
        near = max(tolerance, raised)
        return cls(0.0 if exact else near, near, max(fused, near), apart, raised > tolerance)


class ColumnTolerance:
    """The tolerance of logits, column by column: a share of how far a column varies, or half of them, or of 1.

    A column of large numbers, such as the logit of a token that is never to come, allows no more to the others. What is
    the same at all steps, such as a bias, allows no more to its own column.
    """

    def __init__(self, tolerance: float, *, is_half: bool) -> None:
        self.is_half = is_half  # whether models compute in float16
        self.tolerance = max(tolerance, HALF_TOLERANCE) if is_half else tolerance
        self._varies = np.zeros(0)

    def learn(self, logits: Sequence[np.ndarray]) -> None:
        """Take the logits of the original, [vocabulary] at each step, as those to compare with from now on."""
        rows = np.stack(logits).astype(np.float64)
        if not self.is_half:
            rows = rows - np.where(np.isfinite(rows), rows, 0).mean(axis=0)
        self._varies = _largest_magnitudes(rows)

    def of(self, expected: np.ndarray) -> np.ndarray:
        """Return the largest difference from each element that counts as none."""
        is_logits = expected.ndim == 1 and expected.shape == self._varies.shape
        varies = self._varies if is_logits else _largest_magnitudes(expected.astype(np.float64))
        usual = float(np.median(varies)) if varies.size else 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = ROUNDED * np.nan_to_num(np.spacing(np.abs(expected)).astype(np.float64), posinf=0.0)
        return np.asarray(self.tolerance * np.maximum(varies, max(usual, 1.0)) + rounded)

    def differ(self, actual: np.ndarray, expected: np.ndarray) -> bool:
        """Whether an output is not the original's; an original that gives NaN proves nothing."""
        if actual.shape != expected.shape or np.isnan(expected).any():
            return True
        return not bool(np.all(elementwise_difference(expected, actual) <= self.of(expected)))

    def is_tie(self, expected: np.ndarray, token: int, rival: int) -> bool:
        """Whether two logits of a step are so near that either may be the largest."""
        allowed = self.of(expected)
        return float(expected[token]) - float(expected[rival]) <= float(allowed[token] + allowed[rival])


def computes_in_half(model: Model) -> bool:
    """Whether a model rounds to float16 on its way; weights that are stored in it and read as float32 round nothing."""
    shapes = infer(model)
    for node in all_nodes(model.scopes):
        if (source := node.input(0)) is None or source.constant is not None or node.operator in MOVING:
            continue
        if any(shapes[value].dtype == TensorProto.FLOAT16 for value in node.outputs if value is not None):
            return True
    return False


def _largest_magnitudes(rows: np.ndarray) -> np.ndarray:
    if not rows.ndim or not rows.shape[-1]:
        return np.zeros(rows.shape)
    finite = np.where(np.isfinite(rows), np.abs(rows), 0.0)
    return np.asarray(finite.reshape(-1, rows.shape[-1]).max(axis=0, initial=0.0))
