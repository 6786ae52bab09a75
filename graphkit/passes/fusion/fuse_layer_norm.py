"""Put the operators of a layer normalization into one LayerNormalization."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import has_attributes_only
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite
from graphkit.rewrite.pattern import Match, Number, Op, Pattern, nodes_of

LAYER_NORM_SINCE = 17
MAX_ONES = 1 << 18  # elements of a scale of ones, where there is none

DATA, EPSILON = Pattern(), Pattern()
MEAN = Op("ReduceMean", DATA, more=True)
CENTRED = Op("Sub", DATA, MEAN)
SQUARE = Op("Pow", CENTRED, Number(2)) | Op("Mul", CENTRED, CENTRED)
VARIANCE = Op("ReduceMean", SQUARE, more=True)
POSITIVE = Op("Add", VARIANCE, EPSILON)
DEVIATION = Op("Sqrt", POSITIVE)
INVERSE = Op("Reciprocal", DEVIATION) | Op("Div", Number(1), DEVIATION)
NORMAL = Op("Div", CENTRED, DEVIATION) | Op("Mul", CENTRED, INVERSE)
STASHED = (TensorProto.FLOAT, TensorProto.FLOAT16)  # whose mean and deviation are computed in float32


class FuseLayerNorm(NodeRewrite):
    """Put (x - mean) / sqrt(variance + epsilon) * scale + bias into one LayerNormalization.

    A kernel may add up in another order: the last digits of results may change. Of float16 the mean and the deviation
    are computed in float32.

    Legality: opset 17 or newer; float32 or float16; both means are over the same last axes, which they keep; epsilon is
    one constant number; nothing else reads what is in between. The square may be a Pow or a Mul, the division a Div or
    a Mul with the inverse; Casts around it, from float16 and back, go too. The scale and the bias have the dims of the
    axes; where there is no scale, these dims are constant.

    Before:

        agraph (float[N, 2] x, float[2] s, float[2] b) => (float[N, 2] y) <float two = {2.0}, float small = {0.5}> {
            mean = ReduceMean <axes = [-1]> (x)
            centred = Sub (x, mean)
            square = Pow (centred, two)
            variance = ReduceMean <axes = [-1]> (square)
            positive = Add (variance, small)
            deviation = Sqrt (positive)
            normal = Div (centred, deviation)
            scaled = Mul (normal, s)
            y = Add (scaled, b)
        }

    After:

        agraph (float[N, 2] x, float[2] s, float[2] b) => (float[N, 2] y) {
            y = LayerNormalization <axis = -1, epsilon = 0.5> (x, s, b)
        }
    """

    largest_error = ROUNDING
    operators = ("Sqrt",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        norm = _match_norm(editor, node)
        if not all(map(editor.is_free, norm.nodes)):
            return
        scale: NodeInput = norm.scale
        if scale is None:
            ones = np.ones([dim.constant or 0 for dim in norm.axes], FLOATS[norm.dtype])
            scale = editor.constant(ones, f"{norm.out.name}_scale")
        inputs = [norm.data, scale] if norm.bias is None else [norm.data, scale, norm.bias]
        attributes, last = {"axis": -len(norm.axes), "epsilon": norm.epsilon}, norm.nodes[-1]
        editor.replace(last, NewNode("LayerNormalization", inputs, [norm.out.name], attributes, like=last))
        for inner in norm.nodes[:-1]:
            editor.take(inner)
        editor.note("LayerNormalization(s) put together")


class _Norm(Struct):
    nodes: list[Node]  # all its nodes; the last one gives the result
    data: Value  # the tensor that is normalized
    axes: Dims  # the dims that are normalized, the last ones of the data
    epsilon: float
    scale: Value | None = None  # none for ones
    bias: Value | None = None  # none for zeros
    dtype: int = TensorProto.FLOAT

    @property
    def out(self) -> Value:
        return self.nodes[-1].result()


def _match_norm(editor: Editor, root: Node) -> _Norm:
    shapes, deviation = editor.shapes, root.result()
    match = DEVIATION.match(editor, deviation)
    if match is None or shapes[match[SQUARE]].dims != shapes[match[CENTRED]].dims:
        raise MatchFailure
    match = _match_quotient(editor, deviation, match)
    if root.scope.opset() < LAYER_NORM_SINCE:
        raise MatchFailure(f"its opset is older than {LAYER_NORM_SINCE}, which has LayerNormalization")
    inner = nodes_of(match, MEAN, CENTRED, SQUARE, VARIANCE, POSITIVE, DEVIATION, INVERSE, NORMAL)
    data, dims = match[DATA], shapes[match[DATA]].dims
    if dims is None:
        raise MatchFailure("the rank of its data is not known")
    mean, variance = nodes_of(match, MEAN, VARIANCE)
    count = _count_mean_axes(editor, mean, len(dims))
    if count is None or count != _count_mean_axes(editor, variance, len(dims)):
        raise MatchFailure("its means are not over the same last axes, which they keep")
    epsilon = editor.uniform(match[EPSILON])
    if epsilon is None or shapes[match[POSITIVE]].dims != shapes[match[VARIANCE]].dims:
        raise MatchFailure("its epsilon is not one constant number")
    for node in inner[:-1]:
        out = node.result()
        if out.is_output or any(reader not in inner for reader, _ in out.consumers):
            raise MatchFailure(f"'{out.name}' is read elsewhere too")
    norm = _Norm(inner, data, dims[len(dims) - count :], epsilon, dtype=shapes[data].dtype)
    cast, maker = editor.only_reader(norm.out), norm.data.producer
    if norm.dtype == TensorProto.FLOAT and cast is not None and cast.is_op("Cast") and maker and maker.is_op("Cast"):
        source = maker.input(0)
        if source is not None and editor.shapes[source].dtype == cast.attr("to", 0) == TensorProto.FLOAT16:
            norm.nodes.append(cast)
            norm.data, norm.dtype = source, TensorProto.FLOAT16
    if norm.dtype not in STASHED:
        raise MatchFailure("LayerNormalization computes its mean in float32")
    norm.scale = _reader_operand(editor, norm, "Mul")
    norm.bias = _reader_operand(editor, norm, "Add")
    sizes = [dim.constant for dim in norm.axes]
    if norm.scale is None and (None in sizes or math.prod(size or 0 for size in sizes) > MAX_ONES):
        raise MatchFailure("it has no scale, and would need one of unknown or great size")
    return norm


def _match_quotient(editor: Editor, deviation: Value, match: Match) -> Match:
    reader = editor.only_reader(deviation)
    product = editor.only_reader(reader.result()) if reader is not None else None
    for node in (reader, product):
        quotient = NORMAL.match(editor, node.result(), match) if node is not None else None
        if quotient and editor.shapes[quotient.get(INVERSE, deviation)].dims == editor.shapes[deviation].dims:
            return quotient
    raise MatchFailure("what is centred is not all that is divided by its deviation")


def _count_mean_axes(editor: Editor, mean: Node, rank: int) -> int | None:
    """Return over how many axes a ReduceMean goes, None where they are not the last ones, or do not stay."""
    axes = mean.attr("axes", tuple) if has_attributes_only(mean) else editor.known_integers(mean.input(1))
    if not axes or mean.attr("keepdims", 1) != 1:
        return None
    sorted_axes = sorted(axis % rank for axis in axes)
    return len(sorted_axes) if sorted_axes == list(range(rank - len(sorted_axes), rank)) else None


def _reader_operand(editor: Editor, norm: _Norm, op_type: str) -> Value | None:
    """Return the operand of a normalization's only reader, a Mul or Add, which becomes part of it."""
    node = editor.only_reader(norm.out)
    if node is None or not node.is_op(op_type) or len(node.inputs) != 2:
        return None
    operand = node.inputs[1] if node.inputs[0] is norm.out else node.inputs[0]
    if operand is None or editor.shapes[operand].dims != norm.axes or not editor.is_free(node):
        return None
    norm.nodes.append(node)
    return operand
