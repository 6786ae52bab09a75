"""Linear operators with a constant weight, and affine functions of their channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.rewrite import MatchFailure
from graphkit.shapes import Shapes

AFFINE_OPERATORS = ("Mul", "Div", "Add", "Sub", "Neg", "BatchNormalization")
NUMPY_BROADCASTS_SINCE = 7
PLAIN_NORMALIZATION_SINCE = 9  # before, BatchNormalization has flags that say what it normalizes, and when
EPSILON = 1e-5


@dataclass(frozen=True)
class Channels:
    """The axis of a tensor along which each number of a constant counts for one slice."""

    rank: int
    axis: int | None  # not negative; None where the channels are scattered, so that only one number for all will do
    count: int


@dataclass(frozen=True, eq=False)
class Affine:
    """`scale * x + shift` by channel, in float64: each a vector, of one element where all channels have the same."""

    scale: np.ndarray = field(default_factory=lambda: np.ones(1))
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1))

    def followed_by(self, after: Affine) -> Affine:
        """Return this one and another one after it."""
        return Affine(after.scale * self.scale, after.scale * self.shift + after.shift)

    @property
    def scales(self) -> bool:
        """Whether it multiplies by other numbers than 1."""
        return bool((self.scale != 1).any())

    @property
    def shifts(self) -> bool:
        """Whether it adds other numbers than 0."""
        return bool((self.shift != 0).any())


def affine_of(model: Model, node: Node, value: Value, channels: Channels, dtype: int) -> Affine:
    """Return the affine function that a node applies to the channels of a tensor, or raise a MatchFailure."""
    if not node.is_op(*AFFINE_OPERATORS):
        raise MatchFailure
    if node.op_type == "BatchNormalization":
        return _affine_of_normalization(model, node, value, channels)
    if node.op_type == "Neg":
        return Affine(-np.ones(1))
    if len(node.inputs) != 2 or node.scope.opset() < NUMPY_BROADCASTS_SINCE:
        raise MatchFailure
    index = 0 if node.inputs[0] is value else 1
    number = _channel_vector(model, node.inputs[1 - index], channels, dtype)
    if node.op_type == "Div" and index == 1:
        raise MatchFailure("it divides a constant by the tensor")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        affine = {
            "Mul": lambda: Affine(number),
            "Div": lambda: Affine(1 / number),
            "Add": lambda: Affine(shift=number),
            "Sub": lambda: Affine(shift=-number) if index == 0 else Affine(-np.ones(1), number),
        }[node.op_type]()
    if not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        raise MatchFailure("its constant has elements that are not finite, or divides by 0")
    return affine


def _channel_vector(model: Model, value: Value | None, channels: Channels, dtype: int) -> np.ndarray:
    """Return the elements of a constant that is broadcast to a tensor, in float64: one for each channel, or one."""
    if value is None or value.constant is None:
        has_default = value is not None and value.kind == "input" and value.tensor is not None
        raise MatchFailure("its constant is an input with a default, which a caller may replace" if has_default else "")
    tensor = value.constant
    if tensor.data_type != dtype or dtype not in FLOATS:
        raise MatchFailure("its constant is of another type than the weight")
    dims = list(tensor.dims)
    if len(dims) > channels.rank:
        raise MatchFailure("its constant has more dims than the tensor")
    axis = None if channels.axis is None else channels.axis - (channels.rank - len(dims))
    if any(dim != 1 for index, dim in enumerate(dims) if index != axis):
        raise MatchFailure("its constant differs along other axes than that of the channels")
    if axis is not None and axis >= 0 and dims[axis] not in (1, channels.count):
        raise MatchFailure("its constant has another number of channels than the tensor")
    return _constant_elements(model, value)


def _constant_elements(model: Model, value: Value | None) -> np.ndarray:
    tensor = value.constant if value is not None else None
    if tensor is None:
        raise MatchFailure("not all of its parameters are constant")
    try:
        return model.array(tensor).astype(np.float64).reshape(-1)
    except ModelError as error:  # its data file is missing
        raise MatchFailure(f"the values of '{tensor.name}' cannot be read: {error.problem}") from error


def _affine_of_normalization(model: Model, node: Node, value: Value, channels: Channels) -> Affine:
    if node.inputs[0] is not value or len(node.inputs) != 5 or any(node.outputs[1:]):
        raise MatchFailure("it is a BatchNormalization that learns, or lacks parameters")
    if node.scope.opset() < PLAIN_NORMALIZATION_SINCE or node.attr("training_mode", 0) != 0:
        raise MatchFailure("it is a BatchNormalization that learns, or may learn")
    if channels.axis != 1:
        raise MatchFailure("it normalizes along another axis than that of the channels")
    parameters = [_constant_elements(model, parameter) for parameter in node.inputs[1:]]
    scale, bias, mean, variance = parameters
    epsilon = node.attr("epsilon", EPSILON)
    if epsilon is None or any(array.shape != (channels.count,) for array in parameters):
        raise MatchFailure("its parameters are not one number for each channel")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        shift = bias - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        raise MatchFailure("its parameters make numbers that are not finite")
    return Affine(factor, shift)


Axes = tuple[int, ...]
BROADCAST_BIAS_SINCE = 7  # Gemm: before, an attribute says whether its bias is broadcast


@dataclass(frozen=True, eq=False)
class Linear:
    """A node that gives `weight * data + bias`."""

    node: Node
    tensor: TensorProto
    view: tuple[int, ...]  # dims that the weight is looked at with: groups get a dim of their own
    takes: Axes  # the axes of the view that count the channels of the data, in order
    gives: Axes  # those that count the channels of the result
    source: Channels
    result: Channels
    data: int = 0  # which of its inputs is the data
    weight: int = 1  # which one is the weight
    bias: int | None = None  # which input is the bias, None for an operator that has none
    is_padded: bool = False  # whether it reads, or makes up, elements that are not in its data


def linear_of(node: Node, shapes: Shapes) -> Linear:
    """Return a node as a linear operator, or raise a MatchFailure."""
    if not node.is_op(*LINEAR_OPERATORS):
        raise MatchFailure
    return LINEAR_OPERATORS[node.op_type](node, shapes)


def _constant_weight(value: Value | None) -> TensorProto:
    if value is None:
        raise MatchFailure
    if value.constant is None:
        if value.producer is not None and value.producer.is_op("DequantizeLinear"):
            raise MatchFailure("the weight is quantised")
        has_default = value.kind == "input" and value.tensor is not None
        raise MatchFailure("the weight is an input with a default, which a caller may replace" if has_default else "")
    if value.constant.data_type not in FLOATS:
        raise MatchFailure("the weight is of a type that is not calculated with here")
    return value.constant


def _read_convolution(node: Node, _: Shapes) -> Linear:
    tensor, groups = _constant_weight(node.input(1)), node.attr("group", 1)
    dims, is_transposed = tuple(tensor.dims), node.op_type == "ConvTranspose"
    if len(dims) < 3 or not groups or groups < 1 or dims[0] % groups:
        raise MatchFailure("the groups do not fit the weight")
    view: tuple[int, ...] = dims
    gives: Axes = (0,)
    takes: Axes = (1,)
    if groups > 1:
        view, gives, takes = (groups, dims[0] // groups, *dims[1:]), (0, 1), (0, 2)
    pads, automatic = node.attr("pads", ()), node.attr("auto_pad", "NOTSET")
    is_padded = is_transposed or pads is None or any(pads) or automatic not in ("NOTSET", "VALID")
    source, result = Channels(len(dims), 1, dims[1] * groups), Channels(len(dims), 1, dims[0])
    if is_transposed:
        gives, takes, source, result = takes, gives, result, source
    return Linear(node, tensor, view, takes, gives, source=source, result=result, bias=2, is_padded=is_padded)


def _read_gemm(node: Node, _: Shapes) -> Linear:
    tensor = _constant_weight(node.input(1))
    if node.scope.opset() < BROADCAST_BIAS_SINCE or len(tensor.dims) != 2:
        raise MatchFailure("the Gemm is of an old operator set, or its weight is no matrix")
    takes, gives = (1, 0) if node.attr("transB", 0) else (0, 1)
    dims = tuple(tensor.dims)
    source, result = Channels(2, 0 if node.attr("transA", 0) else 1, dims[takes]), Channels(2, 1, dims[gives])
    return Linear(node, tensor, dims, (takes,), (gives,), source=source, result=result, bias=2)


def _read_matmul(node: Node, shapes: Shapes) -> Linear:
    if len(node.inputs) != 2:
        raise MatchFailure
    is_right = node.inputs[1] is not None and node.inputs[1].constant is not None
    weight, data = (1, 0) if is_right else (0, 1)
    try:
        tensor, value = _constant_weight(node.inputs[weight]), node.inputs[data]
    except MatchFailure as failure:
        if not failure.reason:
            _constant_weight(node.inputs[1])  # the reason why the right operand is no weight
        raise
    rank, dims = shapes[value].rank, tuple(tensor.dims)
    if rank is None:
        raise MatchFailure("the rank of the data is not known")
    if len(dims) < 2 or rank < 2:
        raise MatchFailure("the weight or the data is a vector")
    last, before = len(dims) - 1, len(dims) - 2
    takes, gives = (before, last) if is_right else (last, before)
    whole, axis = max(rank, len(dims)), -1 if is_right else -2
    source, result = Channels(rank, rank + axis, dims[takes]), Channels(whole, whole + axis, dims[gives])
    return Linear(node, tensor, dims, (takes,), (gives,), source=source, result=result, data=data, weight=weight)


Reader = Callable[[Node, Shapes], Linear]
LINEAR_OPERATORS: Mapping[str, Reader] = {
    "Conv": _read_convolution,
    "ConvTranspose": _read_convolution,
    "Gemm": _read_gemm,
    "MatMul": _read_matmul,
}
