"""Bounds of elements at any input: of floats, to tell which may be infinite or NaN, and of integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import mul, or_, truediv

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import BITS, FLOATS, INTEGERS, integer_range
from graphkit.errors import ModelError
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.operator_traits import MOVING
from graphkit.graph.roles import MASKS
from graphkit.graph.view import ZERO, Node, Value
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.rewrite.editor import Editor
from graphkit.shapes import Shapes

__all__ = ["UNBOUNDED", "Bounds", "FloatBounds", "IntegerBounds", "Interval"]

MAX_READ = 64 << 20  # bytes of a constant that are read

LARGEST: dict[int, float] = {dtype: float(np.finfo(numpy).max) for dtype, numpy in FLOATS.items()}
LARGEST[TensorProto.BFLOAT16] = 3.3895314e38
# Activations are taken to be no larger than this, which leaves room for a sum with the least number of the dtype.
ACTIVATIONS: dict[int, float] = {
    TensorProto.FLOAT: 1e30,
    TensorProto.DOUBLE: 1e290,
    TensorProto.FLOAT16: 1e4,
    TensorProto.BFLOAT16: 1e30,
}
PRODUCTS = {"Attention", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DequantizeLinear", "Einsum"}
PRODUCTS |= {"DynamicQuantizeLinear", "Gelu", "Gemm", "GlobalAveragePool", "GroupNormalization", "MatMul"}
PRODUCTS |= {"InstanceNormalization", "LayerNormalization", "RMSNormalization", "RotaryEmbedding"}
PRODUCTS |= {"com.microsoft.FusedMatMul", "com.microsoft.MatMulNBits", "com.microsoft.RotaryEmbedding"}
SUMS = {"CumSum", "Range", "ReduceMean", "ReduceSum"}  # as large as activations, of what is finite
EXTREMES = {"ReduceMax", "ReduceMin"}
LIMITED: dict[str, tuple[int, int]] = {
    "Sigmoid": (0, 1),
    "Softmax": (0, 1),
    "Tanh": (-1, 1),
    "Erf": (-1, 1),
    "Cos": (-1, 1),
    "Sin": (-1, 1),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """The least and the largest element that a value may have, and whether one may be NaN."""

    low: float
    high: float
    may_be_nan: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite, or NaN."""
        return not self.may_be_nan and math.isfinite(self.low) and math.isfinite(self.high)

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high), self.may_be_nan or other.may_be_nan)


UNBOUNDED = Interval(-math.inf, math.inf, may_be_nan=True)


class FloatBounds(ForwardAnalysis[Interval]):
    """Bounds of the values of a model, by interval arithmetic.

    What inputs, products, convolutions and normalizations give is taken to be finite, and small against the largest
    number of its dtype: a model in which it is not has no use. What a constant, a logarithm, a quotient or a Softmax of
    nothing but -inf may make infinite is unbounded, as is what no rule here knows.
    """

    def __init__(self, model: Model, shapes: Shapes) -> None:
        super().__init__(UNBOUNDED)
        self.model, self.shapes = model, shapes

    def transfer(self, value: Value) -> Interval:
        """Return bounds of the elements of a value."""
        if value.constant is not None:
            return self._of_tensor(value.constant)
        dtype, node = self.shapes[value].dtype, value.producer
        if (
            node is None
            and self.model.roles.of(value) in MASKS
            and self.model.roles.polarities[value] in ("adds", None)
        ):
            return _of_dtype(dtype)  # -inf, where it hides
        return _activation_bounds(dtype) if node is None else _round_bounds(self._of_node(node, dtype), dtype)

    def _of_tensor(self, tensor: TensorProto) -> Interval:
        size = payload_size(tensor)
        if size is None or size > MAX_READ or tensor.data_type not in (*LARGEST, *INTEGERS):
            return _of_dtype(tensor.data_type)
        try:
            array = self.model.array(tensor)
        except ModelError:  # its data file is missing
            return UNBOUNDED
        return _bounds_of_array(array)

    def _of_node(self, node: Node, dtype: int) -> Interval:
        kind = node.operator
        if node.bodies:
            return _of_dtype(dtype)
        if kind in MOVING - {"Concat"} or kind in EXTREMES or kind in ("Cast", "Dropout"):
            return self.of(node.input(0))
        if kind in PRODUCTS:
            return _activation_bounds(dtype)
        if kind in SUMS:
            is_finite = all(self.of(each).is_finite for each in node.operands)
            return _activation_bounds(dtype) if is_finite else UNBOUNDED
        if kind in LIMITED:
            least, most = LIMITED[kind]
            return Interval(least, most) if self.of(node.input(0)).is_finite else UNBOUNDED
        if kind == "ConstantOfShape":
            fill = node.attr("value", ZERO)
            return UNBOUNDED if fill is None else self._of_tensor(fill)
        if kind in ARITHMETIC:
            return ARITHMETIC[kind]([self.of(each) for each in node.operands])
        if kind in ("Concat", "Where", "ScatterND", "ScatterElements"):
            read = {"Where": (1, 2), "ScatterND": (0, 2), "ScatterElements": (0, 2)}.get(kind, range(len(node.inputs)))
            if node.attr("reduction", "none") != "none":
                return _of_dtype(dtype)
            return reduce(or_, (self.of(node.input(index)) for index in read))
        if kind in ("Trilu", "Relu", "Pad"):
            padding = node.input(2) if kind == "Pad" else None
            return self.of(node.input(0)) | (Interval(0, 0) if padding is None else self.of(padding))
        return _of_dtype(dtype)


