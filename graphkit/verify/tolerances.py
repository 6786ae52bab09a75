"""The tolerances of proofs: the largest differences that count as none, by the dtypes of a model.

Measured on the exports of `tests/models` and their folds, at onnxruntime's default level: float32 at most 1.6e-6; int4
blocks 0.009 and static 8-bit quantisation 0.024, where the originals differ by as much; statically quantised decoders
that were calibrated on few runs 0.2, where the originals differ by 0.08.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from graphkit.verify.comparator import elementwise_difference

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
