"""Give each Slice constant bounds where possible, and remove a Slice that takes everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx.helper

from graphkit.graph.slice_bounds import INT64_MAX, is_to_the_end
from graphkit.graph.view import Node
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.shapes import Expr, lower, upper
from graphkit.shapes.tensor import Dims, Tensor, number

__all__ = ["CanonicalizeSlice", "slice_bounds"]


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
    given = [shapes[value] if (value := node.input(index)) is not None else None for index in range(5)]
    data, starts, ends, axes, steps = given
    if data is None or starts is None or ends is None or data.dims is None:
        return None
    if steps is not None and not (steps.elements is not None and all(step == 1 for step in steps.elements)):
        return None
    lower_bounds, upper_bounds = starts.elements, ends.elements
    if lower_bounds is None or upper_bounds is None:
        return None
    if not all(isinstance(bound, Expr) for bound in lower_bounds + upper_bounds):
        return None
    positions = _axes(axes, len(lower_bounds), data.dims)
    if positions is None or len(upper_bounds) != len(positions):
        return None
    return [
        (_start(Expr.of(low), data.dims[axis]), _end(Expr.of(high), data.dims[axis]))  # type: ignore[arg-type]
        for axis, low, high in zip(positions, lower_bounds, upper_bounds, strict=True)
    ]


def _axes(axes: Tensor | None, count: int, dims: Dims) -> list[int] | None:
    if axes is None:
        return list(range(count)) if count <= len(dims) else None
    if axes.data is None:
        return None
    found = [number(axis) for axis in axes.data.ravel().tolist()]
    if len(found) != count or any(axis is None or not -len(dims) <= axis < len(dims) for axis in found):
        return None
    return [axis % len(dims) for axis in found if axis is not None]


def _start(start: Expr, dim: Expr) -> Expr | int:
    if start.constant is not None:
        return 0 if -start.constant >= upper(dim) else start.constant
    from_end = (start - dim).constant
    return from_end if from_end is not None and from_end < 0 <= lower(start) else start


def _end(end: Expr, dim: Expr) -> Expr | int:
    if lower(end - dim) >= 0 or is_to_the_end(end.constant):
        return INT64_MAX
    if end.constant is not None:
        return end.constant
    from_end = (end - dim).constant
    return from_end if from_end is not None and from_end < 0 <= lower(end) else end
