"""Linear operators with a constant weight, seen alike: channels in, channels out, weight, bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.affine import Channels, Reason
from graphkit.shapes import Shapes

__all__ = ["LINEAR_OPERATORS", "Linear", "linear_of"]

Axes = tuple[int, ...]
BROADCAST_BIAS_SINCE = 7  # Gemm: before, an attribute says whether its bias is broadcast


@dataclass(frozen=True, eq=False)
class Linear:
    """A node that gives `weight * data + bias`.

    Attributes:
        data: Which of its inputs is the data.
        weight: Which one is the weight.
        view: Dims that the weight is looked at with: groups get a dim of their own.
        takes: The axes of the view that count the channels of the data, in order.
        gives: Those that count the channels of the result.
        bias: Which input is the bias, None for an operator that has none.
        is_padded: Whether zeros are set around the data.
    """

    node: Node
    data: int
    weight: int
    tensor: TensorProto
    view: tuple[int, ...]
    takes: Axes
    gives: Axes
    source: Channels
    result: Channels
    bias: int | None = None
    is_padded: bool = False


def linear_of(node: Node, shapes: Shapes) -> Linear | Reason:
    """Return a node as a linear operator, or why it is none whose weight can change."""
    if not node.is_op(*LINEAR_OPERATORS):
        return Reason()
    return LINEAR_OPERATORS[node.op_type](node, shapes)


def _weight(value: Value | None) -> TensorProto | Reason:
    if value is None:
        return Reason()
    if value.constant is None:
        if value.producer is not None and value.producer.is_op("DequantizeLinear"):
            return Reason("the weight is quantised")
        has_default = value.kind == "input" and value.tensor is not None
        return Reason("the weight is an input with a default, which a caller may replace" if has_default else "")
    if value.constant.data_type not in FLOATS:
        return Reason("the weight is of a type that is not calculated with here")
    return value.constant


def _convolution(node: Node, _: Shapes) -> Linear | Reason:
    tensor, groups = _weight(node.input(1)), node.attr("group", 1)
    if isinstance(tensor, Reason):
        return tensor
    dims, is_transposed = tuple(tensor.dims), node.op_type == "ConvTranspose"
    if len(dims) < 3 or not groups or groups < 1 or dims[0] % groups:
        return Reason("the groups do not fit the weight")
    rank, (first, second) = len(dims), dims[:2]
    given, taken = (second * groups, first) if is_transposed else (first, second * groups)
    view: tuple[int, ...] = dims
    gives: Axes = (0,)
    takes: Axes = (1,)
    if groups > 1:
        view, gives, takes = (groups, first // groups, *dims[1:]), (0, 1), (0, 2)
    if is_transposed:
        gives, takes = takes, gives
    return Linear(
        node=node,
        data=0,
        weight=1,
        tensor=tensor,
        view=view,
        takes=takes,
        gives=gives,
        source=Channels(rank, 1, taken),
        result=Channels(rank, 1, given),
        bias=2,
        is_padded=_is_padded(node),
    )


def _is_padded(node: Node) -> bool:
    """Whether a convolution reads, or makes up, elements that are not in its data."""
    pads, automatic = node.attr("pads", ()), node.attr("auto_pad", "NOTSET")
    return node.op_type == "ConvTranspose" or pads is None or any(pads) or automatic not in ("NOTSET", "VALID")


def _gemm(node: Node, _: Shapes) -> Linear | Reason:
    tensor = _weight(node.input(1))
    if isinstance(tensor, Reason):
        return tensor
    if node.scope.opset() < BROADCAST_BIAS_SINCE or len(tensor.dims) != 2:
        return Reason("the Gemm is of an old operator set, or its weight is no matrix")
    takes, gives = (1, 0) if node.attr("transB", 0) else (0, 1)
    dims = tuple(tensor.dims)
    source = Channels(2, 0 if node.attr("transA", 0) else 1, dims[takes])
    return Linear(
        node=node,
        data=0,
        weight=1,
        tensor=tensor,
        view=dims,
        takes=(takes,),
        gives=(gives,),
        source=source,
        result=Channels(2, 1, dims[gives]),
        bias=2,
    )


def _matmul(node: Node, shapes: Shapes) -> Linear | Reason:
    if len(node.inputs) != 2:
        return Reason()
    is_right = node.inputs[1] is not None and node.inputs[1].constant is not None
    weight, data = (1, 0) if is_right else (0, 1)
    tensor, value = _weight(node.inputs[weight]), node.inputs[data]
    if isinstance(tensor, Reason):
        return tensor if tensor else next((r for r in [_weight(node.inputs[1])] if isinstance(r, Reason)), Reason())
    rank = shapes[value].rank if value is not None else None
    dims = tuple(tensor.dims)
    if rank is None:
        return Reason("the rank of the data is not known")
    if len(dims) < 2 or rank < 2:
        return Reason("the weight or the data is a vector")
    last, before = len(dims) - 1, len(dims) - 2
    takes, gives = (before, last) if is_right else (last, before)
    whole, axis = max(rank, len(dims)), -1 if is_right else -2
    source = Channels(rank, rank + axis, dims[takes])
    return Linear(
        node=node,
        data=data,
        weight=weight,
        tensor=tensor,
        view=dims,
        takes=(takes,),
        gives=(gives,),
        source=source,
        result=Channels(whole, whole + axis, dims[gives]),
    )


Reader = Callable[[Node, Shapes], Linear | Reason]
LINEAR_OPERATORS: Mapping[str, Reader] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
