"""Replace the Scatter of a sliced assignment by its updates, or by a Concat of slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph.slice_bounds import INT64_MAX
from graphkit.graph.view import Node, Value
from graphkit.graph.walk import reachable
from graphkit.passes.shapes.dead_after_removal import dead_after_removal
from graphkit.passes.shapes.scatter_box import Box, NoBoxError, find_box
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import Expr, const, lower
from graphkit.shapes.expr import Call
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["SimplifyScatter"]

Planned = Mapping[Node, Sequence[NewNode]]  # what takes the place of a node


@dataclass(frozen=True)
class SimplifyScatter(Rewrite):
    """Replace a ScatterND or ScatterElements that writes a range along each axis by its updates, or by Concats.

    `x[:, a:b] = v` is exported as a ScatterND whose indices come from Range, Expand and Concat. The result is v if the
    ranges cover x; otherwise it is the part of x before them, v, and the part after them, axis by axis. Legality: there
    is no reduction; each index increases by one along one axis of the updates, and each axis serves one index, in
    order; no range can hide outside x because another one is empty; the sign of each index is known; each bound is a
    number, counts from the end, or is held by a tensor from which the indices are computed.

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

    Attributes:
        sparing: Whether one stays that would leave more nodes than go, as `fold --fuse` has it: where the indices are
            constant, a ScatterND is one node.
    """

    sparing: bool = False

    def edit(self, editor: Editor) -> None:
        ranges = ValueRangeAnalysis(editor.shapes.model, editor.shapes.__getitem__)
        planned: dict[Node, Sequence[NewNode]] = {}
        for node in editor.nodes("ScatterND", "ScatterElements"):
            if node.outputs[0] is None:
                continue
            try:
                box = find_box(editor.shapes, ranges, node)
                if box.partial:
                    planned[node] = _planned(editor, node, node.outputs[0], box)
                else:
                    _bypass(editor, node, node.outputs[0], box)
            except NoBoxError as reason:
                editor.decline(node, str(reason))
        for node, nodes in (_spared(editor, planned) if self.sparing else planned).items():
            editor.replace(node, *nodes)
            editor.note("Scatter(s) of a range replaced by Concats of slices")


def _planned(editor: Editor, node: Node, out: Value, box: Box) -> list[NewNode]:
    """Return the nodes that take the place of a Scatter which writes a part of its data."""
    updates, spec = _updates(editor, node, box)
    plan = _Plan(editor, node, out, box)
    return plan.nodes(updates, spec, [plan.bounds(axis) for axis in box.partial])


def _bypass(editor: Editor, node: Node, out: Value, box: Box) -> None:
    """Let the updates take the place of a Scatter which writes all of its data."""
    updates, spec = _updates(editor, node, box)
    if spec:
        shape = editor.integers(spec, f"{out.name}_shape")
        editor.replace(node, NewNode("Reshape", [updates, shape], [out.name], like=node))
    else:
        editor.bypass(node, updates)
    editor.note("Scatter(s) of a whole tensor replaced by the updates")


def _updates(editor: Editor, node: Node, box: Box) -> tuple[Value, Sequence[int]]:
    """Return the updates of a Scatter, and the shape that makes them the box where they need one."""
    updates = node.inputs[2]
    assert updates is not None
    before = editor.shapes[updates].dims
    spec = reshape_spec(before, box.sizes) if before is not None and before != box.sizes else ()
    if spec is None:
        raise NoBoxError(f"its updates are {editor.shapes[updates]}, which no constant Reshape makes the box")
    return updates, spec


def _spared(editor: Editor, planned: Planned) -> Planned:
    """Return the rewrites that add no nodes: all at once, which may share nodes that compute indices, or each."""
    if _is_worth_it(editor, planned):
        return planned
    return {node: nodes for node, nodes in planned.items() if _is_worth_it(editor, {node: nodes})}


def _is_worth_it(editor: Editor, planned: Planned) -> bool:
    made = [new for nodes in planned.values() for new in nodes]
    kept = {source for new in made for source in new.inputs if isinstance(source, Value)}
    return len(made) <= len(dead_after_removal(editor, planned, kept))


Bound = int | Value


@dataclass(frozen=True)
class _Range:
    """A part of an axis: from a start to an end, each a number, or a tensor that holds it."""

    axis: int
    start: Bound
    end: Bound


class _Plan:
    """The nodes that take the place of a Scatter which writes a box that is not all of its data."""

    def __init__(self, editor: Editor, node: Node, out: Value, box: Box) -> None:
        self.editor, self.node, self.out, self.box = editor, node, out, box
        self.made: list[NewNode] = []

    def bounds(self, axis: int) -> _Range:
        """Return where the box lies along an axis.

        Raises:
            NoBoxError: A bound is neither a number nor in a tensor.
        """
        start, size, dim = self.box.starts[axis], self.box.sizes[axis], self.box.dims[axis]
        end = start + size
        if lower(dim - end) < 0 and self.box.may_be_empty(but=axis):
            raise NoBoxError("it may write nothing, past the end of its data")
        return _Range(axis, self._bound(start, dim), INT64_MAX if lower(end - dim) >= 0 else self._bound(end, dim))

    def _bound(self, at: Expr, dim: Expr) -> Bound:
        """Return a bound as a Slice takes it: from the end where it is negative, within the dim where it is not."""
        at = _other(at, "min", dim)
        from_end = (_other(at, "max", const(0)) - dim).constant
        if at.constant is not None:
            return at.constant
        if from_end is not None and from_end < 0:
            return from_end
        holder = self._holder(at) if lower(at) >= 0 else None
        if holder is None:
            raise NoBoxError(f"no tensor that its indices are made of holds {at}, where its box starts or ends")
        return holder

    def _holder(self, number: Expr) -> Value | None:
        """Return a tensor of one int64, among those that the indices are made of, that is a number."""
        indices = self.node.input(1)
        for value in reachable([indices] if indices is not None else [], _inputs):
            tensor = self.editor.shapes[value]
            if tensor.dtype == TensorProto.INT64 and tensor.is_shape_like and tensor.elements == (number,):
                return value
        return None

    def nodes(self, updates: Value, spec: Sequence[int], ranges: Sequence[_Range]) -> list[NewNode]:
        """Return the nodes, given the shape that makes the updates the box where they need one."""
        source: NodeInput = updates
        if spec:
            shape = self.editor.integers(spec, f"{self.out.name}_updates_shape")
            source = self._make("Reshape", [updates, shape], "updates")
        self._concat(self.node.inputs[0], source, ranges, self.out.name, self.node)
        return self.made

    def _concat(
        self, data: NodeInput, updates: NodeInput, ranges: Sequence[_Range], out: str, like: Node | None
    ) -> None:
        """Concatenate the data before the box, the box and the data after it along the first axis of these."""
        here, *inner = ranges
        parts: list[NodeInput] = []
        if here.start != 0:
            parts.append(self._slice(data, "before", _Range(here.axis, 0, here.start)))
        if inner:
            parts.append(name := self.editor.unique_name(f"{self.out.name}_inner"))
            self._concat(self._slice(data, "middle", here), updates, inner, name, None)
        else:
            parts.append(updates)
        if here.end != INT64_MAX:
            parts.append(self._slice(data, "after", _Range(here.axis, here.end, INT64_MAX)))
        self.made.append(NewNode("Concat", parts, [out], {"axis": here.axis}, like=like))

    def _slice(self, data: NodeInput, role: str, part: _Range) -> str:
        bounds = {"start": part.start, "end": part.end, "axis": part.axis}
        inputs = [self._vector(bound, f"{self.out.name}_{role}_{name}") for name, bound in bounds.items()]
        return self._make("Slice", [data, *inputs], role)

    def _vector(self, bound: Bound, name: str) -> NodeInput:
        if isinstance(bound, int):
            return self.editor.integers([bound], name)
        if self.editor.shapes[bound].rank == 1:
            return bound
        return self._make("Reshape", [bound, self.editor.integers([1], "one")], "bound")

    def _make(self, op_type: str, inputs: Sequence[NodeInput], role: str) -> str:
        name = self.editor.unique_name(f"{self.out.name}_{role}")
        self.made.append(NewNode(op_type, inputs, [name]))
        return name


def _other(expr: Expr, op: str, limit: Expr) -> Expr:
    """Return the other argument of a min or max with a limit, else the expression."""
    atom = expr.atom
    rest = [arg for arg in atom.args if arg != limit] if isinstance(atom, Call) and atom.op == op else []
    return rest[0] if len(rest) == 1 and isinstance(atom, Call) and limit in atom.args else expr


def _inputs(value: Value) -> Sequence[Value | None]:
    return value.producer.inputs if value.producer is not None else ()
