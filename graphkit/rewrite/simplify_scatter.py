"""Replace the Scatter of a sliced assignment by what it gives: the updates, or a Concat of slices."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph.view import Node, Value
from graphkit.rewrite.canonicalize_reshape import reshape_spec
from graphkit.rewrite.editor import Editor, NewNode, Source
from graphkit.rewrite.scatter_box import Box, NoBoxError, find_box
from graphkit.rewrite.sweep import Rewrite
from graphkit.shapes import Expr, lower
from graphkit.shapes.affine import AffineFinder

__all__ = ["SimplifyScatter"]

END = 2**63 - 1
MAX_SEARCH = 200  # tensors that are looked at for one that holds a bound


@dataclass(frozen=True)
class SimplifyScatter(Rewrite):
    """Replace a ScatterND or ScatterElements that writes a whole box by its updates, or by a Concat along one axis.

    `x[:, a:b] = v` is exported as a ScatterND whose indices are made of Range, Expand and Concat; it gives `v` where
    the box is all of x, else what of x is before the box, v, and what is after it. Legality: there is no reduction;
    each index goes up by one along one axis of the updates, each axis serves one index, in order; the box is all of x
    along all axes but one; it cannot lie outside of x unseen because it is empty; its bounds are numbers, count from
    the end, or are in a tensor that the indices are made of.

    Before:

        agraph (float[N, 5] x, float[N, 2] v) => (float[N, 5] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[2] columns = {0, 1}> {
            s = Shape (x)
            n = Gather (s, zero)
            range = Range (zero, n, one)
            rows = Unsqueeze (range, last)
            grid = Shape (v)
            i = Expand (rows, grid)
            j = Expand (columns, grid)
            a = Unsqueeze (i, last)
            b = Unsqueeze (j, last)
            at = Concat <axis = -1> (a, b)
            y = ScatterND (x, at, v)
        }

    After:

        agraph (float[N, 5] x, float[N, 2] v) => (float[N, 5] y)
        <int64[1] y_after_start = {2}, int64[1] y_after_end = {9223372036854775807}, int64[1] y_after_axis = {1}> {
            y_after = Slice (x, y_after_start, y_after_end, y_after_axis)
            y = Concat <axis = 1> (v, y_after)
        }
    """

    def edit(self, editor: Editor) -> None:
        finder = AffineFinder(editor.shapes)
        for node in editor.nodes("ScatterND", "ScatterElements"):
            if node.outputs[0] is None:
                continue
            try:
                box = find_box(editor.shapes, finder, node)
                _replace(editor, node, node.outputs[0], box)
            except NoBoxError as reason:
                editor.decline(node, str(reason))


def _replace(editor: Editor, node: Node, out: Value, box: Box) -> None:
    if len(box.partial) > 1:
        raise NoBoxError(f"it writes a part along more than one axis: {', '.join(map(str, box.partial))}")
    updates = node.inputs[2]
    assert updates is not None
    before = editor.shapes[updates].dims
    spec = reshape_spec(before, box.sizes) if before is not None and before != box.sizes else ()
    if spec is None:
        raise NoBoxError(f"its updates are {editor.shapes[updates]}, which no constant Reshape makes the box")
    if box.partial:
        _concat(editor, node, out, box, spec)
        editor.note("Scatters of a range are Concats of slices")
        return
    if spec:
        shape = editor.integers(spec, f"{out.name}_shape")
        editor.replace(node, NewNode("Reshape", [updates, shape], [out.name], like=node))
    else:
        editor.forward(node, updates)
    editor.note("Scatters that write everything are their updates")


def _concat(editor: Editor, node: Node, out: Value, box: Box, spec: tuple[int, ...]) -> None:
    """Put what is before the box, the updates and what is after the box, where these are, in the place of a node."""
    (axis,) = box.partial
    start, end, dim = box.starts[axis], box.starts[axis] + box.sizes[axis], box.dims[axis]
    if lower(dim - end) < 0 and box.may_be_empty(but=axis):
        raise NoBoxError("it may write nothing, past the end of its data")
    head = None if start == 0 else _bound(editor, node, start, dim)
    tail = None if end == dim else _bound(editor, node, end, dim)
    made: list[NewNode] = []
    parts: list[Source] = [node.inputs[2]]
    if spec:
        parts = [editor.fresh(f"{out.name}_updates")]
        shape = editor.integers(spec, f"{out.name}_updates_shape")
        made.append(NewNode("Reshape", [node.inputs[2], shape], [str(parts[0])]))
    if head is not None:
        parts.insert(0, _slice(editor, node.inputs[0], f"{out.name}_before", (0, head, axis), made))
    if tail is not None:
        parts.append(_slice(editor, node.inputs[0], f"{out.name}_after", (tail, END, axis), made))
    editor.replace(node, *made, NewNode("Concat", parts, [out.name], {"axis": axis}, like=node))


def _slice(
    editor: Editor, data: Value | None, wish: str, bounds: tuple[int | Value, int | Value, int], made: list[NewNode]
) -> str:
    """Make the slice of some data from a start to an end along an axis, and return its name."""
    name = editor.fresh(wish)
    inputs: list[Source] = [data]
    for bound, role in zip(bounds, ("start", "end", "axis"), strict=True):
        if isinstance(bound, int):
            inputs.append(editor.integers([bound], f"{name}_{role}"))
        elif editor.shapes[bound].rank == 0:
            inputs.append(editor.fresh(f"{name}_{role}"))
            made.append(NewNode("Reshape", [bound, editor.integers([1], f"{name}_one")], [str(inputs[-1])]))
        else:
            inputs.append(bound)
    made.append(NewNode("Slice", inputs, [name]))
    return name


def _bound(editor: Editor, node: Node, at: Expr, dim: Expr) -> int | Value:
    """Return a bound as a number, from the end where it is negative, or as a tensor that holds it."""
    if at.constant is not None:
        return at.constant
    from_end = (at - dim).constant
    if from_end is not None and from_end < 0:
        return from_end
    found = _holder(editor, node, at)
    if found is None:
        raise NoBoxError(f"no tensor that its indices are made of holds {at}, where its box starts or ends")
    return found


def _holder(editor: Editor, node: Node, number: Expr) -> Value | None:
    """Return a tensor of one int64, among those that the indices are made of, that is a number."""
    todo = [node.inputs[1]]
    seen: set[Value] = set()
    while todo and len(seen) < MAX_SEARCH:
        value = todo.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        tensor = editor.shapes[value]
        if tensor.dtype == TensorProto.INT64 and tensor.is_shape_like and tensor.elements == (number,):
            return value
        todo += value.producer.inputs if value.producer is not None else ()
    return None
