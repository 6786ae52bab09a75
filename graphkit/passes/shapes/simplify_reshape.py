"""Simplify what only changes shapes: constant shapes, merged chains, pairs that undo each other; specs of Reshapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.graph.new_nodes import RESHAPE_SINCE, make_reshape
from graphkit.graph.operator_traits import EXTREMES, RESHAPING, UNARY, broadcasts_inputs, is_elementwise
from graphkit.graph.view import Node, Value, follow_chain
from graphkit.ops.tensor import Dims, dims_product
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, copy_node
from graphkit.shapes import Expr, lower, symbol
from graphkit.symbolic.expr import Atom, TooComplexError

MAX_SIZE = (1 << 63) - 1  # of a dim; what a model computes may be larger, which no tensor holds
Group = tuple[int, list[int]]  # the first axis before a Transpose, and the axes that a Reshape behind it makes


def reshape_spec(before: Sequence[Expr], after: Dims) -> tuple[int, ...] | None:
    """Return the constant shape with which a Reshape gives these dims, None where there is none.

    It is right at all legal dims, an empty tensor included, without `allowzero`.
    """
    spec = open_spec(before, after)
    numbers = tuple(size for size in spec if isinstance(size, int))
    return numbers if len(numbers) == len(spec) else None


def open_spec(before: Sequence[Expr], after: Dims) -> tuple[Expr | int, ...]:
    """Return the plainest shape with which a Reshape gives these dims: numbers, 0 to copy, -1, else expressions."""
    spec: list[Expr | int] = []
    for position, dim in enumerate(after):
        if (size := dim.constant) is not None and 0 < size <= MAX_SIZE:
            spec.append(size)
        else:
            spec.append(0 if position < len(before) and before[position] == dim else dim)
    unclear = [position for position, size in enumerate(spec) if isinstance(size, Expr)]
    unclear.sort(key=lambda position: -len(str(after[position])))
    for position in unclear:
        try:
            others = dims_product(after[:position] + after[position + 1 :])
        except TooComplexError:
            continue
        if lower(others) >= 1:
            spec[position] = -1
            break
    return tuple(spec)


def merged_dims(before: Dims, after: Dims) -> Dims | None:
    """Return the leading dims that a Reshape merges into the first one, None where it does something else."""
    more = len(before) - len(after)
    if not after or more < 1 or before[more + 1 :] != after[1:]:
        return None
    try:
        return before[: more + 1] if dims_product(before[: more + 1]) == after[0] else None
    except TooComplexError:
        return None


class CanonicalizeReshape(NodeRewrite):
    """Give each Reshape a constant shape, or remove it if it changes nothing.

    A number is written as such, a dim that equals the input's dim at the same position is written as 0 (copy), and one
    more dim may be -1. Legality: at most one dim is neither a number nor a copy, and -1 stands for it only if no other
    dim can be 0 at any legal input dims, because -1 could not be inferred then.

    Before:

        agraph (float[N, L, 32] x, float[N, L, 8, 4] z) => (float[N, L, 8, 4] y) {
            s = Shape (z)
            y = Reshape (x, s)
        }

    After:

        agraph (float[N, L, 32] x, float[N, L, 8, 4] z) => (float[N, L, 8, 4] y) <int64[4] y_shape = {0, 0, 8, 4}> {
            y = Reshape (x, y_shape)
        }
    """

    operators = ("Reshape",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data, shape, out = node.operand(0), node.input(1), node.result()
        before, after = editor.shapes[data].dims, editor.shapes[out].dims
        if shape is None or before is None or after is None:
            return
        if before == after:
            if editor.bypass(node, data):
                editor.note("Reshape(s) without effect removed")
            return
        if shape.is_constant:
            return
        if (spec := reshape_spec(before, after)) is None:
            raise MatchFailure(f"its shape has two dims that are neither numbers nor copied: {editor.shapes[out]}")
        name = editor.integers(spec, f"{out.name}_shape")
        if node.attr("allowzero", 0) != 0:
            editor.replace(node, make_reshape(data, name, out.name, like=node))
        else:
            editor.set_inputs(node, {1: name})
        editor.note("Reshape(s) given a constant shape")


class MergeChains(NodeRewrite):
    """Merge consecutive Reshape, Squeeze, Unsqueeze and Flatten into one Reshape, and Transposes into one.

    A chain that changes nothing is removed. Legality: the last shape can be written as a constant in the dims of the
    first tensor (see canonicalize-reshape), and no other node reads the inner tensors, unless the whole chain is
    removed. A Transpose that only moves dims of 1 counts as a Reshape, and so does a Gather of the one element of an
    axis. Where no constant shape will do, or a -1 in it could not be inferred though the chain runs, as with a batch of
    0, one Unsqueeze or Squeeze takes its place, if it does the same.

    Before:

        agraph (float[N, L, 8] x) => (float[8, L, N] y) <int64[1] first = {0}> {
            a = Unsqueeze (x, first)
            b = Squeeze (a, first)
            c = Transpose <perm = [2, 1, 0]> (b)
            d = Transpose <perm = [0, 2, 1]> (c)
            e = Transpose <perm = [0, 2, 1]> (d)
            y = Neg (e)
        }

    After:

        agraph (float[N, L, 8] x) => (float[8, L, N] y) {
            c = Transpose <perm = [2, 1, 0]> (x)
            y = Neg (c)
        }
    """

    operators = (*sorted(RESHAPING), "Gather", "Transpose")

    def edit_node(self, editor: Editor, node: Node) -> None:
        if not is_reshaping(editor, node):
            if node.is_op("Transpose"):
                self._merge_transposes(editor, node)
            return

        def before(value: Value) -> Value | None:
            maker = value.producer
            is_link = maker is not None and maker.scope is node.scope and is_reshaping(editor, maker)
            return maker.input(0) if maker is not None and is_link else None

        out, chain = node.result(), list(follow_chain(node.input(0), before))
        if (after := editor.shapes[out].dims) is None or node.scope.opset() < RESHAPE_SINCE:
            return
        if (start := next((each for each in reversed(chain) if editor.shapes[each].dims == after), None)) is not None:
            if editor.bypass(node, start):
                editor.note("chain(s) of reshapes without effect removed")
            return
        first = 0 if node.is_op("Transpose") else 1
        inner = list(itertools.takewhile(lambda value: editor.only_reader(value) is not None, chain))
        for source in reversed(chain[first : len(inner) + 1]):  # nothing else reads what is in between
            if (new := _spell_chain(editor, node, source, [out, *chain[: chain.index(source)]])) is not None:
                editor.replace(node, new)
                editor.note(f"chain(s) of reshapes merged into one {new.op_type}")
                return

    def _merge_transposes(self, editor: Editor, node: Node) -> None:
        source, out = node.operand(0), node.result()
        maker = source.producer
        if maker is None or not maker.is_op("Transpose") or maker.scope is not node.scope:
            return
        first, second = maker.attr("perm", tuple), node.attr("perm", tuple)
        if first is None or second is None or len(first) != len(second):
            return
        perm, start = [first[axis] for axis in second], maker.operand(0)
        if perm == sorted(perm):
            if editor.bypass(node, start):
                editor.note("pair(s) of inverse Transposes removed")
        elif editor.only_reader(source) is node:
            editor.replace(node, NewNode("Transpose", [start], [out.name], {"perm": perm}, like=node))
            editor.note("pair(s) of Transposes merged")


def _spell_chain(editor: Editor, node: Node, source: Value, made: Sequence[Value]) -> NewNode | None:
    """Return one node that gives the last value of a chain, None where none does at all sizes at which the chain runs.

    The chain starts from `source` and ends with `node`; `made` has the outputs of its nodes, the last one first.
    """
    out = made[0]
    before, after = editor.shapes[source].dims, editor.shapes[out].dims
    if before is None or after is None:
        return None
    if (spec := reshape_spec(before, after)) is not None and _runs_where_chain_does(editor, spec, made):
        return editor.make_reshape(source, spec, out.name, node)
    for op_type, few, many in (("Unsqueeze", before, after), ("Squeeze", after, before)):
        if axes := inserted_axes(few, many):
            numbered = editor.make_numbered(node, op_type, source, axes, f"{out.name}_axes")
            return replace(numbered, outputs=[out.name], like=node)
    return None


def inserted_axes(few: Dims, many: Dims) -> list[int]:
    """Return which axes of 1 dims have that others lack, none where they are not the same otherwise."""
    axes, rest = list[int](), list(few)
    for axis, dim in enumerate(many):
        if rest and dim == rest[0]:
            del rest[0]
        elif dim == 1:
            axes.append(axis)
        else:
            return []
    return [] if rest else axes


def _runs_where_chain_does(editor: Editor, spec: Sequence[int], made: Sequence[Value]) -> bool:
    """Whether a -1 in a shape can be inferred wherever a chain runs, also where a dim is 0 that counts as 1 or more.

    A Reshape in the chain that infers a -1 fails where another dim of its own is 0: that is no loss then.
    """
    zeros = _possible_zeros(editor, made[0], spec.index(-1)) if -1 in spec else set()
    for value in made:
        node = value.producer
        sizes = editor.shapes[node.input(1)].elements if node is not None and node.is_op("Reshape") else None
        for place in (place for place, size in enumerate(sizes or ()) if size == -1):
            zeros -= _possible_zeros(editor, value, place)
    return not zeros


def _possible_zeros(editor: Editor, value: Value, but: int) -> set[Atom | Expr]:
    """Return the factors that make a tensor empty where they are 0, along another axis than one, if any size may be."""
    zeros: set[Atom | Expr] = set()
    for axis, dim in enumerate(editor.shapes[value].dims or ()):
        if axis != but and _may_be_zero(dim):
            zeros.update(dim.terms[0][0] if len(dim.terms) == 1 else [dim])
    return zeros


def is_reshaping(editor: Editor, node: Node) -> bool:
    """Whether a node keeps the order of the elements: a Transpose too, if it moves only dims of 1.

    So does a Gather of the one element of an axis.
    """
    if not node.is_op("Gather", "Transpose"):
        return node.operator in RESHAPING
    source, perm = node.input(0), node.attr("perm", tuple) if node.is_op("Transpose") else None
    dims = editor.shapes[source].dims if source is not None else None
    if dims and node.is_op("Gather") and (indices := node.input(1)) is not None:
        axis = node.axis(len(dims))
        return axis is not None and dims[axis] == 1 and editor.shapes[indices].elements in ((0,), (-1,))
    if dims is None or perm is None:
        return False
    moved = [axis for axis in perm if dims[axis] != 1]
    return moved == sorted(moved)


class CancelReshapes(NodeRewrite):
    """Remove Reshapes, Squeezes and Unsqueezes around elementwise nodes, which work on any dims.

    GPT-2 turns `[b, s, h]` into `[b*s, h]` for each Gemm, and back for each Gelu.

    Legality: the nodes in between are elementwise and read the tensors that such nodes before them give, all of one
    shape, or constants of one element; a node behind them gives the shape before them again. What else reads a result
    gets it from a Reshape of its own, as long as more of them go than come.

    Before:

        agraph (float[N, L, 8] x) => (float[M, 8] y)
        <int64[2] rows = {-1, 8}, int64[3] back = {-1, 1, 8}, float two = {2}> {
            a = Reshape (x, rows)
            b = Sigmoid (a)
            c = Reshape (b, back)
            d = Mul (c, two)
            e = Reshape (d, rows)
            y = Neg (e)
        }

    After:

        agraph (float[N, L, 8] x) => (float[M, 8] y) <int64[2] rows = {-1, 8}, float two = {2}> {
            a = Reshape (x, rows)
            b = Sigmoid (a)
            d_flat = Mul (b, two)
            y = Neg (d_flat)
        }
    """

    operators = tuple(sorted(RESHAPING))

    def edit_node(self, editor: Editor, node: Node) -> None:
        before, after = (editor.shapes[value].dims for value in (node.operand(0), node.result()))
        if before is None or after is None or before == after or node.scope.opset() < RESHAPE_SINCE:
            return
        if not any(is_elementwise(reader) for reader, _ in node.result().consumers):
            return
        region = _Region(editor, node, before, after)
        if region.saved_nodes > 0:
            region.write()
            editor.note("Reshape(s) around elementwise nodes removed", region.saved_nodes)


class _Region(Struct):
    """Elementwise nodes that can work on other dims."""

    editor: Editor
    first: Node  # the node that reshapes their source
    before: Dims  # the dims that they are to work on
    after: Dims  # those that they work on
    entries: dict[Value, Value] = field(default_factory=dict)  # reshaped tensors of these dims, and their sources
    nodes: list[Node] = field(default_factory=list)  # in the order in which they were found
    exits: list[Node] = field(default_factory=list)  # nodes that give the dims before again
    read: list[Value] = field(default_factory=list)  # the results that something else reads

    def __post_init__(self) -> None:
        pending = [value for value in self.first.results if self._is_entry(value)]
        known = set(pending)
        while pending:
            for node, _ in pending.pop().consumers:
                if node in self.nodes or not self._fits(node):
                    continue
                self.nodes.append(node)
                around = [value for value in (*node.inputs, *node.outputs) if value is not None and value not in known]
                reached = [value for value in around if value in self.entries or value in node.outputs]
                known.update(reached)
                pending += reached
        self.nodes.sort(key=lambda node: node.index)
        for value in [*self.entries]:
            if not any(node in self.nodes for node, _ in value.consumers):
                del self.entries[value]
        for value in (*self.entries, *(value for node in self.nodes for value in node.results)):
            others = [node for node, _ in value.consumers if node not in self.nodes]
            exits = [node for node in others if self._is_exit(node, value)]
            self.exits += [node for node in exits if node not in self.exits]
            if len(exits) < len(others) or value.is_output:
                self.read.append(value)

    def _is_entry(self, value: Value) -> bool:
        """Whether a value has the dims before where a node reshapes it; it is noted."""
        node = value.producer
        source = node.input(0) if node is not None and node.operator in RESHAPING else None
        if source is None or self.editor.shapes[value].dims != self.after or not self.editor.is_untouched(value):
            return False
        if self.editor.shapes[source].dims != self.before or value.scope is not self.first.scope:
            return False
        self.entries[value] = source
        return True

    def _is_exit(self, node: Node, value: Value) -> bool:
        out = node.outputs[0] if node.outputs else None
        if out is None or node.operator not in RESHAPING or node.input(0) is not value or not self.editor.is_free(node):
            return False
        has_dims = self.editor.shapes[out].dims == self.before
        return has_dims and not out.is_output and self.editor.is_untouched(out)

    def _fits(self, node: Node) -> bool:
        """Whether a node can work on the dims before."""
        outs = node.results
        if node.operator in EXTREMES and any(value.constant is not None for value in node.operands):
            return False
        if (
            not (node.operator in UNARY or broadcasts_inputs(node))
            or not self.editor.is_free(node)
            or node.scope is not self.first.scope
        ):
            return False
        if len(outs) != 1 or not self.editor.is_untouched(outs[0]) or self.editor.shapes[outs[0]].dims != self.after:
            return False
        return len(node.operands) == len(node.inputs) and all(map(self._is_readable, node.operands))

    def _is_readable(self, value: Value) -> bool:
        """Whether a value has the dims before, or is a constant of one element, which broadcasts to them."""
        if value in self.entries or value.producer in self.nodes or self._is_entry(value):
            return True
        tensor = value.constant
        return tensor is not None and math.prod(tensor.dims) == 1 and len(tensor.dims) <= len(self.before)

    @property
    def saved_nodes(self) -> int:
        gone = [value for value in self.entries if value not in self.read]
        back = [value for value in self.read if value not in self.entries]
        if not self.nodes or (back and reshape_spec(self.before, self.after) is None):
            return 0
        return len(gone) + len(self.exits) - len(back)

    def write(self) -> None:
        names: dict[Value, Value | str] = dict(self.entries)
        for node in self.nodes:
            (out,) = node.results
            names[out] = self.editor.unique_name(f"{out.name}_flat")
            inputs: list[NodeInput] = [names.get(value, value) if value is not None else None for value in node.inputs]
            new = copy_node(node, inputs, [str(names[out])])
            if out in self.read:
                shape = self.editor.integers(reshape_spec(self.before, self.after) or (), f"{out.name}_shape")
                self.editor.replace(node, new, make_reshape(names[out], shape, out.name))
            else:
                self.editor.insert_before(node, new)
        for node in self.exits:
            self.editor.bypass(node, names[node.operand(0)])


class MoveReshapeBeforeTranspose(NodeRewrite):
    """Split, merge, add or drop the axes of a transposed tensor before it is transposed.

    So the heads of torch's MultiheadAttention are split: Reshape, Transpose, Reshape, Transpose become one of each.
    Legality: each group of axes that the Reshape splits or merges lies side by side before the Transpose too, in the
    same order; nothing else reads the tensors in between; the new shape can be written as a constant that is right at
    all sizes. It is done where a Reshape before the Transpose, or a Transpose behind the Reshape, merges with it.

    Before:

        agraph (float[5, N, 8] x) => (float[N, 2, 5, 4] y)
        <int64[3] rows = {0, -1, 4}, int64[4] heads = {-1, 2, 5, 4}> {
            a = Reshape (x, rows)
            b = Transpose <perm = [1, 0, 2]> (a)
            y = Reshape (b, heads)
        }

    After:

        agraph (float[5, N, 8] x) => (float[N, 2, 5, 4] y) <int64[4] y_shape = {5, 0, 2, 4}> {
            y_split = Reshape (x, y_shape)
            y = Transpose <perm = [1, 2, 0, 3]> (y_split)
        }
    """

    operators = tuple(sorted(RESHAPING))

    def edit_node(self, editor: Editor, node: Node) -> None:
        turned, out = node.operand(0), node.result()
        transpose, following = turned.producer, editor.only_reader(out)
        if transpose is None or not transpose.is_op("Transpose") or editor.only_reader(turned) is not node:
            return
        source, perm = transpose.operand(0), transpose.attr("perm", tuple)
        before, after = editor.shapes[turned].dims, editor.shapes[out].dims
        if perm is None or before is None or not after or node.scope.opset() < RESHAPE_SINCE:
            return
        first = source.producer
        is_merged = first is not None and first.operator in RESHAPING and editor.only_reader(source) is transpose
        if not is_merged and (following is None or not following.is_op("Transpose")):
            return
        if (groups := _match_axes(before, after, perm)) is None or transpose.scope is not node.scope:
            return
        start = first.operand(0) if first is not None and is_merged and first.scope is node.scope else source
        moved = [axis for _, made in sorted(groups) for axis in made]
        dims, known = tuple(after[axis] for axis in moved), editor.shapes[start].dims
        spec = reshape_spec(known, dims) if known is not None else None
        if spec is None or (-1 in spec and any(_may_be_zero(dims[at]) for at, size in enumerate(spec) if size != -1)):
            return
        split = editor.unique_name(f"{out.name}_split")
        new_perm = [moved.index(axis) for axis in range(len(after))]
        editor.replace(
            node,
            make_reshape(start, editor.integers(spec, f"{out.name}_shape"), split, like=node),
            NewNode("Transpose", [split], [out.name], {"perm": new_perm}, like=transpose),
        )
        editor.note("Reshape(s) moved before a Transpose")


def _may_be_zero(dim: Expr) -> bool:
    return lower(dim.substitute({name: symbol(name, 0) for name in dim.symbols})) < 1


def _match_axes(before: Dims, after: Dims, perm: Sequence[int]) -> list[Group] | None:
    """Return which axes become which, in the order behind the Transpose, None where a group does not stay together."""
    groups: list[Group] = []
    sizes = dict(zip(perm, before, strict=True))  # by axis before the Transpose
    left, right = 0, 0
    while left < len(before) or right < len(after):
        if (counts := _next_group(before[left:], after[right:])) is None:
            return None
        taken, made = perm[left : left + counts[0]], [*range(right, right + counts[1])]
        left, right = left + counts[0], right + counts[1]
        if not taken:  # dims of 1 that are added: beside the group before, or first
            groups[-1:] = [(groups[-1][0], groups[-1][1] + made)] if groups else [(-1, made)]
            continue
        wide = [axis for axis in taken if sizes[axis] != 1] or [taken[0]]
        if wide != [axis for axis in range(wide[0], wide[-1] + 1) if axis in wide or sizes[axis] != 1]:
            return None
        groups.append((wide[0], made))
    return groups


def _next_group(before: Dims, after: Dims) -> tuple[int, int] | None:
    """Return how many of the next axes have as many elements as how many made of them, the fewest."""
    if not before or not after:
        return (len(before), len(after)) if all(dim == 1 for dim in (*before, *after)) else None
    if before[0] == after[0]:
        return 1, 1
    if before[0] == 1:
        return 1, 0
    if after[0] == 1:
        return 0, 1
    for few, many, is_split in ((before, after, True), (after, before, False)):
        for count in range(2, len(many) + 1):
            if dims_product(many[:count]) == few[0]:
                return (1, count) if is_split else (count, 1)
    return None
