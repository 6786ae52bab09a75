"""Simplify Slices and Concats: constant bounds, merged chains, empty inputs dropped, steps spelled as reshapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx.helper

from graphkit.dtypes import INT64_MAX
from graphkit.graph.new_nodes import RESHAPE_SINCE, NodeInput, make_concat, make_reshape, make_slice
from graphkit.graph.operator_traits import RESHAPING, cut_bounds
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import element_number, element_numbers, is_to_the_end
from graphkit.rewrite import Builder, Editor, MatchFailure, NewNode, NodeRewrite
from graphkit.shapes import Expr, lower, upper

Bounds = dict[int, tuple[int, int, int]]  # by axis: start, end, step
MAX_PARTS = 1024  # of a Concat: where one is read twice at each of many levels, the parts double with each


class CanonicalizeSlice(NodeRewrite):
    """Give each Slice of step 1 constant bounds, or remove it if it cuts nothing off.

    An end at or after the dim becomes the largest int64, and a bound that is the dim minus a number becomes negative.
    What cuts one whole part out of a Concat, as an assignment to slices of zeros leaves it, is that part; what cuts
    within one part cuts that; and of several whole parts, which a Concat reads, these are joined. Legality:
    the bounds mean the same at all legal input dims; any other bound that depends on them is left.

    Before:

        agraph (float[N, L] x) => (float[M, K] y) <int64[1] zero = {0}, int64[1] one = {1}> {
            l = Shape <start = 1, end = 2> (x)
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

    operators = ("Slice",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        if (bounds := slice_bounds(editor, node)) is None:
            return
        if all((start, end) == (0, INT64_MAX) for start, end in bounds):
            if editor.bypass(node, node.operand(0)):
                editor.note("Slice(s) without effect removed")
            return
        if (found := _find_joined_parts(editor, node, bounds)) is not None and _cut_parts(editor, node, *found):
            editor.note("Slice(s) of parts of a Concat moved to these")
            return
        for index in (1, 2):
            value, numbers = node.operand(index), [n for pair in bounds if isinstance(n := pair[index - 1], int)]
            if value.is_constant or len(numbers) < len(bounds):
                continue
            editor.set_inputs(node, {index: _make_bounds(editor, node, index, numbers)})
            editor.note("bound(s) of Slices made constant")


def _make_bounds(editor: Editor, node: Node, index: int, numbers: Sequence[int]) -> str:
    """Return the name of a constant of starts or ends, the input 1 or 2 of a Slice, of the dtype that it has."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(editor.shapes[node.operand(index)].dtype))
    array = np.array([min(number, int(np.iinfo(dtype).max)) for number in numbers], dtype)
    return editor.constant(array, f"{node.result().name}_{'starts' if index == 1 else 'ends'}")


def _cut_parts(editor: Editor, node: Node, axis: int, parts: list[Value], within: list[int]) -> bool:
    """Cut out of the parts of a Concat what a Slice cuts out of it; return whether that was done."""
    out = node.result()
    if within:
        bounds = {index: _make_bounds(editor, node, index, [number]) for index, number in enumerate(within, 1)}
        editor.set_inputs(node, {0: parts[0], **bounds})
    elif len(parts) == 1:
        return editor.shapes[parts[0]].dims == editor.shapes[out].dims and editor.bypass(node, parts[0])
    else:
        readers = [reader for reader, _ in out.consumers if reader.is_op("Concat")]
        is_merged = bool(readers) and len(readers) == len(out.consumers) and not out.is_output
        if not is_merged or any(reader.axis(len(editor.shapes[out].dims or ())) != axis for reader in readers):
            return False  # a Concat that is not merged into the next one gains nothing
        editor.replace(node, make_concat(parts, axis, out.name, like=node))
    return True


def _find_joined_parts(
    editor: Editor, node: Node, bounds: list[tuple[Expr | int, Expr | int]]
) -> tuple[int, list[Value], list[int]] | None:
    """Return the axis of a Concat that a Slice cuts, and what it cuts out: whole parts, or numbers within one."""
    joined, named = node.operand(0), node.input(3)
    concat, dims, axes = joined.producer, editor.shapes[joined].dims, editor.shapes[named].elements if named else None
    if concat is None or not concat.is_op("Concat") or dims is None or len(bounds) != 1 or (named and not axes):
        return None
    axis = concat.axis(len(dims))
    cut = element_number(axes[0]) if axes else 0
    if axis is None or cut is None or cut % len(dims) != axis:
        return None
    low, high = (_count_from_start(at, dims[axis]) for at in bounds[0])
    start, whole = Expr.of(0), list[Value]()
    for part in concat.operands:
        if (sizes := editor.shapes[part].dims) is None or len(sizes) != len(dims):
            return None
        end = start + sizes[axis]
        if whole or start == low:
            whole.append(part)
            if end == high:
                return axis, whole, []
        before, inside, behind = (each.constant for each in (low - start, high - low, end - high))
        if before is not None and inside is not None and behind is not None and min(before, inside, behind) >= 0:
            return axis, [part], [before, before + inside]
        start = end
    return None


def _count_from_start(bound: Expr | int, dim: Expr) -> Expr:
    if bound == INT64_MAX:
        return dim
    return dim + bound if isinstance(bound, int) and bound < 0 else Expr.of(bound)


def slice_bounds(editor: Editor, node: Node) -> list[tuple[Expr | int, Expr | int]] | None:
    """Return start and end for each axis of a Slice of step 1, numbers where they can be."""
    operands = [editor.shapes[value] if value is not None else None for value in (node.input(0), *cut_bounds(node))]
    data, starts, ends, axes, steps = operands if len(operands) > 1 else [None] * 5
    if data is None or starts is None or ends is None or data.dims is None:
        return None
    if steps is not None and not (steps.elements is not None and all(step == 1 for step in steps.elements)):
        return None
    lower_bounds, upper_bounds = starts.elements, ends.elements
    if lower_bounds is None or upper_bounds is None:
        return None
    if not all(isinstance(bound, Expr) for bound in lower_bounds + upper_bounds):
        return None
    rank, named = len(data.dims), range(len(lower_bounds)) if axes is None else axes.elements or ()
    positions = [axis for each in named if (axis := element_number(each)) is not None and -rank <= axis < rank]
    if not len(positions) == len(named) == len(lower_bounds) == len(upper_bounds):
        return None
    return [
        (_plain_start(Expr.of(low), data.dims[axis]), _plain_end(Expr.of(high), data.dims[axis]))  # type: ignore[arg-type]
        for axis, low, high in zip(positions, lower_bounds, upper_bounds, strict=True)
    ]


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


class MergeSlices(NodeRewrite):
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

    operators = ("Slice",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        source, between = node.operand(0), node.result()
        uses, cuts = between.consumers, constant_bounds(editor, node)
        if cuts is None or between.is_output or not any(reader.is_op("Slice") for reader, _ in uses):
            return
        merged: dict[Node, Bounds] = {}
        for reader, index in uses:
            is_mergeable = index == 0 and reader.is_op("Slice") and editor.is_free(reader)
            bounds = constant_bounds(editor, reader) if is_mergeable else None
            if bounds is None or bounds.keys() & cuts.keys():
                return
            merged[reader] = {**cuts, **bounds}
        for reader, both in merged.items():
            rows = [(*cut[:2], axis, cut[2]) for axis, cut in sorted(both.items())]
            columns = dict(zip(("starts", "ends", "axes", "steps"), zip(*rows, strict=True), strict=True))
            if set(columns["steps"]) == {1}:
                del columns["steps"]
            base = reader.result().name
            inputs = [editor.constant(np.array(c, np.int64), f"{base}_{name}") for name, c in columns.items()]
            editor.replace(reader, make_slice(source, *inputs, out=base, like=reader))
        editor.note("Slice(s) merged with the one before", len(merged))


def constant_bounds(editor: Editor, node: Node) -> Bounds | None:
    """Return what a Slice with constant bounds cuts, by axis; None where that is not known."""
    rank = editor.shapes[node.inputs[0]].rank
    bounds = cut_bounds(node) or [None] * 4
    starts, ends, axes, steps = (_constant_integers(editor, value) for value in bounds)
    if rank is None or not starts or ends is None:
        return None
    if (axes is None and bounds[2] is not None) or (steps is None and bounds[3] is not None):
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


class DropEmptyParts(NodeRewrite):
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

    operators = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        parts, out = node.operands, node.result()
        shapes = [editor.shapes[value].dims or () for value in parts]
        axes = [node.axis(len(dims), 1) if 0 in dims else None for dims in shapes]
        is_empty = [axis is not None and dims[axis] == 0 for dims, axis in zip(shapes, axes, strict=True)]
        kept = [value for value, empty in zip(parts, is_empty, strict=True) if not empty] or parts[:1]
        after, first = editor.shapes[out], editor.shapes[kept[0]]
        if not len(node.inputs) == len(parts) > len(kept) or after.dims is None:
            return
        if len(kept) > 1:
            editor.replace(node, make_concat(kept, node.attr("axis", int), out.name, like=node))
        elif first.dims != after.dims or first.dtype != after.dtype or not editor.bypass(node, kept[0]):
            return
        editor.note("input(s) without elements removed", len(parts) - len(kept))


class MergeConcats(NodeRewrite):
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

    operators = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        joined, first, rank = node.result(), node.attr("axis", int), editor.shapes[node.result()].rank
        if joined.is_output or joined in editor.new_reads:
            return
        merged: dict[Node, NewNode] = {}
        for reader in dict.fromkeys(reader for reader, _ in joined.consumers):
            if not reader.is_op("Concat") or reader.outputs[0] is None or reader.scope is not node.scope:
                return
            second = reader.attr("axis", int)
            if first is None or second is None or not editor.is_free(reader):
                return
            is_same_axis = first == second or bool(rank and first % rank == second % rank)
            parts = [part for value in reader.inputs for part in (node.inputs if value is joined else (value,))]
            if not is_same_axis or len(parts) > MAX_PARTS:
                return
            merged[reader] = make_concat(parts, second, reader.result().name, like=reader)
        for reader, new in merged.items():
            editor.replace(reader, new)
        if merged:
            editor.note("Concat(s) merged into the next one")


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

    operators = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        copy, out = node.operand(0), node.result()
        maker, rank = copy.producer, editor.shapes[copy].rank
        if maker is None or maker.operator not in RESHAPING or node.scope.opset() < RESHAPE_SINCE:
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
            make_concat([source] * len(node.inputs), joined_axis, joined, like=node),
            editor.make_reshape(joined, after, out.name),
        )
        editor.note("Concat(s) of copies moved before a Reshape")


class SliceStepsToReshape(NodeRewrite):
    """Spell a Slice of every n-th element as one of step 1 between two Reshapes, as of the pairs of rotary embeddings.

    Several axes are cut one after the other. Legality: all dims are numbers, n divides the length of each axis, and
    nothing but the offset is left out of it.

    Before:

        agraph (float[1, 2, 6] x) => (float[1, 2, 3] y)
        <int64[1] from = {1}, int64[1] end = {6}, int64[1] axis = {2}, int64[1] step = {2}> {
            y = Slice (x, from, end, axis, step)
        }

    After:

        agraph (float[1, 2, 6] x) => (float[1, 2, 3] y)
        <int64[3] y_groups = {2, 3, 2}, int64[1] y_from = {1}, int64[1] y_to = {2}, int64[3] y_shape = {1, 2, 3}> {
            y_apart = Reshape (x, y_groups)
            y_one = Slice (y_apart, y_from, y_to, y_to)
            y = Reshape (y_one, y_shape)
        }
    """

    operators = ("Slice",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data, out, cuts = node.operand(0), node.result(), constant_bounds(editor, node)
        dims, after = editor.shapes[data].sizes(), editor.shapes[out].sizes()
        if not cuts or any(step < 2 for _, _, step in cuts.values()) or dims is None or after is None or 0 in dims:
            return
        builder, sizes, value = Builder(editor, node), [*dims], cast(NodeInput, data)
        for axis, (first, _, step) in cuts.items():
            start = first + dims[axis] if first < 0 else first
            if dims[axis] % step or not 0 <= start < step or after[axis] * step != dims[axis]:
                raise MatchFailure(f"it takes some of every {step} elements")
            groups = [math.prod(sizes[:axis]), sizes[axis] // step, step, math.prod(sizes[axis + 1 :])]
            groups = groups if groups[3] > 1 else groups[:3]
            sizes[axis] //= step
            apart = builder.append(make_reshape(value, builder.integers(groups, "groups")), "apart")
            bounds = [builder.integers([at], name) for at, name in ((start, "from"), (start + 1, "to"), (2, "axis"))]
            value = builder.append(make_slice(apart, *bounds), "one")
        builder.append(make_reshape(value, builder.integers(after, "shape")))
        builder.replace()
        editor.note("Slice(s) of every n-th element spelled as Reshapes")
