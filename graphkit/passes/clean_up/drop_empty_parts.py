"""Drop the inputs of a Concat that have no elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["DropEmptyParts"]


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
            parts = [value for value in node.inputs if value is not None]
            if len(parts) == len(node.inputs) > 1 and node.outputs and node.outputs[0] is not None:
                _drop(editor, node, node.outputs[0], parts)


def _drop(editor: Editor, node: Node, out: Value, parts: Sequence[Value]) -> None:
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
    dims, axis = editor.shapes[value].dims, node.attr("axis", 1)
    return dims is not None and axis is not None and -len(dims) <= axis < len(dims) and dims[axis] == 0
