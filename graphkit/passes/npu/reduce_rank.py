"""Write nodes, inputs and outputs in axes that an NPU takes: fewer ones, and axes of 1 where they are read."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Struct
from onnx import TensorProto

from graphkit.graph.new_nodes import RESHAPE_SINCE, make_reshape
from graphkit.graph.operator_traits import NORMALIZATIONS, RESHAPING
from graphkit.graph.view import Node, Value, follow_chain
from graphkit.model import Model
from graphkit.ops.axes import ALIKE, FREE, OWN, find_layout
from graphkit.ops.rule_context import UnknownError
from graphkit.passes.shapes.simplify_reshape import is_reshaping, reshape_spec
from graphkit.rewrite import Declined, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, Outcome, Pass, Rewrite
from graphkit.rewrite.edits import copy_node
from graphkit.shapes import const

MAX_AXES = 6  # more would be too many orders to search

Blocks = tuple[tuple[int, ...], ...]
Sizes = tuple[int, ...]


class Axes(Struct, frozen=True):
    """Which axes of the common ones are left, as groups; each group is one axis then."""

    groups: tuple[tuple[int, ...], ...]

    def of(self, axis: int) -> int:
        """Return the axis that an axis which was not left out is now."""
        return next(index for index, group in enumerate(self.groups) if axis in group)

    def dims(self, dims: Sequence[int], own_rank: int) -> Sizes:
        """Return the dims of a tensor that is laid out over the axes, without ones in front that it did not have."""
        sizes = [math.prod(dims[axis] for axis in group) for group in self.groups]
        while len(sizes) > own_rank and sizes[0] == 1:
            del sizes[0]
        return tuple(sizes)


def fold_axes(tensors: Sequence[Sizes], kinds: Sequence[int], rank: int) -> Axes:
    """Return at most `rank` axes for tensors that lie over axes of these kinds, or raise a MatchFailure."""
    single = [all(dims[axis] == 1 for dims in tensors) for axis in range(len(kinds))]

    def may_merge(one: Sequence[int], two: Sequence[int], _: Sequence[int]) -> bool:
        first, second = (next((axis for axis in group if not single[axis]), group[0]) for group in (one, two))
        is_alike = single[first] or single[second] or all((dims[first] == 1) == (dims[second] == 1) for dims in tensors)
        return kinds[first] == kinds[second] != OWN and is_alike

    groups = _join_groups(rank, [single[axis] and kind == FREE for axis, kind in enumerate(kinds)], may_merge)
    if len(groups) > rank:
        raise MatchFailure(f"{len(groups)} of its axes can neither go nor merge")
    return Axes(groups)


def _join_groups(
    rank: int, may_go: Sequence[bool], may_merge: Callable[[Sequence[int], Sequence[int], Sequence[int]], bool]
) -> Blocks:
    """Return groups of neighbouring axes, as few as `rank` if that can be; axes that may go do so from the first on."""
    gone = [axis for axis, is_open in enumerate(may_go) if is_open][: max(len(may_go) - rank, 0)]
    axes = [axis for axis in range(len(may_go)) if axis not in gone]
    groups: list[tuple[int, ...]] = [(axis,) for axis in axes]
    index = 0
    while len(groups) > rank and index + 1 < len(groups):
        if may_merge(groups[index], groups[index + 1], axes):
            groups[index] += groups.pop(index + 1)
        else:
            index += 1
    return tuple(groups)


def sizes_of(editor: Editor, value: Value | None) -> Sizes:
    """Return the dims of a tensor, or raise a MatchFailure where they are not all numbers."""
    sizes = editor.shapes[value].sizes()
    if value is None or sizes is None:
        raise MatchFailure(f"the dims of '{value.name if value is not None else ''}' are not all numbers")
    return sizes


class TransposeStep(Struct, frozen=True):
    """A Transpose of a tensor that is reshaped first."""

    dims: tuple[int, ...]  # that it is reshaped to
    perm: tuple[int, ...]


def transpose_steps(dims: Sequence[int], perm: Sequence[int], rank: int) -> list[TransposeStep] | None:
    """Return Transposes of at most `rank` axes that together order the elements as one of more axes does.

    Returns:
        None where more than `MAX_AXES` axes move apart, or blocks of so few axes cannot give the order.
    """

    def may_merge(one: Sequence[int], two: Sequence[int], axes: Sequence[int]) -> bool:
        after = [axis for axis in perm if axis in axes]
        return after.index(two[0]) == after.index(one[-1]) + 1

    # axes of 1 are left out from the first on, then neighbours that stay neighbours are one block
    blocks = _join_groups(rank, [dim == 1 for dim in dims], may_merge)
    heads = [block[0] for block in blocks]
    order = tuple(heads.index(axis) for axis in perm if axis in heads)
    sizes = [math.prod(dims[axis] for axis in block) for block in blocks]
    if len(order) <= rank:
        return [TransposeStep(tuple(sizes), order)]
    moves = _find_moves(order, rank) if len(order) <= MAX_AXES else None
    if moves is None:
        return None
    steps = []
    current = tuple(range(len(order)))
    for cuts, move in moves:
        parts = _cut_parts(current, cuts)
        steps.append(TransposeStep(tuple(math.prod(sizes[block] for block in part) for part in parts), move))
        current = tuple(block for index in move for block in parts[index])
    return steps


@lru_cache(maxsize=256)
def _find_moves(order: tuple[int, ...], rank: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None:
    """Return the fewest moves of at most `rank` blocks, (where to cut, how to order the parts), that give an order."""
    start = tuple(range(len(order)))
    came: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {}
    pending = deque([start])
    while pending and order not in came:
        current = pending.popleft()
        for cuts, move, after in _neighbour_orders(current, rank):
            if after != start and after not in came:
                came[after] = (current, cuts, move)
                pending.append(after)
    if order not in came:
        return None
    moves = []
    current = order
    while current != start:
        current, cuts, move = came[current]
        moves.append((cuts, move))
    return tuple(reversed(moves))


def _neighbour_orders(
    current: tuple[int, ...], rank: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    for count in range(2, rank + 1):
        for cuts in itertools.combinations(range(1, len(current)), count - 1):
            parts = _cut_parts(current, cuts)
            for move in itertools.permutations(range(count)):
                yield cuts, move, tuple(block for index in move for block in parts[index])


def _cut_parts(current: tuple[int, ...], cuts: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [current[low:high] for low, high in itertools.pairwise((0, *cuts, len(current)))]


@dataclass(frozen=True)
class ReduceRank(Rewrite):
    """Write each node on tensors of rank 5 and more on tensors of rank 4, between Reshapes, which then meet and merge.

    Axes of 1 are left out, and neighbours that a node treats alike become one axis. A Transpose whose axes all move
    apart becomes several, each of which moves whole blocks. What is reshaped up and down again is reshaped once.
    Elements, and their order in memory, stay the same to the last bit. No tensor's rank rises.

    Legality: the dims are numbers; a rule knows the operator: elementwise, MatMul, Softmax, reductions, normalizations,
    Concat, Split, Slice, Pad, Expand, Tile, Transpose and the reshaping ones. What a graph takes in or gives stays as
    it is, for no pass may change the interface.

    Attributes:
        rank: The highest rank that is left.

    Before:

        agraph (float[1, 4, 6, 8] x) => (float[6, 4, 2, 4] y)
        <int64[6] windows = {1, 2, 2, 3, 2, 8}, int64[4] flat = {6, 4, 2, 4}> {
            a = Reshape (x, windows)
            b = Transpose <perm = [0, 1, 3, 2, 4, 5]> (a)
            c = Relu (b)
            y = Reshape (c, flat)
        }

    After:

        agraph (float[1, 4, 6, 8] x) => (float[6, 4, 2, 4] y)
        <int64[4] b_dims_shape_1 = {2, 2, 3, 16}, int64[4] c_dims_shape_1 = {6, 2, 2, 8},
            int64[4] y_shape = {6, 4, 2, 4}> {
            b_dims = Reshape (x, b_dims_shape_1)
            b_low = Transpose <perm = [0, 2, 1, 3]> (b_dims)
            c_dims = Reshape (b_low, c_dims_shape_1)
            c_low = Relu (c_dims)
            y = Reshape (c_low, y_shape)
        }
    """

    rank: int = 4

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes():
            ranks = [editor.shapes[value].rank or 0 for value in (*node.operands, *node.results)]
            if not node.bodies and max(ranks, default=0) > self.rank:
                self._reduce(editor, node)

    def _reduce(self, editor: Editor, node: Node) -> None:
        try:
            if node.scope.opset() < RESHAPE_SINCE:
                raise MatchFailure("its opset has no Reshape to a tensor")
            if node.operator in RESHAPING:
                self._reduce_reshape(editor, node)
            elif node.is_op("Transpose"):
                self._reduce_transpose(editor, node)
            else:
                self._reduce_other(editor, node)
        except MatchFailure as failure:
            editor.decline(node, f"its rank stays above {self.rank}: {failure.reason}")

    def _reduce_reshape(self, editor: Editor, node: Node) -> None:
        """Let the Reshape to a tensor of lower rank read the source of the one of higher rank."""
        data, out = node.operand(0), node.result()
        if len(sizes_of(editor, out)) > self.rank:
            return  # those that read it will read what it is made of

        def before(value: Value) -> Value | None:
            maker = value.producer
            is_link = maker is not None and maker.operator in RESHAPING and maker.scope is node.scope
            return maker.input(0) if maker is not None and is_link else None

        makers = itertools.islice(follow_chain(data, before), 1, None)
        source = next((value for value in makers if len(sizes_of(editor, value)) <= self.rank), None)
        if source is None:
            origin = f"computed by {data.producer.label}" if data.producer is not None else f"an {data.kind}"
            raise MatchFailure(f"'{data.name}' is {origin}")
        before_and_after = sizes_of(editor, source), out.name, sizes_of(editor, out)
        editor.replace(node, _make_reshape(editor, source, *before_and_after, node))
        editor.note("Reshape(s) from tensors of high rank made of others")

    def _reduce_transpose(self, editor: Editor, node: Node) -> None:
        data, out = node.operand(0), node.result()
        dims, after = sizes_of(editor, data), sizes_of(editor, out)
        steps = transpose_steps(dims, node.attr("perm", tuple) or tuple(reversed(range(len(dims)))), self.rank)
        if steps is None:
            raise MatchFailure("too many of its axes move apart")
        source: NodeInput = data
        made: list[NewNode] = []
        for step in steps:
            source = self._reshape_value(editor, source, dims, step.dims, f"{out.name}_dims", made)
            name = editor.unique_name(f"{out.name}_low")
            like = node if not made[1:] else None
            made.append(NewNode("Transpose", [source], [name], {"perm": step.perm}, like=like))
            source, dims = name, tuple(step.dims[axis] for axis in step.perm)
        made.append(_make_reshape(editor, source, dims, out.name, after))
        editor.replace(node, *made)
        editor.note("Transpose(s) given fewer axes")

    def _reduce_other(self, editor: Editor, node: Node) -> None:
        try:
            layout = find_layout(editor.facts(node))
        except UnknownError as error:
            raise MatchFailure(str(error)) from error
        outer = [sizes_of(editor, value) for value in node.outputs[: len(layout.outputs)]]
        own = {index: sizes_of(editor, node.inputs[index]) for index in layout.inputs}
        laid_in = {index: tuple(map(int, dims)) for index, dims in layout.inputs.items()}
        laid_out = [tuple(map(int, dims)) for dims in layout.outputs]
        axes = fold_axes([*laid_in.values(), *laid_out], layout.kinds, self.rank)
        name = next(value.name for value in node.results)
        made: list[NewNode] = []
        inputs: list[NodeInput] = list(node.inputs)
        for index, dims in laid_in.items():
            low = axes.dims(dims, min(len(own[index]), self.rank))
            inputs[index] = self._reshape_value(editor, node.inputs[index], own[index], low, f"{name}_dims", made)
        attributes, rank = dict[str, Any](), len(layout.kinds)  # that change
        if "keepdims" in node.attributes or ALIKE in layout.kinds:
            attributes["keepdims"] = 1
        if layout.axis is not None:
            place = axes.of(layout.axis % rank)
            attributes["axis"] = place - len(axes.groups) if node.op_type in NORMALIZATIONS else place
        named = list(dict.fromkeys(axes.of(axis % rank) for axis in layout.axes))
        named = sorted(named) if ALIKE in layout.kinds else named
        if layout.axes_input is None and named:
            attributes["axes"] = named
        constants: dict[int, Sequence[int]] = {layout.axes_input: named} if layout.axes_input is not None else {}
        constants |= layout.sizes(axes.groups) if layout.sizes is not None else {}
        for index, integers in constants.items():
            inputs += [None] * (index + 1 - len(inputs))
            inputs[index] = editor.integers(integers, f"{name}_axes")
        after: list[NewNode] = []
        outputs = [*node.proto.output]
        for index, (dims, sizes) in enumerate(zip(laid_out, outer, strict=True)):
            low = axes.dims(dims, len(dims))
            if sizes != low:
                outputs[index], own_name = editor.unique_name(f"{outputs[index]}_low"), outputs[index]
                after.append(_make_reshape(editor, outputs[index], low, own_name, sizes))
        editor.replace(node, *made, copy_node(node, inputs, outputs, **attributes), *after)
        editor.note(f"{node.op_type} node(s) given fewer axes")

    def _reshape_value(
        self, editor: Editor, source: NodeInput, before: Sizes, after: Sizes, name: str, made: list[NewNode]
    ) -> NodeInput:
        """Return a tensor in other dims, itself where these are the same."""
        if before == after:
            return source
        if isinstance(source, Value) and source.constant is not None:
            low = TensorProto()
            low.CopyFrom(source.constant)  # with the same bytes, wherever they lie
            low.dims[:] = after
            return editor.tensor(low, f"{source.name}_low")
        made.append(_make_reshape(editor, source, before, editor.unique_name(name), after))
        return made[-1].outputs[0]


@dataclass(frozen=True)
class MergeMeanAxes(ReduceRank):
    """Write a mean of more than two axes as one of rows, for targets that take no height beside a width.

    Vela 5.2.0 takes the mean of the channels of an image only where its height or width is 1. Legality: that of
    `reduce-rank`, and the axes of the mean are the last ones.

    Attributes:
        rank: The highest rank of a mean that is left.

    Before:

        agraph (float[1, 4, 6, 8] x) => (float[1, 4, 6, 1] y) {
            y = ReduceMean <axes = [-1], keepdims = 1> (x)
        }

    After:

        agraph (float[1, 4, 6, 8] x) => (float[1, 4, 6, 1] y)
        <int64[2] y_dims_shape = {24, 8}, int64[4] y_shape = {1, 4, 6, 1}> {
            y_dims = Reshape (x, y_dims_shape)
            y_low = ReduceMean <axes = [1], keepdims = 1> (y_dims)
            y = Reshape (y_low, y_shape)
        }
    """

    rank: int = 2

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("ReduceMean"):
            if (editor.shapes[node.operand(0)].rank or 0) > self.rank:
                self._reduce(editor, node)


def _make_reshape(
    editor: Editor, source: NodeInput, before: Sequence[int], name: str, after: Sequence[int], like: Node | None = None
) -> NewNode:
    if (spec := reshape_spec([const(dim) for dim in before], tuple(const(dim) for dim in after))) is None:
        raise MatchFailure(f"no constant makes {tuple(before)} to {tuple(after)}")
    return editor.make_reshape(source, spec, name, like=like)


class MoveUnitAxesFirst(NodeRewrite):
    """Compute in the axes that a later Reshape gives by moving axes of 1, and leave out that Reshape.

    So a norm of the heads of one token is computed in `[1, heads, 1, size]`, in which attention reads it. In
    `[1, 1, heads, size]` RKNN-Toolkit2 2.5.0 puts the heads along the last axis, and fewer than 8 of them on the CPU.
    Elements, and their order in memory, stay the same.

    Legality: the dims are numbers; what leads from other Reshapes to this one works alike at each position of the axes
    that move, and is read by nothing else.

    Before:

        agraph (float[1, 1, 32] x) => (float[1, 2, 1, 16] y)
        <int64[4] rows = {1, 1, 2, 16}, int64[4] heads = {1, 2, 1, 16}> {
            a = Reshape (x, rows)
            b = ReduceMax <axes = [-1], keepdims = 1> (a)
            c = Div (a, b)
            d = Reshape (c, heads)
            y = Neg (d)
        }

    After:

        agraph (float[1, 1, 32] x) => (float[1, 2, 1, 16] y) <int64[4] a_moved_shape = {1, 2, 1, 16}> {
            a_moved = Reshape (x, a_moved_shape)
            b_moved = ReduceMax <axes = [-1], keepdims = 1> (a_moved)
            c_moved = Div (a_moved, b_moved)
            y = Neg (c_moved)
        }
    """

    operators = (*sorted(RESHAPING), "Transpose")

    def edit_node(self, editor: Editor, node: Node) -> None:
        before, after = (editor.shapes[value].sizes() for value in (node.operand(0), node.result()))
        order = _order_of_units(before, after) if before and after and is_reshaping(editor, node) else None
        if order is None or node.scope.opset() < RESHAPE_SINCE:
            return
        moved = _moved_dims(editor, node, order)
        outs = {each: each.result() for each in moved}
        readers = [(reader, each) for each, out in outs.items() for reader, _ in out.consumers if reader not in moved]
        for reader, each in readers:
            is_exit = reader.operand(0) is outs[each] and is_reshaping(editor, reader)
            if not is_exit or editor.shapes[reader.result()].sizes() != moved[each]:
                return
        names = dict[Value | None, str]((out, editor.unique_name(f"{out.name}_moved")) for out in outs.values())
        for each, dims in moved.items():
            inputs, name = [names.get(value, value) for value in each.inputs], names[outs[each]]
            new = editor.make_reshape(inputs[0], dims, name, each) if each.operator in RESHAPING else None
            editor.insert_before(each, new or copy_node(each, inputs, [name]))
        for reader, each in readers:
            editor.bypass(reader, names[outs[each]])
            editor.note("Reshape(s) of axes of 1 made part of those before")


def _order_of_units(before: Sizes, after: Sizes) -> list[int] | None:
    """Return the axis that each axis was before, None where others than those of 1 move, or none does."""
    wide, units = ([axis for axis, size in enumerate(before) if (size == 1) is unit] for unit in (False, True))
    if len(before) != len(after) or [before[axis] for axis in wide] != [size for size in after if size != 1]:
        return None
    return None if before == after else [(units if size == 1 else wide).pop(0) for size in after]


def _moved_dims(editor: Editor, end: Node, order: Sequence[int]) -> dict[Node, Sizes]:
    """Return the new dims of all that leads from Reshapes to one that moves axes, nothing where it cannot have them."""
    found, pending = dict[Node, Sizes](), [end.operand(0)]
    axes = [axis for axis, source in enumerate(order) if axis != source]
    while pending:
        value = pending.pop()
        maker, dims = value.producer, editor.shapes[value].sizes() or ()
        is_new = editor.is_untouched(value) and not value.is_output
        wide = [axis for axis in order if len(dims) == len(order) and dims[axis] != 1]
        if maker is None or not wide or wide != sorted(wide) or 0 in dims or not is_new:
            return {}
        if maker.scope is not end.scope or not editor.is_free(maker) or len(maker.results) > 1:
            return {}
        if maker not in found and maker.operator not in RESHAPING:
            try:
                layout = find_layout(editor.facts(maker))
            except UnknownError:
                return {}
            is_alike = len(layout.kinds) == len(order) and all(layout.kinds[axis] == FREE for axis in axes)
            if not is_alike or layout.sizes is not None:
                return {}
            pending += [maker.operand(at) for at, own in layout.inputs.items() if any(own[axis] != 1 for axis in axes)]
        found[maker] = tuple(dims[axis] for axis in order)
    return found


@dataclass(frozen=True)
class ReduceInterfaceRank(Pass):
    """Declare each input and output of rank 5 and more with four axes: a stacked cache `[layers, b, h, s, d]`.

    Axes of 1 go, then the first axes become one, so that the axis of a cache's slots stays an axis. The bytes and their
    order stay the same: the host declares another shape for the same buffer. A Reshape inside gives the model the dims
    that it was written for; `reduce-rank` removes it. This changes the interface, so it runs only where it is asked for
    by name.

    Legality: the dims are numbers, none is 0; an input has no default, and an output is computed by a node.

    Attributes:
        rank: The highest rank that is left.
        only: The inputs and outputs to change; all of them where none is named.

    Before:

        agraph (float[3, 2, 1, 4, 8] past) => (float[3, 2, 1, 4, 8] present) {
            present = Relu (past)
        }

    After:

        agraph (float[3, 2, 4, 8] past) => (float[3, 2, 4, 8] present)
        <int64[5] past_dims = {3, 2, 1, 4, 8}, int64[4] present_dims = {3, 2, 4, 8}> {
            past_high = Reshape (past, past_dims)
            present_high = Relu (past_high)
            present = Reshape (present_high, present_dims)
        }
    """

    changes_interface = True

    rank: int = 4
    only: tuple[str, ...] = ()

    def run(self, model: Model) -> Outcome:
        editor = Editor(model)
        graph, declined = model.graph, list[Declined]()
        reduced: dict[str, Sequence[int]] = {}
        last: list[NewNode] = []
        for value in (*graph.inputs, *dict.fromkeys(graph.outputs)):
            is_asked_for = not self.only or value.name in self.only
            if (editor.shapes[value].rank or 0) <= self.rank or value.name in reduced or not is_asked_for:
                continue
            try:
                reduced[value.name] = self._reduce(editor, value, last)
            except MatchFailure as failure:
                declined.append(Declined(value.name, f"stays of rank {editor.shapes[value].rank}: {failure.reason}"))
        if not reduced:
            return Outcome(model, declined=tuple(declined))
        proto = editor.result().proto
        for info in (*proto.graph.input, *proto.graph.output):
            if info.name in reduced:
                shape = info.type.tensor_type.shape
                del shape.dim[:]
                for dim in reduced[info.name]:
                    shape.dim.add().dim_value = dim
        proto.graph.node.extend(new.to_proto() for new in last)
        text = f"{len(reduced):,} inputs and outputs have at most {self.rank} axes"
        return Outcome(model.with_proto(proto), (text,), tuple(declined))

    def _reduce(self, editor: Editor, value: Value, last: list[NewNode]) -> Sequence[int]:
        dims = sizes_of(editor, value)
        if 0 in dims:
            raise MatchFailure("it has no elements")
        low = interface_axes(dims, self.rank).dims(dims, len(dims))
        high, shape = editor.unique_name(f"{value.name}_high"), f"{value.name}_dims"
        if value.producer is not None:
            editor.rename(value, high)
            last.append(make_reshape(high, editor.integers(low, shape), value.name))
        elif value.kind != "input" or value.tensor is not None or value in editor.model.graph.outputs:
            raise MatchFailure("it has a default, or is an output too")
        elif editor.replace_all_uses(value, high):
            editor.insert_first(editor.model.graph, make_reshape(value.name, editor.integers(dims, shape), high))
        return low


def interface_axes(dims: Sequence[int], rank: int) -> Axes:
    """Return which axes of an input or output are left, so that a host knows where its slots are."""
    return fold_axes([tuple(dims)], [FREE] * len(dims), rank)
