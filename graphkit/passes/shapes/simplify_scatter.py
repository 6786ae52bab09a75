"""Replace the Scatter of an assignment by updates, a Concat of slices or a Where; a lookup by a grid by a Slice."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import INT64_MAX, dtype_name
from graphkit.graph.declared_types import shape_text
from graphkit.graph.new_nodes import make_concat, make_gather, make_reshape, make_slice
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.ops.elementwise_and_reduction import NO_WHERE
from graphkit.ops.tensor import Dims
from graphkit.ops.value_ranges import Affine, ValueRangeAnalysis
from graphkit.passes.shapes.simplify_reshape import inserted_axes, reshape_spec
from graphkit.rewrite import Builder, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, Rewrite
from graphkit.shapes import Expr, Shapes, const, lower, upper
from graphkit.symbolic.expr import Call

Planned = Mapping[Node, Sequence[NewNode]]  # what takes the place of a node
MORE_NODES = "Slices and Concats would be more nodes than it and what computes its indices"
Bound = int | Value


def dead_after_removal(editor: Editor, gone: Iterable[Node], kept: Container[Value]) -> set[Node]:
    """Return nodes that go, and those before them that nothing else needs then, but for values that are kept.

    Nodes that depend on constants alone do not count: they are folded.
    """
    dead = set(gone)
    pending = list(dead)
    while pending:
        for node in (value.producer for value in pending.pop().operands):
            if node is None or node in dead or editor.is_static(node):
                continue
            is_kept = any(out in kept or out in editor.new_reads or out.is_output for out in node.results)
            readers = {reader for out in node.results for reader, _ in out.consumers}
            if readers <= dead and not is_kept:
                dead.add(node)
                pending.append(node)
    return dead


class Box(Struct, frozen=True):
    """Where a Scatter writes, once each place, in the order of its updates."""

    dims: Dims
    starts: Dims  # first place, by axis of the data; never negative where the model runs
    sizes: Dims  # how many places, by axis of the data; equal to the dims of the updates but for dims of 1

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes along which it is not certainly all of the data."""
        places = enumerate(zip(self.starts, self.sizes, self.dims, strict=True))
        return tuple(axis for axis, (start, size, dim) in places if start != 0 or size != dim)


def find_box(shapes: Shapes, ranges: ValueRangeAnalysis, node: Node) -> Box:
    """Return where a Scatter without reduction writes, or a GatherND reads; MatchFailure for no box, or unknowns."""
    data, indices = node.operand(0), node.operand(1)
    updates = node.result() if node.is_op("GatherND") else node.operand(2)
    reduction = node.attr("reduction", "none")
    if reduction not in ("", "none"):
        raise MatchFailure(f"its reduction is '{reduction}'")
    if node.attr("batch_dims", 0):
        raise MatchFailure("its rows are looked up in a batch each")
    dims = _known_dims(shapes, data)
    parts = ranges.components(indices) if node.is_op("ScatterND", "GatherND") else None
    along, axis = ranges.affine(indices) if parts is None else None, node.axis(len(dims))
    if node.is_op("ScatterElements") and along is not None and axis is not None and len(along.dims) == len(dims):
        units = [[const(int(row == column)) for column in range(len(dims))] for row in range(len(dims))]
        coordinates = [Affine.of(along.dims, const(0), unit) for unit in units]  # of the update itself
        parts = (*coordinates[:axis], along, *coordinates[axis + 1 :])
    if not parts or len(parts) > len(dims):
        raise MatchFailure("its indices are not known to be consecutive")
    grid, rest = parts[0].dims, dims[len(parts) :]
    if _known_dims(shapes, updates) != grid + rest:
        raise MatchFailure(f"its elements are {shapes[updates]}, its indices are for {shape_text(grid + rest)}")
    axes: list[int | None] = []
    for part in parts:
        moving = [axis for axis, stride in enumerate(part.strides) if stride != 0]
        if len(moving) > 1 or any(part.strides[axis] != 1 for axis in moving):
            raise MatchFailure("its indices do not go up by one along one axis")
        axes += moving or [None]
    used = [axis for axis in axes if axis is not None]
    if used != sorted(set(used)):
        raise MatchFailure("its indices are in another order than the axes")
    if any(dim != 1 and axis not in used for axis, dim in enumerate(grid)):
        raise MatchFailure("its indices may name an element more than once")
    sizes = tuple(const(1) if axis is None else grid[axis] for axis in axes) + rest
    starts = [part.start for part in parts] + [const(0)] * len(rest)
    may_be_empty = any(lower(size) < 1 for size in sizes)  # an empty box is legal wherever it is
    for place, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if lower(start) < 0:  # it counts from the end
            if upper(start + size) > 0 or may_be_empty:
                raise MatchFailure("its indices may be negative")
            starts[place] = start + dims[place]
    return Box(dims, tuple(starts), sizes)


