"""Simplify Slices: constant bounds, and chains that cut different axes merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx.helper

from graphkit.dtypes import INT64_MAX
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims, Tensor, element_number, element_numbers, is_to_the_end
from graphkit.rewrite import Editor, NewNode, Rewrite
from graphkit.shapes import Expr, lower, upper

__all__ = ["CanonicalizeSlice", "MergeSlices", "slice_bounds"]


@dataclass(frozen=True)
class CanonicalizeSlice(Rewrite):
    """Give each Slice of step 1 constant bounds, or remove it if it cuts nothing off.

    An end at or after the dim becomes the largest int64, and a bound that is the dim minus a number becomes negative.
    Legality: the bounds mean the same at all legal input dims; any other bound that depends on them is left.

    Before:

        agraph (float[N, L] x) => (float[M, K] y) <int64[1] zero = {0}, int64[1] one = {1}> {
            s = Shape (x)
            l = Gather (s, one)
            all = Slice (x, zero, l, one)
            from = Sub (l, one)
            end = Add (l, zero)
            last = Slice (all, from, end, one)
            y = Neg (last)
        }

    After:

        agraph (float[N, L] x) => (float[M, K] y)
        <int64[1] one = {1}, int64[1] last_starts = {-1}, int64[1] last_ends = {9223372036854775807}> {
            last = Slice (x, last_starts, last_ends, one)
            y = Neg (last)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Slice"):
            data, bounds = node.input(0), slice_bounds(editor, node)
            if node.scope.opset() < 10 or data is None or bounds is None:
                continue
            if all((start, end) == (0, INT64_MAX) for start, end in bounds):
                if editor.bypass(node, data):
                    editor.note("Slice(s) without effect removed")
                continue
            for index, side in ((1, 0), (2, 1)):
                _set_constant(editor, node, index, [pair[side] for pair in bounds])


def _set_constant(editor: Editor, node: Node, index: int, numbers: Sequence[Expr | int]) -> None:
    value, out = node.input(index), node.outputs[0]
    if value is None or value.is_constant or not all(isinstance(n, int) for n in numbers):
        return
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(editor.shapes[value].dtype))  # that of the other inputs
    most = int(np.iinfo(dtype).max)
    array = np.array([min(int(n), most) for n in numbers], dtype)
    name = f"{out.name if out is not None else node.label}_{'starts' if index == 1 else 'ends'}"
    editor.set_inputs(node, {index: editor.constant(array, name)})
    editor.note("bound(s) of Slices made constant")


def slice_bounds(editor: Editor, node: Node) -> list[tuple[Expr | int, Expr | int]] | None:
    """Return start and end for each axis of a Slice of step 1, numbers where they can be."""
    shapes = editor.shapes
    operands = [shapes[value] if (value := node.input(index)) is not None else None for index in range(5)]
    data, starts, ends, axes, steps = operands
    if data is None or starts is None or ends is None or data.dims is None:
        return None
    if steps is not None and not (steps.elements is not None and all(step == 1 for step in steps.elements)):
        return None
    lower_bounds, upper_bounds = starts.elements, ends.elements
    if lower_bounds is None or upper_bounds is None:
        return None
    if not all(isinstance(bound, Expr) for bound in lower_bounds + upper_bounds):
        return None
    positions = _constant_axes(axes, len(lower_bounds), data.dims)
    if positions is None or len(upper_bounds) != len(positions):
        return None
    return [
        (_plain_start(Expr.of(low), data.dims[axis]), _plain_end(Expr.of(high), data.dims[axis]))  # type: ignore[arg-type]
        for axis, low, high in zip(positions, lower_bounds, upper_bounds, strict=True)
    ]


def _constant_axes(axes: Tensor | None, count: int, dims: Dims) -> list[int] | None:
    if axes is None:
        return list(range(count)) if count <= len(dims) else None
    if axes.data is None:
        return None
    constants = [element_number(axis) for axis in axes.data.ravel().tolist()]
    if len(constants) != count or any(axis is None or not -len(dims) <= axis < len(dims) for axis in constants):
        return None
    return [axis % len(dims) for axis in constants if axis is not None]


def _plain_start(start: Expr, dim: Expr) -> Expr | int:
    if start.constant is not None:
        return 0 if -start.constant >= upper(dim) else start.constant
    from_end = (start - dim).constant
    return from_end if from_end is not None and from_end < 0 <= lower(start) else start


def _plain_end(end: Expr, dim: Expr) -> Expr | int:
    if lower(end - dim) >= 0 or is_to_the_end(end.constant):
        return INT64_MAX
    if end.constant is not None:
        return end.constant
    from_end = (end - dim).constant
    return from_end if from_end is not None and from_end < 0 <= lower(end) else end


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
            cuts = _constant_bounds(editor, first)
            if cuts is None or not any(reader.is_op("Slice") for reader, _ in between.consumers):
                continue
            merged = {reader: _merge_bounds(editor, cuts, reader, index) for reader, index in between.consumers}
            if all(merged.values()):
                for reader, both in merged.items():
                    _make_slice(editor, reader, source, both or {})
                editor.note("Slice(s) merged with the one before", len(merged))


def _merge_bounds(editor: Editor, cuts: Bounds, reader: Node, index: int) -> Bounds | None:
    """Return the joint bounds of a Slice and the one that reads it; None if it is no Slice, or cuts the same axes."""
    if index != 0 or not reader.is_op("Slice") or not editor.is_free(reader):
        return None
    reader_bounds = _constant_bounds(editor, reader)
    return None if reader_bounds is None or reader_bounds.keys() & cuts.keys() else {**cuts, **reader_bounds}


def _constant_bounds(editor: Editor, node: Node) -> Bounds | None:
    """Return the bounds of a Slice, None if they are not all constant."""
    rank = editor.shapes[node.inputs[0]].rank
    starts, ends, axes, steps = (_constant_integers(editor, node.input(index)) for index in range(1, 5))
    if node.scope.opset() < BOUNDS_ARE_INPUTS_SINCE or rank is None or not starts or ends is None:
        return None
    if (axes is None and node.input(3) is not None) or (steps is None and node.input(4) is not None):
        return None
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or not all(-rank <= axis < rank for axis in axes):
        return None
    by_axis = {axis % rank: cut for axis, *cut in zip(axes, starts, ends, steps, strict=True)}
    return {axis: (cut[0], cut[1], cut[2]) for axis, cut in by_axis.items()} if len(by_axis) == len(axes) else None


def _constant_integers(editor: Editor, value: Value | None) -> list[int] | None:
    array = element_numbers(editor.shapes[value]) if value is not None and value.is_constant else None
    if array is None or array.ndim != 1:
        return None
    integers = [int(number) for number in array]
    return integers if all(-INT64_MAX - 1 <= number <= INT64_MAX for number in integers) else None


def _make_slice(editor: Editor, node: Node, source: Value, bounds: Bounds) -> None:
    out = node.result()
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
