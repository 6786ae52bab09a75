"""Merge a Slice with the Slice behind it where they cut different axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.graph.slice_bounds import INT64_MAX
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.shapes.tensor import numbers

__all__ = ["MergeSlices"]

BOUNDS_ARE_INPUTS_SINCE = 10
Bounds = dict[int, tuple[int, int, int]]  # by axis: start, end, step


@dataclass(frozen=True)
class MergeSlices(Rewrite):
    """Merge a Slice and the Slices that read it into Slices of more axes, such as `x[:, ::2]` and `[:, :, 1::2]`.

    Legality: each cuts other axes than the one before, all bounds are constant, and nothing else reads what is in
    between.

    Before:

        agraph (float[N, 4, 6] x) => (float[N, 2, 3] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9}> {
            rows = Slice (x, zero, end, one, two)
            y = Slice (rows, one, end, two, two)
        }

    After:

        agraph (float[N, 4, 6] x) => (float[N, 2, 3] y)
        <int64[2] y_starts = {0, 1}, int64[2] y_ends = {9, 9}, int64[2] y_axes = {1, 2}, int64[2] y_steps = {2, 2}> {
            y = Slice (x, y_starts, y_ends, y_axes, y_steps)
        }
    """

    def edit(self, editor: Editor) -> None:
        for first in editor.nodes("Slice"):
            source, between = first.input(0), first.outputs[0]
            if source is None or between is None or not between.consumers or editor.is_output(between):
                continue
            cuts = _bounds(editor, first)
            if cuts is None or not any(reader.is_op("Slice") for reader, _ in between.consumers):
                continue
            merged = {reader: _merged(editor, cuts, reader, index) for reader, index in between.consumers}
            if all(merged.values()):
                for reader, both in merged.items():
                    _slice(editor, reader, source, both or {})
                editor.note("Slice(s) merged with the one before", len(merged))


def _merged(editor: Editor, cuts: Bounds, reader: Node, index: int) -> Bounds | None:
    """Return the joint bounds of a Slice and the one that reads it; None if it is no Slice, or cuts the same axes."""
    if index != 0 or not reader.is_op("Slice") or not editor.is_free(reader):
        return None
    found = _bounds(editor, reader)
    return None if found is None or found.keys() & cuts.keys() else {**cuts, **found}


def _bounds(editor: Editor, node: Node) -> Bounds | None:
    """Return the bounds of a Slice, None if they are not all constant."""
    rank = editor.shapes[node.inputs[0]].rank if node.inputs[0] is not None else None
    starts, ends, axes, steps = (_integers(editor, node.input(index)) for index in range(1, 5))
    if node.scope.opset() < BOUNDS_ARE_INPUTS_SINCE or rank is None or not starts or ends is None:
        return None
    if (axes is None and node.input(3) is not None) or (steps is None and node.input(4) is not None):
        return None
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or not all(-rank <= axis < rank for axis in axes):
        return None
    found = {axis % rank: cut for axis, *cut in zip(axes, starts, ends, steps, strict=True)}
    return {axis: (cut[0], cut[1], cut[2]) for axis, cut in found.items()} if len(found) == len(axes) else None


def _integers(editor: Editor, value: Value | None) -> list[int] | None:
    array = numbers(editor.shapes[value]) if value is not None and value.is_constant else None
    if array is None or array.ndim != 1:
        return None
    found = [int(number) for number in array]
    return found if all(-INT64_MAX - 1 <= number <= INT64_MAX for number in found) else None


def _slice(editor: Editor, node: Node, source: Value, bounds: Bounds) -> None:
    out = node.outputs[0]
    assert out is not None
    names = ("starts", "ends", "axes", "steps")
    rows = [(*cut[:2], axis, cut[2]) for axis, cut in sorted(bounds.items())]
    columns = list(zip(*rows, strict=True))
    if set(columns[3]) == {1}:
        columns.pop()
    inputs = [
        editor.constant(np.array(column, np.int64), f"{out.name}_{name}")
        for name, column in zip(names, columns, strict=False)
    ]
    editor.replace(node, NewNode("Slice", [source, *inputs], [out.name], like=node))
