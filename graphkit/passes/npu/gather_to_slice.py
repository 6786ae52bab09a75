"""Replace a Gather with constant indices by Slices, a Split or a Transpose."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from graphkit.graph.names import runs_of
from graphkit.graph.new_nodes import SLICE_SINCE, make_concat, make_reshape, make_slice
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims, element_numbers
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import Builder, Editor, MatchFailure, NewNode, NodeInput, Rewrite
from graphkit.shapes import Expr, const

MAX_INDICES = 1 << 16

Integers = npt.NDArray[np.int64]


class GatherPattern(Struct, frozen=True):
    """The positions that a node takes of its data."""

    data: Value
    dims: Dims
    positions: Mapping[int, tuple[int, ...]]  # by axis, in order, from 0 on and inside it; of other axes it takes all


def gather_pattern_of(editor: Editor, node: Node) -> GatherPattern:
    """Return the positions that a Gather, GatherND or GatherElements takes, a product of those along axes."""
    data, dims = node.operand(0), editor.shapes.dims(node.input(0))
    if dims is None:
        raise MatchFailure("the rank of its data is not known")
    if data.is_constant:
        raise MatchFailure("its table is a constant: extract-embedding makes an input of it")
    value = node.operand(1)
    if (indices := element_numbers(editor.shapes[value])) is None:
        indices = editor.read_constant(value, MAX_INDICES, 1)
    if indices is None:
        raise MatchFailure("its indices are computed")
    if indices.size == 0:
        raise MatchFailure("it takes nothing")
    indices = indices.astype(np.int64)
    axis = node.axis(len(dims)) if node.op_type != "GatherND" else 0
    if axis is None:
        raise MatchFailure("its data has no such axis")
    taken, positions = RULES[node.op_type](node, dims, indices, axis), dict[int, tuple[int, ...]]()
    for axis in sorted(taken):
        if (size := dims[axis].constant) is None:
            raise MatchFailure(f"its data has no fixed dim along axis {axis}")
        if not ((-size <= taken[axis]) & (taken[axis] < size)).all():
            raise MatchFailure("an index is outside of its data")
        positions[axis] = tuple(int(position) % size for position in taken[axis])
    return GatherPattern(data, dims, positions)


def _gather_elements(_: Node, dims: Dims, indices: Integers, axis: int) -> dict[int, Integers]:
    if indices.ndim != len(dims):
        raise MatchFailure("its indices have another rank than its data")
    rows = np.moveaxis(indices, axis, 0).reshape(indices.shape[axis], -1)
    if not (rows == rows[:, :1]).all():
        raise MatchFailure("its indices differ along other axes")
    sizes = [(at, size) for at, size in enumerate(indices.shape) if at != axis]
    return {axis: rows[:, 0], **{at: np.arange(size) for at, size in sizes if dims[at].constant != size}}


def _gather_nd(node: Node, dims: Dims, indices: Integers, _: int) -> dict[int, Integers]:
    batch = node.attr("batch_dims", 0) or 0
    if not 0 <= batch < indices.ndim or batch + indices.shape[-1] > len(dims):
        raise MatchFailure("its indices have more columns than its data has axes")
    each = indices.reshape((-1, *indices.shape[batch:]))
    if not (each == each[:1]).all():
        raise MatchFailure("its indices differ along the batch")
    tuples = each[0].reshape(-1, indices.shape[-1])
    moving = [column for column in range(tuples.shape[1]) if not (tuples[:, column] == tuples[0, column]).all()]
    if len(moving) > 1:
        raise MatchFailure("its indices move along several axes")
    varying = moving or [0]
    return {batch + column: tuples[:, column][: None if column in varying else 1] for column in range(tuples.shape[1])}


RULES: Mapping[str, Callable[[Node, Dims, Integers, int], dict[int, Integers]]] = {
    "Gather": lambda _, __, indices, axis: {axis: indices.ravel()},
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}


@dataclass(frozen=True)
class GatherToSlice(Rewrite):
    """Replace Gather, GatherND and GatherElements with constant indices by nodes that any NPU has.

    Indices that go up by one are a Slice. Several Gathers that together take all of an axis, such as `qkv[0]`, `qkv[1]`
    and `qkv[2]`, are one Split. A few separate ranges are a Concat of Slices, every n-th row is a Slice with steps, and
    an order that interleaves rows is a Transpose. A Reshape gives the result the dims that it had.

    Legality: the indices are known, and in a GatherND or GatherElements they are a product of positions along axes; the
    dims that they count in are numbers. A table that is a constant is left to `extract-embedding`, and what takes the
    elements of a shape is left to folding.

    Attributes:
        pieces: The most ranges that are put together by a Concat.

    Before:

        agraph (float[3, 2, 4] qkv) => (float[2, 4] y) <int64 zero = {0}, int64 one = {1}, int64 two = {-1}> {
            q = Gather (qkv, zero)
            k = Gather (qkv, one)
            v = Gather (qkv, two)
            a = Mul (q, k)
            y = Add (a, v)
        }

    After:

        agraph (float[3, 2, 4] qkv) => (float[2, 4] y)
        <int64[2] q_shape = {2, 4}, int64[3] qkv_parts = {1, 1, 1}> {
            qkv_part, qkv_part_1, qkv_part_2 = Split <axis = 0> (qkv, qkv_parts)
            q = Reshape (qkv_part, q_shape)
            k = Reshape (qkv_part_1, q_shape)
            v = Reshape (qkv_part_2, q_shape)
            a = Mul (q, k)
            y = Add (a, v)
        }
    """

    pieces: int = 4

    def edit(self, editor: Editor) -> None:
        patterns: dict[Node, GatherPattern] = {}
        for node in editor.nodes("Gather", "GatherND", "GatherElements"):
            data = node.input(0)
            if node.outputs[0] is None or (data is not None and editor.shapes[data].is_shape_like):
                continue
            with editor.matching(node):
                if node.scope.opset() < SLICE_SINCE:
                    raise MatchFailure("its opset has no Slice with bounds as inputs")
                patterns[node] = gather_pattern_of(editor, node)
        readers: dict[tuple[Value, int], list[Node]] = defaultdict(list)
        for node, pattern in patterns.items():
            for axis in pattern.positions if len(pattern.positions) == 1 else ():
                if node.is_op("Gather") and len(runs_of(pattern.positions[axis])) == 1:
                    readers[pattern.data, axis].append(node)
        for (source, axis), nodes in readers.items():  # which together may take all of an axis, each a part
            if _replace_by_split(editor, source, axis, nodes, patterns):
                for node in nodes:
                    del patterns[node]
        for node, pattern in patterns.items():
            with editor.matching(node):
                _Plan(editor, node, pattern).take(self.pieces)
                editor.note(f"{node.op_type} node(s) with constant indices removed")


def _replace_by_split(
    editor: Editor, data: Value, axis: int, nodes: Sequence[Node], patterns: dict[Node, GatherPattern]
) -> bool:
    """Make a Split, in the place of the first node, where nodes of one graph take each position of an axis once."""
    starts = {node: patterns[node].positions[axis] for node in nodes}
    parts = sorted(nodes, key=lambda node: starts[node])
    positions = [position for node in parts for position in starts[node]]
    is_all = positions == list(range(int(patterns[nodes[0]].dims[axis])))
    if len(nodes) < 2 or not is_all or len({node.scope for node in nodes}) > 1:
        return False
    dims = patterns[nodes[0]].dims
    made: dict[Node, list[NewNode]] = {}
    outputs: list[str] = []
    for node in parts:
        out = node.result()
        part, after = (*dims[:axis], const(len(starts[node])), *dims[axis + 1 :]), editor.shapes[out].dims
        spec = reshape_spec(part, after) if after is not None else None
        if spec is None:
            return False
        outputs.append(out.name if part == after else editor.unique_name(f"{data.name}_part"))
        shape = editor.integers(spec, f"{out.name}_shape") if part != after else ""
        made[node] = [make_reshape(outputs[-1], shape, out.name, like=node)] if shape else []
    first, sizes = min(nodes, key=lambda node: node.index), [len(starts[node]) for node in parts]
    split = replace(editor.make_numbered(first, "Split", data, sizes, f"{data.name}_parts", axis=axis), outputs=outputs)
    for node in parts:
        editor.replace(node, *([split] if node is first else []), *made[node])
    editor.note("Gathers that together take everything turned into a Split", len(nodes))
    return True


class _Plan(Builder):
    def __init__(self, editor: Editor, node: Node, pattern: GatherPattern) -> None:
        super().__init__(editor, node)
        self.pattern = pattern
        self.dims: list[Expr] = list(pattern.dims)

    def take(self, pieces: int) -> None:
        """Put the nodes in its place, or raise a MatchFailure where the indices are too many pieces."""
        source: NodeInput = self.pattern.data
        for axis, positions in self.pattern.positions.items():
            source = self._take_positions(source, axis, positions, pieces)
            self.dims[axis] = const(len(positions))
        result = self.editor.shapes[self.node.result()]
        if tuple(self.dims) != result.dims or not self.nodes:
            spec = reshape_spec(self.dims, result.dims) if result.dims is not None else None
            if spec is None:
                raise MatchFailure(f"no constant Reshape gives {result}")
            self.append(make_reshape(source, self.integers(spec, "shape")), "shaped")
        self.replace()

    def _take_positions(self, source: NodeInput, axis: int, positions: Sequence[int], pieces: int) -> NodeInput:
        size, runs = int(self.pattern.dims[axis]), runs_of(positions)
        if runs == [range(size)]:
            return source
        step = positions[1] - positions[0] if len(positions) > 1 else 1
        if len(runs) <= pieces:
            parts = [self._slice_run(source, axis, run) for run in runs]
            return parts[0] if len(parts) == 1 else self.append(make_concat(parts, axis), "taken")
        if step > 1 and list(positions) == list(range(positions[0], positions[-1] + 1, step)):
            return self._slice_run(source, axis, range(positions[0], positions[-1] + 1, step))
        size, step = int(self.pattern.dims[axis]), positions[1]
        is_grid = step > 1 and size % step == 0 and len(positions) == size
        if not is_grid or list(positions) != [i + j for i in range(step) for j in range(0, size, step)]:
            raise MatchFailure(f"its indices are {len(runs):,} separate pieces")
        sizes = [dim.constant or 0 for dim in self.dims]
        if 0 in sizes:
            raise MatchFailure("it orders rows of a tensor whose dims are not all numbers of at least 1")
        lead, rest = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        grid = [*([lead] if lead != 1 else []), size // step, step, *([rest] if rest != 1 else [])]
        at = 1 if lead != 1 else 0
        perm = list(range(len(grid)))
        perm[at], perm[at + 1] = at + 1, at
        apart = self.append(make_reshape(source, self.integers(grid, "grid")), "grid")
        turned = self.add("Transpose", apart, role="turned", perm=perm)
        return self.append(make_reshape(turned, self.integers(sizes, "rows")), "rows")

    def _slice_run(self, source: NodeInput, axis: int, run: range) -> NodeInput:
        if run == range(int(self.pattern.dims[axis])):
            return source
        bounds = {"start": run.start, "end": run.stop, "axis": axis} | ({"step": run.step} if run.step != 1 else {})
        return self.append(make_slice(source, *(self.integers([bound], name) for name, bound in bounds.items())))
