"""Simplify Expand and Tile: constant shapes, and broadcasts that the consumers do anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.graph.attributes import ZERO
from graphkit.graph.operators import broadcasts
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NodeInput
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import MAX_SIZE
from graphkit.shapes import Expr, const
from graphkit.shapes.tensor import Dims

__all__ = ["CanonicalizeExpand", "DropBroadcasts", "broadcast", "expand_spec"]

EXPAND_SINCE = 8


@dataclass(frozen=True)
class CanonicalizeExpand(Rewrite):
    """Give each Expand a constant shape, or remove it if it changes nothing.

    A dim that the input already has is written as 1, which keeps it. The same holds for the repeats of a Tile that only
    repeats dims of 1. Legality: every dim that grows from 1 grows to a number.

    Before:

        agraph (float[N, 1, 4] x) => (float[N, 6, 4] y) <int64[1] six = {6}, int64[1] four = {4}> {
            s = Shape (x)
            zero = Constant <value_ints = [0]> ()
            n = Gather (s, zero)
            to = Concat <axis = 0> (n, six, four)
            y = Expand (x, to)
        }

    After:

        agraph (float[N, 1, 4] x) => (float[N, 6, 4] y) <int64[3] y_shape = {1, 6, 1}> {
            y = Expand (x, y_shape)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Expand", "Tile"):
            data, to, out = node.input(0), node.input(1), node.outputs[0]
            if data is None or to is None or out is None or node.scope.opset() < EXPAND_SINCE:
                continue
            before, after = map(editor.shapes.dims, (data, out))
            if before is None or after is None or not _is_expansion(node, before, after):
                continue
            if before == after:
                if editor.bypass(node, data):
                    editor.note(f"{node.op_type}(s) without effect removed")
                continue
            spec = expand_spec(before, after)
            if all(isinstance(size, int) for size in spec) and not to.is_constant:
                editor.set_inputs(node, {1: editor.integers([int(size) for size in spec], f"{out.name}_shape")})
                editor.note(f"{node.op_type}(s) given a constant")


def _is_expansion(node: Node, before: Dims, after: Dims) -> bool:
    """Whether every dim stays or grows from 1."""
    if node.op_type == "Expand":
        return True
    return len(before) == len(after) and all(one in (1, other) for one, other in zip(before, after, strict=True))


def expand_spec(before: Sequence[Expr], after: Sequence[Expr]) -> tuple[Expr | int, ...]:
    """Return the shape with which an Expand gives these dims: 1 where the input has them, numbers where it can be."""
    padded = [Expr.of(1)] * (len(after) - len(before)) + list(before)
    return tuple(
        1 if one == other else other if (size := other.constant) is None or size > MAX_SIZE else size
        for one, other in zip(padded, after, strict=True)
    )


@dataclass(frozen=True)
class DropBroadcasts(Rewrite):
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

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Expand", "Tile", "ConstantOfShape"):
            out = node.outputs[0]
            if out is None or editor.is_output(out) or not out.consumers:
                continue
            dims = _small(editor, node)
            if dims is None or not _all_broadcast(editor, node, out, dims):
                continue
            source: NodeInput = node.input(0)
            if node.op_type == "ConstantOfShape":
                source = editor.constant(fill(editor, node).reshape((1,) * len(dims)), f"{out.name}_value")
            for consumer, index in out.consumers:
                editor.set_inputs(consumer, {index: source})
            editor.note(f"{node.op_type}(s) removed because the consumers broadcast")


def _small(editor: Editor, node: Node) -> Dims | None:
    """Return the dims that the consumers would see instead of the node's output."""
    before, after = map(editor.shapes.dims, (node.input(0), node.outputs[0]))
    if before is None or after is None:
        return None
    if node.op_type == "ConstantOfShape":
        return (const(1),) * len(after)
    if node.op_type == "Tile" and any(one not in (1, other) for one, other in zip(before, after, strict=True)):
        return None
    return before


def fill(editor: Editor, node: Node) -> np.ndarray:
    """Return the element of a ConstantOfShape as an array of one element."""
    tensor = node.attr("value", ZERO)
    assert tensor is not None  # the model is sound
    return editor.model.array(tensor).reshape(-1)[:1]


def _all_broadcast(editor: Editor, node: Node, out: Value, dims: Dims) -> bool:
    source = None if node.op_type == "ConstantOfShape" else node.input(0)
    return all(_broadcasts(editor, consumer, index, dims, source) for consumer, index in out.consumers)


def _broadcasts(editor: Editor, consumer: Node, index: int, dims: Dims, source: Value | None) -> bool:
    """Whether a consumer gives the same dims where one input has these."""
    if not broadcasts(consumer) or not editor.is_free(consumer) or consumer.outputs[0] is None:
        return False
    if consumer.op_type == "Pow" and index == 1:  # onnxruntime computes a single exponent of 2 or 3 by multiplication
        return False
    if sum(value is consumer.inputs[index] for value in consumer.inputs) > 1:
        return False
    if source is not None and not editor.is_visible(source, consumer.scope):
        return False
    others = [editor.shapes[v].dims for i, v in enumerate(consumer.inputs) if i != index and v is not None]
    after = editor.shapes[consumer.outputs[0]].dims
    if after is None or any(other is None for other in others):
        return False
    return broadcast([dims, *(other for other in others if other is not None)]) == after


def broadcast(shapes: Iterable[Dims]) -> Dims | None:
    """Return the dims that shapes broadcast to, None where that is not certain at all legal dims."""
    found = list(shapes)
    rank = max(map(len, found))
    padded = [(const(1),) * (rank - len(dims)) + dims for dims in found]
    result: list[Expr] = []
    for column in zip(*padded, strict=True):
        large = {dim for dim in column if dim != 1}
        if len(large) > 1:
            return None
        result.append(large.pop() if large else const(1))
    return tuple(result)