def _bounds_of_array(array: np.ndarray) -> Interval:
    if array.size == 0:
        return Interval(0, 0)
    low, high = float(array.min()), float(array.max())
    return UNBOUNDED if math.isnan(low) or math.isnan(high) else Interval(low, high)


def _activation_bounds(dtype: int) -> Interval:
    most = ACTIVATIONS.get(dtype)
    return _of_dtype(dtype) if most is None else Interval(-most, most)


def _of_dtype(dtype: int) -> Interval:
    if dtype not in INTEGERS:
        return UNBOUNDED
    least, most = integer_range(dtype)
    return Interval(float(least), float(most))


def _round_bounds(interval: Interval, dtype: int) -> Interval:
    """Return bounds as a dtype holds them: larger ones are infinite, or wrap around."""
    if dtype in INTEGERS:
        whole = _of_dtype(dtype)
        return interval if whole.low <= interval.low and interval.high <= whole.high else whole
    largest = LARGEST.get(dtype)
    if largest is None or math.isnan(interval.low) or math.isnan(interval.high):
        return UNBOUNDED
    limit = largest * (1 + 2.0**-26) if dtype in (TensorProto.FLOAT, TensorProto.DOUBLE) else largest
    low, high = (end if abs(end) <= limit else math.copysign(math.inf, end) for end in (interval.low, interval.high))
    return Interval(low, high, interval.may_be_nan)


def _bound_sum(operands: Sequence[Interval]) -> Interval:
    low, high = sum(each.low for each in operands), sum(each.high for each in operands)
    both = any(each.low == -math.inf for each in operands) and any(each.high == math.inf for each in operands)
    return UNBOUNDED if both else Interval(low, high, any(each.may_be_nan for each in operands))


def _bound_difference(operands: Sequence[Interval]) -> Interval:
    return _bound_sum([operands[0], _bound_negative(operands[1:])])


def _bound_product(operands: Sequence[Interval]) -> Interval:
    return _of_ends(mul, *operands)


def _bound_quotient(operands: Sequence[Interval]) -> Interval:
    dividend, divisor = operands
    return UNBOUNDED if divisor.low <= 0 <= divisor.high else _of_ends(truediv, dividend, divisor)


