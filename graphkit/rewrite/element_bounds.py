"""Bounds of elements at any input, to tell which floats may be infinite or NaN, and which integers fit a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import mul, or_, truediv

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS, integer_range
from graphkit.errors import ModelError
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.operator_traits import copied_inputs
from graphkit.graph.roles import MASKS
from graphkit.graph.view import ZERO, Node, Value
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.shapes import Shapes

MAX_READ = 64 << 20  # bytes of a constant that are read
EXACT = 2.0**53  # up to which floats hold each integer

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
LIMITED = {"Sigmoid": (0, 1), "Softmax": (0, 1), **dict.fromkeys(("Tanh", "Erf", "Cos", "Sin"), (-1, 1))}


class Interval(Struct, frozen=True):
    """The least and the largest element that a value may have, and whether one may be NaN."""

    low: float
    high: float
    may_be_nan: bool = False

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low, self.may_be_nan)

    def __abs__(self) -> Interval:
        return Interval(max(self.low, -self.high, 0), max(-self.low, self.high), self.may_be_nan)

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite, or NaN."""
        return not self.may_be_nan and math.isfinite(self.low) and math.isfinite(self.high)

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high), self.may_be_nan or other.may_be_nan)


UNBOUNDED = Interval(-math.inf, math.inf, may_be_nan=True)


class ElementBounds(ForwardAnalysis[Interval]):
    """Bounds of the values of a model, by interval arithmetic. Integers that wrap around may be anything.

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
        if dtype in INTEGERS:
            if (known := element_numbers(self.shapes[value])) is not None:
                return _bounds_of_array(known)
            if value.output_index and node is not None and not node.is_op("Split", "TopK"):
                return _of_dtype(dtype)
        if node is not None:
            return _round_bounds(self._of_node(node, dtype), dtype)
        is_mask = self.model.roles.of(value) in MASKS and self.model.roles.polarities[value] in ("adds", None)
        return _of_dtype(dtype) if is_mask else _activation_bounds(dtype)  # -inf, where a mask hides

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
        if kind in EXTREMES or kind in ("Cast", "Dropout"):
            return self.of(node.input(0))
        is_place = kind == "TopK" and dtype in INTEGERS and self.shapes[node.input(0)].dtype not in INTEGERS
        if is_place or kind in ("ArgMax", "ArgMin"):
            dims = self.shapes.dims(node.input(0)) or ()
            axis = node.axis(len(dims), -is_place)
            size = dims[axis].constant if axis is not None else None
            return _of_dtype(dtype) if size is None else Interval(0, max(size - 1, 0))
        if kind in PRODUCTS:
            return _activation_bounds(dtype)
        if kind in SUMS:
            is_finite = all(self.of(each).is_finite for each in node.operands)
            return _activation_bounds(dtype) if is_finite else UNBOUNDED
        if kind in LIMITED:
            return Interval(*LIMITED[kind]) if self.of(node.input(0)).is_finite else UNBOUNDED
        if kind == "ConstantOfShape":
            fill = node.attr("value", ZERO)
            return UNBOUNDED if fill is None else self._of_tensor(fill)
        if kind in ARITHMETIC:
            return ARITHMETIC[kind]([self.of(each) for each in node.operands])
        if kind in ("Trilu", "Relu", "Pad"):
            padding = node.input(2) if kind == "Pad" else None
            return self.of(node.input(0)) | (Interval(0, 0) if padding is None else self.of(padding))
        if read := copied_inputs(node):
            return reduce(or_, (self.of(node.input(index)) for index in read))
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
        low, high = max(whole.low, -EXACT), min(whole.high, EXACT)
        if interval.may_be_nan or not low <= interval.low <= interval.high <= high:
            return whole
        return Interval(math.floor(interval.low), math.ceil(interval.high))  # a Cast of floats rounds
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


def _of_ends(function: Callable[[float, float], float], left: Interval, right: Interval) -> Interval:
    if not (left.is_finite and right.is_finite) or (function is truediv and right.low <= 0 <= right.high):
        return UNBOUNDED
    ends = [function(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return Interval(min(ends), max(ends))


def _of_several(choose: Callable[[Iterable[float]], float], operands: Sequence[Interval]) -> Interval:
    low, high = choose(each.low for each in operands), choose(each.high for each in operands)
    return Interval(low, high, any(each.may_be_nan for each in operands))


ARITHMETIC: dict[str, Callable[[Sequence[Interval]], Interval]] = {
    "Abs": lambda operands: abs(operands[0]),
    "Add": _bound_sum,
    "Sum": _bound_sum,
    "Sub": lambda operands: _bound_sum([operands[0], -operands[1]]),
    "Mul": lambda operands: _of_ends(mul, *operands),
    "Div": lambda operands: _of_ends(truediv, *operands),
    "Neg": lambda operands: -operands[0],
    "Max": partial(_of_several, max),
    "Min": partial(_of_several, min),
}
