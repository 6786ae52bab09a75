"""Simplify Concats: drop empty inputs, merge one into the next one, and join copies before they are reshaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.view import Node, Value
from graphkit.rewrite import Editor, NewNode, NodeRewrite, Rewrite

__all__ = ["DropEmptyParts", "JoinBeforeReshape", "MergeConcats"]


@dataclass(frozen=True)
class DropEmptyParts(Rewrite):
    """Drop the inputs of a Concat that have no elements, and the Concat itself if one input is left.

    A model that rotates whole heads is often exported with a Slice of the part that is not rotated, which is empty,
    and a Concat that puts it back. Legality: the dim along the axis is 0 at all legal input dims, the dims of the
    result stay the same, and if one input is left, it has the type of the result. If all inputs are empty, the
    first one stays.

    Before:

        agraph (float[N, L, 8] x) => (float[N, L, 8] y)
        <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] end = {9}, int64[1] last = {-1}> {
            head = Slice (x, zero, eight, last)
            tail = Slice (x, eight, end, last)
            turned = Neg (head)
            whole = Concat <axis = -1> (turned, tail)
            y = Abs (whole)
        }

    After:

        agraph (float[N, L, 8] x) => (float[N, L, 8] y)
        <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] last = {-1}> {
            head = Slice (x, zero, eight, last)
            turned = Neg (head)
            y = Abs (turned)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Concat"):
            parts = node.operands
            if len(parts) == len(node.inputs) > 1 and node.outputs and node.outputs[0] is not None:
                _drop_parts(editor, node, node.outputs[0], parts)


def _drop_parts(editor: Editor, node: Node, out: Value, parts: Sequence[Value]) -> None:
    kept = [value for value in parts if not _is_empty(editor, node, value)] or parts[:1]
    after, first = editor.shapes[out], editor.shapes[kept[0]]
    if len(kept) == len(parts) or after.dims is None:
        return
    if len(kept) > 1:
        attributes = {} if (axis := node.attr("axis", int)) is None else {"axis": axis}
        editor.replace(node, NewNode("Concat", kept, [out.name], attributes, like=node))
    elif first.dims != after.dims or first.dtype != after.dtype or not editor.bypass(node, kept[0]):
        return
    editor.note("input(s) without elements removed", len(parts) - len(kept))


def _is_empty(editor: Editor, node: Node, value: Value) -> bool:
    """Whether a part has no elements along the axis."""
    dims = editor.shapes[value].dims or ()
    axis = node.axis(len(dims), 1)
    return axis is not None and dims[axis] == 0


MAX_PARTS = 1024  # of a Concat: where one is read twice at each of many levels, the parts double with each


@dataclass(frozen=True)
class MergeConcats(Rewrite):
    """Merge a Concat into the Concats that read it, all along the same axis.

    Exporters write nested Concats for padding, for states of several layers, and for what a model joins step by step.
    Legality: the axes are equal, written as the same number or counted from the start, nothing but such Concats reads
    what is in between, and none gets more than 1,024 parts.

    Before:

        agraph (float[N, 2] x, float[N, L] z) => (float[N, M] y) {
            a = Neg (x)
            b = Concat <axis = 1> (x, a)
            y = Concat <axis = -1> (z, b, x)
        }

    After:

        agraph (float[N, 2] x, float[N, L] z) => (float[N, M] y) {
            a = Neg (x)
            y = Concat <axis = -1> (z, x, a, x)
        }
    """

    def edit(self, editor: Editor) -> None:
        for inner in editor.nodes("Concat"):
            joined = inner.outputs[0] if inner.outputs else None
            if joined is None or editor.is_output(joined) or joined in editor.new_reads:
                continue
            readers = list(dict.fromkeys(reader for reader, _ in joined.consumers))
            if readers and all(_continues_concat(editor, inner, joined, reader) for reader in readers):
                for reader in readers:
                    _merge_concats(editor, inner, joined, reader)
                editor.note("Concat(s) merged into the next one")


def _continues_concat(editor: Editor, inner: Node, joined: Value, reader: Node) -> bool:
    """Whether a reader joins the result of an inner Concat to more along the same axis."""
    if (
        not reader.is_op("Concat")
        or reader.outputs[0] is None
        or reader.scope is not inner.scope
        or not editor.is_free(reader)
    ):
        return False
    first, second = inner.attr("axis", int), reader.attr("axis", int)
    if first is None or second is None:
        return False
    rank = editor.shapes[joined].rank
    is_same_axis = first == second or bool(rank and first % rank == second % rank)
    return is_same_axis and len(_merged_parts(inner, joined, reader)) <= MAX_PARTS


def _merged_parts(inner: Node, joined: Value, reader: Node) -> list[Value | None]:
    """Return the parts of a reader with those of the inner Concat in its place."""
    return [part for value in reader.inputs for part in (inner.inputs if value is joined else (value,))]


def _merge_concats(editor: Editor, inner: Node, joined: Value, reader: Node) -> None:
    out = reader.result()
    parts, axis = _merged_parts(inner, joined, reader), reader.attr("axis", int)
    editor.replace(reader, NewNode("Concat", parts, [out.name], {"axis": axis}, like=reader))


RESHAPE_SINCE = 5


@dataclass(frozen=True)
class JoinBeforeReshape(NodeRewrite):
    """Join copies of a reshaped tensor along another axis before it is reshaped, so that one Reshape is left behind.

    So the heads of keys and values are copied that several queries share. RKNN-Toolkit2 2.5.0 fails on a Concat of one
    Reshape several times that another Reshape follows. Elements, and their order in memory, stay the same.

    Legality: the dims are numbers and none is 0; of the source, the axes before some axis have as many elements as
    those before the axis of the Concat; and the source has no more axes than its copies.

    Before:

        agraph (float[1, 2, 5, 4] keys) => (float[1, 6, 5, 4] heads)
        <int64[4] rows = {2, 1, 5, 4}, int64[4] all = {1, 6, 5, 4}> {
            r = Reshape (keys, rows)
            c = Concat <axis = 1> (r, r, r)
            heads = Reshape (c, all)
        }

    After:

        agraph (float[1, 2, 5, 4] keys) => (float[1, 6, 5, 4] heads)
        <int64[4] all = {1, 6, 5, 4}, int64[4] c_shape = {2, 3, 5, 4}> {
            c_joined = Concat <axis = 2> (keys, keys, keys)
            c = Reshape (c_joined, c_shape)
            heads = Reshape (c, all)
        }
    """

    operators: ClassVar[tuple[str, ...]] = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        copy, out = node.operand(0), node.result()
        maker, rank = copy.producer, editor.shapes[copy].rank
        if maker is None or not maker.is_op(*RESHAPING) or node.scope.opset() < RESHAPE_SINCE:
            return
        if any(value is not copy for value in node.inputs):
            return
        source, axis = maker.operand(0), node.axis(rank)
        before, reshaped, after = (editor.shapes[value].sizes() for value in (source, copy, out))
        if before is None or reshaped is None or after is None or axis is None or 0 in before:
            return
        outer = math.prod(reshaped[:axis])
        joined_axis = next((at for at in range(len(before)) if math.prod(before[:at]) == outer), None)
        if joined_axis is None or len(before) > len(reshaped):
            return
        joined = editor.unique_name(f"{out.name}_joined")
        editor.replace(
            node,
            NewNode("Concat", [source] * len(node.inputs), [joined], {"axis": joined_axis}, like=node),
            NewNode("Reshape", [joined, editor.integers(after, f"{out.name}_shape")], [out.name]),
        )
        editor.note("Concat(s) of copies moved before a Reshape")