def _known_dims(shapes: Shapes, value: Value) -> Dims:
    if (dims := shapes[value].dims) is None:
        raise MatchFailure(f"the rank of '{value.name}' is not known: {shapes.reason(value)}")
    return dims


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
            s = Shape <start = 0, end = 1> (x)
            n = Squeeze (s)
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
        sparing: Whether one stays that would leave more nodes than go: where the indices are constant, a Scatter is one
            node.
    """

    sparing: bool = False

    def edit(self, editor: Editor) -> None:
        ranges = ValueRangeAnalysis(editor.shapes.model, editor.shapes.__getitem__)
        planned: dict[Node, Sequence[NewNode]] = {}
        for node in editor.nodes("ScatterND", "ScatterElements"):
            with editor.matching(node):
                box, out = find_box(editor.shapes, ranges, node), node.result()
                updates = node.operand(2)
                before = editor.shapes[updates].dims
                spec = reshape_spec(before, box.sizes) if before is not None and before != box.sizes else ()
                if spec is None:
                    raise MatchFailure(
                        f"its updates are {editor.shapes[updates]}, which no constant Reshape makes the box"
                    )
                if box.partial:
                    plan = _Plan(editor, node, box)
                    bounds = [plan.bounds(axis) for axis in box.partial]
                    source: NodeInput = updates
                    if spec:
                        source = plan.append(make_reshape(updates, plan.integers(spec, "updates_shape")), "updates")
                    plan.concat(node.inputs[0], source, bounds)
                    planned[node] = plan.finish()
                    continue
                if spec:
                    editor.replace(node, editor.make_reshape(updates, spec, out.name, like=node))
                else:
                    editor.bypass(node, updates)
                editor.note("Scatter(s) of a whole tensor replaced by the updates")
        replace_planned(editor, planned, "Scatter(s) of a range replaced by Concats of slices", sparing=self.sparing)


class SimplifyGather(Rewrite):
    """Replace a GatherND that reads a range along each axis by the Slice of it, or by its data where it reads all.

    A mask is exported so, by rows and columns that come from Range, Expand and Concat. Where its data may end before a
    range does, it is looked up by that range alone. Legality: each index increases by 1 along one axis of the indices,
    and each axis serves one index, in order; signs and bounds are as in simplify-scatter; no box is empty past the end.

    Before:

        agraph (float[N, L] x) => (float[N, 1, L] y) <int64 zero = {0}, int64 one = {1}, int64[2] behind = {1, 2}> {
            a = Shape <start = 0, end = 1> (x)
            n = Squeeze (a)
            rows = Range (zero, n, one)
            at = Unsqueeze (rows, behind)
            y = GatherND (x, at)
        }

    After:

        agraph (float[N, L] x) => (float[N, 1, L] y) <int64[1] y_axes = {1}> {
            y = Unsqueeze (x, y_axes)
        }
    """

    def edit(self, editor: Editor) -> None:
        ranges = ValueRangeAnalysis(editor.shapes.model, editor.shapes.__getitem__)
        planned: dict[Node, Sequence[NewNode]] = {}
        for node in editor.nodes("GatherND"):
            with editor.matching(node):
                box = find_box(editor.shapes, ranges, node)
                if not box.partial and editor.shapes[node.result()].dims == box.sizes:
                    editor.bypass(node, node.operand(0))
                    editor.note("lookup(s) of a whole tensor replaced by it")
                else:
                    planned[node] = _Plan(editor, node, box).read(ranges)
        replace_planned(editor, planned, "lookup(s) by a grid of indices replaced by Slices", sparing=True)


def replace_planned(editor: Editor, planned: Planned, change: str, *, sparing: bool) -> None:
    """Put nodes in the place of others; if sparing, only where they are no more than those that go."""
    is_all = not sparing or _is_worth_it(editor, planned)  # at once, for they may share nodes
    for node, nodes in planned.items():
        if is_all or _is_worth_it(editor, {node: nodes}):
            editor.replace(node, *nodes)
            editor.note(change)
        else:
            editor.decline(node, MORE_NODES)


def _is_worth_it(editor: Editor, planned: Planned) -> bool:
    made = [new for nodes in planned.values() for new in nodes]
    kept = {source for new in made for source in new.inputs if isinstance(source, Value)}
    return len(made) <= len(dead_after_removal(editor, planned, kept))


class _Range(Struct, frozen=True):
    """A part of an axis: from a start to an end, each a number, or a tensor that holds it."""

    axis: int
    start: Bound
    end: Bound


class _Plan(Builder):
    """The nodes that take the place of one that writes or reads a box which is not all of its data."""

    def __init__(self, editor: Editor, node: Node, box: Box) -> None:
        super().__init__(editor, node)
        self.box = box

    def bounds(self, axis: int) -> _Range:
        """Return where the box lies along an axis."""
        start, size, dim = self.box.starts[axis], self.box.sizes[axis], self.box.dims[axis]
        end = start + size
        self._check_inside(axis)
        return _Range(axis, self._bound(start, dim), INT64_MAX if lower(end - dim) >= 0 else self._bound(end, dim))

    def _check_inside(self, axis: int) -> None:
        """Check that the box lies in its data along an axis wherever the node runs: an empty one may lie elsewhere."""
        start, size, dim = self.box.starts[axis], self.box.sizes[axis], self.box.dims[axis]
        others = (size for place, size in enumerate(self.box.sizes) if place != axis)
        if lower(dim - start - size) < 0 and not all(lower(size) >= 1 for size in others):
            raise MatchFailure("its box may be empty, past the end of its data")

    def _bound(self, at: Expr, dim: Expr) -> Bound:
        """Return a bound as a Slice takes it: from the end where it is negative, within the dim where it is not."""
        at = _without_limit(at, "min", dim)
        from_end = (_without_limit(at, "max", const(0)) - dim).constant
        if at.constant is not None:
            return at.constant
        if from_end is not None and from_end < 0:
            return from_end
        holder = self._holder(at) if lower(at) >= 0 else None
        if holder is None:
            raise MatchFailure(f"no tensor that its indices are made of holds {at}, where its box starts or ends")
        return holder

    def _holder(self, number: Expr) -> Value | None:
        """Return a tensor of one int64, among those that the indices are made of, that is a number."""
        for value in walk_breadth_first(self.node.operands[1:2], lambda each: each.sources):
            tensor = self.editor.shapes[value]
            if tensor.dtype == TensorProto.INT64 and tensor.is_shape_like and tensor.elements == (number,):
                return value
        return None

    def read(self, ranges: ValueRangeAnalysis) -> list[NewNode]:
        """Return the nodes that cut the box out: a Slice, or a lookup by a range where its data may end before."""
        box, source = self.box, cast(NodeInput, self.node.operand(0))
        for axis in box.partial:
            if lower(box.dims[axis] - box.starts[axis] - box.sizes[axis]) >= 0:
                source = self._slice(source, "part", self.bounds(axis))
            else:
                source = self.append(make_gather(source, self._count(axis, ranges), axis), "part")
        if (dims := _known_dims(self.editor.shapes, self.node.result())) != box.sizes:
            axes, spec = inserted_axes(box.sizes, dims), reshape_spec(box.sizes, dims)
            if axes:
                self.append(self.editor.make_numbered(self.node, "Unsqueeze", source, axes, f"{self.label}_axes"))
            elif spec is not None:
                self.append(make_reshape(source, self.integers(spec, "shape")))
            else:
                raise MatchFailure(f"no constant Reshape gives its result, {shape_text(dims)}")
        return self.finish()

    def _count(self, axis: int, ranges: ValueRangeAnalysis) -> Value:
        """Return the list of indices along an axis, among the tensors that all indices are made of."""
        start, size = self.box.starts[axis], self.box.sizes[axis]
        self._check_inside(axis)
        for value in walk_breadth_first(self.node.operands[1:2], lambda each: each.sources):
            if ranges.affine(value) == Affine((size,), start, (const(1),)):
                return value
        raise MatchFailure(f"no tensor that its indices are made of lists {size} from {start}")

    def concat(self, data: NodeInput, updates: NodeInput, ranges: Sequence[_Range]) -> str:
        """Concatenate the data before the box, the box and the data after it along the first axis of these."""
        here, *inner = ranges
        parts: list[NodeInput] = []
        if here.start != 0:
            parts.append(self._slice(data, "before", _Range(here.axis, 0, here.start)))
        if inner:
            parts.append(self.concat(self._slice(data, "middle", here), updates, inner))
        else:
            parts.append(updates)
        if here.end != INT64_MAX:
            parts.append(self._slice(data, "after", _Range(here.axis, here.end, INT64_MAX)))
        return self.append(make_concat(parts, here.axis), "inner")

    def _slice(self, data: NodeInput, role: str, part: _Range) -> str:
        bounds: dict[str, Bound] = {"start": part.start, "end": part.end, "axis": part.axis}
        inputs: list[NodeInput] = []
        for name, bound in bounds.items():
            if isinstance(bound, int):
                inputs.append(self.integers([bound], f"{role}_{name}"))
            elif self.editor.shapes[bound].rank == 1:
                inputs.append(bound)
            else:
                inputs.append(self.append(make_reshape(bound, self.editor.integers([1], "one")), "bound"))
        return self.append(make_slice(data, *inputs), role)


def _without_limit(expr: Expr, op: str, limit: Expr) -> Expr:
    """Return the other argument of a min or max with a limit, else the expression."""
    atom = expr.atom
    rest = [arg for arg in atom.args if arg != limit] if isinstance(atom, Call) and atom.op == op else []
    return rest[0] if len(rest) == 1 and isinstance(atom, Call) and limit in atom.args else expr


class MaskedScatterToWhere(NodeRewrite):
    """Write the ScatterND of one number at the places where a mask is true as a Where.

    `x[mask] = 0` is exported so: how many places there are depends on data. A Where may lose the sign of a zero.
    A mask of fewer axes than the data is reshaped first. Legality: there is no reduction, the indices are those of the
    mask, in order, the mask has the first dims of the data, the updates are one number, expanded, and onnxruntime has a
    Where of its dtype.

    Before:

        agraph (float[N] x) => (float[N] y) <float zero = {0}> {
            mask = Less (x, zero)
            by_axis = NonZero (mask)
            at = Transpose <perm = [1, 0]> (by_axis)
            places = Shape <start = 0, end = 1> (at)
            zeros = Expand (zero, places)
            y = ScatterND (x, at, zeros)
        }

    After:

        agraph (float[N] x) => (float[N] y) <float zero = {0}> {
            mask = Less (x, zero)
            y = Where (mask, zero, x)
        }
    """

    operators = ("ScatterND",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data, indices, updates = node.operands
        turned, expanded = indices.producer, updates.producer
        places = turned.operand(0).producer if turned is not None and turned.is_op("Transpose") else None
        if turned is None or places is None or not places.is_op("NonZero") or turned.attr("perm", (1, 0)) != (1, 0):
            return
        mask, dims = places.operand(0), _known_dims(editor.shapes, data)
        masked = _known_dims(editor.shapes, mask)
        if node.attr("reduction", "none") not in ("", "none") or editor.shapes[mask].dtype != TensorProto.BOOL:
            raise MatchFailure("it reduces, or its indices are not those of a boolean mask")
        if expanded is None or not expanded.is_op("Expand") or editor.shapes[expanded.input(0)].dims != ():
            raise MatchFailure("its updates are not one number, expanded")
        if not masked or masked != dims[: len(masked)]:
            raise MatchFailure(f"its mask is {shape_text(masked)}, its data {shape_text(dims)}")
        if (dtype := editor.shapes[data].dtype) in NO_WHERE:
            raise MatchFailure(f"onnxruntime has no Where of {dtype_name(dtype)}")
        builder, chosen = Builder(editor, node), cast(NodeInput, mask)
        if len(dims) > len(masked):
            shape = builder.integers([0] * len(masked) + [1] * (len(dims) - len(masked)), "mask_shape")
            chosen = builder.append(make_reshape(mask, shape), "mask")
        builder.add("Where", chosen, expanded.operand(0), data)
        builder.replace()
        editor.note("assignment(s) behind a mask written as Where")
