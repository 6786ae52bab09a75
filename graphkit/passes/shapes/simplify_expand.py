"""Simplify Expand and Tile: constant shapes, broadcasts that the consumers do anyway, copies that any NPU can make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.graph.new_nodes import make_concat, make_reshape
from graphkit.graph.operator_traits import broadcasts_inputs
from graphkit.graph.view import ZERO, Node
from graphkit.ops.tensor import Dims
from graphkit.passes.shapes.simplify_reshape import MAX_SIZE
from graphkit.rewrite import Builder, Editor, MatchFailure, NodeInput, NodeRewrite
from graphkit.shapes import Expr, const

EXPAND_SINCE = 8
BROADCAST_SINCE = 7
MULTIPLIED = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64}
MAX_ONES = 1 << 20


class CanonicalizeExpand(NodeRewrite):
    """Give each Expand a constant shape, or remove it if it changes nothing.

    A dim that the input already has is written as 1, which keeps it. The same holds for the repeats of a Tile that only
    repeats dims of 1. Legality: every dim that grows from 1 grows to a number.

    Before:

        agraph (float[N, 1, 4] x, float[N, 6, 4] z) => (float[N, 6, 4] y) {
            s = Shape (z)
            y = Expand (x, s)
        }

    After:

        agraph (float[N, 1, 4] x, float[N, 6, 4] z) => (float[N, 6, 4] y) <int64[3] y_shape = {1, 6, 1}> {
            y = Expand (x, y_shape)
        }
    """

    operators = ("Expand", "Tile")

    def edit_node(self, editor: Editor, node: Node) -> None:
        data, to, out = node.operand(0), node.input(1), node.result()
        before, after = map(editor.shapes.dims, (data, out))
        if to is None or before is None or after is None or node.scope.opset() < EXPAND_SINCE:
            return
        if node.is_op("Tile") and not _repeats_ones(before, after):
            return
        if before == after:
            if editor.bypass(node, data):
                editor.note(f"{node.op_type}(s) without effect removed")
            return
        spec = [size for size in expand_spec(before, after) if isinstance(size, int)]
        if len(spec) == len(after) and not to.is_constant:
            editor.set_inputs(node, {1: editor.integers(spec, f"{out.name}_shape")})
            editor.note(f"{node.op_type}(s) given a constant")


def _repeats_ones(before: Dims, after: Dims) -> bool:
    return len(before) == len(after) and all(dim in (1, grown) for dim, grown in zip(before, after, strict=True))


def expand_spec(before: Sequence[Expr], after: Sequence[Expr]) -> tuple[Expr | int, ...]:
    """Return the shape with which an Expand gives these dims: 1 where the input has them, numbers where it can be."""
    padded = [Expr.of(1)] * (len(after) - len(before)) + list(before)
    return tuple(
        1 if dim == grown else grown if (size := grown.constant) is None or size > MAX_SIZE else size
        for dim, grown in zip(padded, after, strict=True)
    )


class DropBroadcasts(NodeRewrite):
    """Remove an Expand, Tile or ConstantOfShape if all its consumers broadcast to the same shape without it.

    Legality: each consumer is an elementwise operator, and its other inputs alone have every dim that the Expand would
    give. An exponent stays, because onnxruntime rounds differently for a single exponent. A ConstantOfShape becomes a
    constant of one element.

    Before:

        agraph (float[N, 1, 1] x, float[N, H, L] z) => (float[N, H, L] y) {
            s = Shape (z)
            e = Expand (x, s)
            y = Add (e, z)
        }

    After:

        agraph (float[N, 1, 1] x, float[N, H, L] z) => (float[N, H, L] y) {
            y = Add (x, z)
        }
    """

    operators = ("Expand", "Tile", "ConstantOfShape")

    def edit_node(self, editor: Editor, node: Node) -> None:
        source, out, is_fill = node.operand(0), node.result(), node.is_op("ConstantOfShape")
        before, after = editor.shapes[source].dims, editor.shapes[out].dims
        if before is None or after is None or out.is_output:
            return
        if not out.consumers or (node.is_op("Tile") and not _repeats_ones(before, after)):
            return
        dims = (const(1),) * len(after) if is_fill else before
        seen = all(is_fill or editor.is_visible(source, reader.scope) for reader, _ in out.consumers)
        if not seen or not all(_broadcasts_alike(editor, *use, dims) for use in out.consumers):
            return
        new: NodeInput = source
        if is_fill:
            fill = editor.model.array(node.attr("value", ZERO) or ZERO).reshape(-1)[:1]
            new = editor.constant(fill.reshape((1,) * len(dims)), f"{out.name}_value")
        for reader, index in out.consumers:
            editor.set_inputs(reader, {index: new})
        editor.note(f"{node.op_type}(s) removed because the consumers broadcast")


def _broadcasts_alike(editor: Editor, consumer: Node, index: int, dims: Dims) -> bool:
    """Whether a consumer gives the same dims where one input has these."""
    if not broadcasts_inputs(consumer) or not editor.is_free(consumer) or consumer.outputs[0] is None:
        return False
    if consumer.op_type == "Pow" and index == 1:  # onnxruntime computes a single exponent of 2 or 3 by multiplication
        return False
    if sum(value is consumer.inputs[index] for value in consumer.inputs) > 1:
        return False
    others = [value for at, value in enumerate(consumer.inputs) if at != index and value is not None]
    known = [shape for value in others if (shape := editor.shapes[value].dims) is not None]
    after = editor.shapes[consumer.outputs[0]].dims
    return after is not None and len(known) == len(others) and broadcast_dims([dims, *known]) == after


def broadcast_dims(shapes: Iterable[Dims]) -> Dims | None:
    """Return the dims that shapes broadcast to, None where that is not certain at all legal dims."""
    all_dims = list(shapes)
    rank = max(map(len, all_dims))
    padded = [(const(1),) * (rank - len(dims)) + dims for dims in all_dims]
    result: list[Expr] = []
    for column in zip(*padded, strict=True):
        large = {dim for dim in column if dim != 1}
        if len(large) > 1:
            return None
        result.append(large.pop() if large else const(1))
    return tuple(result)


@dataclass(frozen=True)
class ExpandToBroadcast(NodeRewrite):
    """Replace Expand and Tile, which few NPUs have, by broadcasting operators, which all have.

    Where all consumers broadcast, the node goes (see `drop-broadcasts`). A few copies are put together by a Concat, as
    the heads of keys and values that several queries share are. Many copies of one position are a Mul by a constant of
    ones, which is exact for every number. Legality: the dims are numbers, and none that is repeated is 0; booleans and
    small integers, and copies of more than one position, are never a Mul.

    Attributes:
        copies: The most copies along an axis that are put together by a Concat.

    Before:

        agraph (float[2, 1, 5, 4] keys, float[2, 3, 1, 5] weights) => (float[2, 3, 1, 4] y)
        <int64[4] to = {1, 3, 1, 1}> {
            heads = Expand (keys, to)
            y = MatMul (weights, heads)
        }

    After:

        agraph (float[2, 1, 5, 4] keys, float[2, 3, 1, 5] weights) => (float[2, 3, 1, 4] y) {
            heads = Concat <axis = 1> (keys, keys, keys)
            y = MatMul (weights, heads)
        }
    """

    copies: int = 16

    operators = ("Expand", "Tile")

    def edit(self, editor: Editor) -> None:
        before = editor.changes.total()
        DropBroadcasts().edit(editor)
        if editor.changes.total() == before:  # what is left of an Expand is seen in the next round
            super().edit(editor)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data, out = node.operand(0), node.result()
        if editor.shapes[out].is_shape_like:
            return
        if node.scope.opset() < BROADCAST_SINCE:
            raise MatchFailure("operators of its opset do not broadcast")
        before, after = editor.shapes[data].sizes(), editor.shapes[out].sizes()
        if before is None or after is None:
            raise MatchFailure(f"its dims are not all numbers: {editor.shapes[out]}")
        padded = (1,) * (len(after) - len(before)) + before
        if any(small == 0 or large % small for small, large in zip(padded, after, strict=True) if small != large):
            raise MatchFailure("it repeats an axis without positions")
        repeats = [large // small if small != large else 1 for small, large in zip(padded, after, strict=True)]
        if 0 in repeats or (0 in before and before != padded):
            raise MatchFailure("it gives a tensor without elements")
        if math.prod(repeats) == 1 and before == after:
            editor.bypass(node, data)
            editor.note(f"{node.op_type} node(s) removed")
            return
        builder, dtype = Builder(editor, node), editor.shapes[data].dtype
        source: NodeInput = data
        if before != padded:
            source = builder.append(make_reshape(data, builder.integers(padded, "dims")))
        many = [count if count > self.copies else 1 for count in repeats]
        if math.prod(many) > 1:
            if any(count > 1 and dim != 1 for dim, count in zip(padded, many, strict=True)):
                raise MatchFailure(f"it makes more than {self.copies} copies of several positions")
            if dtype not in MULTIPLIED:
                raise MatchFailure(f"it makes more than {self.copies} copies of what is not multiplied")
            if math.prod(many) > MAX_ONES:
                raise MatchFailure(f"it makes {math.prod(many):,} copies")
            ones = builder.constant(np.ones(many, tensor_dtype_to_np_dtype(dtype)), "ones")
            source = builder.add("Mul", source, ones)
        for axis, count in reversed(list(enumerate(repeats))):
            if 1 < count <= self.copies:
                source = builder.append(make_concat([source] * count, axis))
        builder.replace()
        editor.note(f"{node.op_type} node(s) removed")