def _of_ends(function: Callable[[float, float], float], left: Interval, right: Interval) -> Interval:
    if not (left.is_finite and right.is_finite):
        return UNBOUNDED
    ends = [function(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return Interval(min(ends), max(ends))


def _bound_negative(operands: Sequence[Interval]) -> Interval:
    return Interval(-operands[0].high, -operands[0].low, operands[0].may_be_nan)


def _of_several(choose: Callable[[Iterable[float]], float], operands: Sequence[Interval]) -> Interval:
    low, high = choose(each.low for each in operands), choose(each.high for each in operands)
    return Interval(low, high, any(each.may_be_nan for each in operands))


ARITHMETIC: dict[str, Callable[[Sequence[Interval]], Interval]] = {
    "Add": _bound_sum,
    "Sum": _bound_sum,
    "Sub": _bound_difference,
    "Mul": _bound_product,
    "Div": _bound_quotient,
    "Neg": _bound_negative,
    "Max": partial(_of_several, max),
    "Min": partial(_of_several, min),
}


MAX_CONSTANT = 1 << 20  # elements of a constant that are looked at

Bounds = tuple[int, int]


class IntegerBounds(ForwardAnalysis["Bounds | None"]):
    """Tells between which numbers the elements of a tensor are at any input; each tensor is looked at once.

    Numbers that int64 cannot hold are never told: what wraps around is not known.
    """

    def __init__(self, editor: Editor) -> None:
        super().__init__(None)
        self.editor = editor

    def transfer(self, value: Value) -> Bounds | None:
        """Return the least and the greatest element that a tensor can have, None where they are not known."""
        bounds = self._find(value)
        return bounds if bounds is not None and -(2**63) <= bounds[0] <= bounds[1] < 2**63 else None

    def _find(self, value: Value) -> Bounds | None:
        tensor = self.editor.shapes[value]
        if tensor.dtype not in INTEGERS:
            return None
        array = self._constant(value)
        if array is not None and array.size:
            return int(array.min()), int(array.max())
        node, limits = value.producer, None if BITS[tensor.dtype] == 64 else integer_range(tensor.dtype)
        bounds = self._computed(node) if node is not None and not node.domain and not value.output_index else None
        if bounds is None or (limits is not None and not limits[0] <= bounds[0] <= bounds[1] <= limits[1]):
            return limits  # what wraps around may be anything
        return bounds if tensor.dtype != TensorProto.UINT64 else None

    def _constant(self, value: Value) -> np.ndarray | None:
        array = element_numbers(self.editor.shapes[value])
        return array if array is not None else self.editor.read_constant(value, MAX_CONSTANT, 1)

    def _computed(self, node: Node) -> Bounds | None:
        if node.is_op("ArgMax", "ArgMin"):
            return self._positions(node)
        if node.is_op("Concat", "Max", "Min"):
            return _join_bounds(self.of(value) for value in node.inputs)
        if node.is_op("Where"):
            return _join_bounds(self.of(value) for value in node.inputs[1:])
        if node.op_type in MOVING:
            return self.of(node.input(0))
        rule = RULES.get(node.op_type)
        operands = [self.of(value) for value in node.inputs]
        known = [operand for operand in operands if operand is not None]
        return rule(*known) if rule is not None and known and len(known) == len(operands) else None

    def _positions(self, node: Node) -> Bounds | None:
        dims = self.editor.shapes.dims(node.input(0)) or ()
        axis = node.axis(len(dims))
        size = dims[axis].constant if axis is not None else None
        return (0, max(size - 1, 0)) if size is not None else None


def _join_bounds(bounds: Iterable[Bounds | None]) -> Bounds | None:
    all_bounds = list(bounds)
    known = [each for each in all_bounds if each is not None]
    if not known or len(known) < len(all_bounds):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _integer_product(left: Bounds, right: Bounds) -> Bounds:
    corners = [a * b for a in left for b in right]
    return min(corners), max(corners)


RULES: Mapping[str, Callable[..., Bounds]] = {
    "Cast": lambda data: data,
    "Neg": lambda data: (-data[1], -data[0]),
    "Abs": lambda data: (0 if data[0] <= 0 <= data[1] else min(map(abs, data)), max(map(abs, data))),
    "Add": lambda left, right: (left[0] + right[0], left[1] + right[1]),
    "Sub": lambda left, right: (left[0] - right[1], left[1] - right[0]),
    "Mul": _integer_product,
}
