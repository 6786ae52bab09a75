"""Let grouped queries read the heads of keys and values that they share, without copies."""

from __future__ import annotations

from msgspec import Struct

from graphkit.graph.new_nodes import RESHAPE_SINCE, SHAPE_SLICE_SINCE, make_concat, make_reshape
from graphkit.graph.operator_traits import RESHAPING, UNARY, broadcasts_inputs, joined_parts
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, copy_node
from graphkit.shapes import const

HEADS = 1  # the axis of heads in [batch, heads, ...]
RANK = 4
COPYING = ("Reshape", "Expand", "Tile", "Concat", "Gather")  # what may be the last node of a repeat
MATRIX = 2  # the first axis of a matrix, behind batch and heads


class Repeat(Struct, frozen=True):
    """A tensor `[batch, heads * count, ...]` in which each head comes `count` times."""

    node: Node  # the node that gives it
    source: Value  # the heads once, in the order of elements of `dims`
    dims: Dims  # `[batch, heads, ...]`
    count: int  # how often each head comes
    is_in_turn: bool = False  # whether all heads come in turn (0, 1, 0, 1), not each one and its copies (0, 0, 1, 1)

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return int(self.dims[HEADS])


def repeat_of(editor: Editor, node: Node) -> Repeat | None:
    """Return a node's output as a repeat, None where it is no known one."""
    data = node.input(0)
    before, after = editor.shapes[data].dims, editor.shapes[node.outputs[0] if node.outputs else None].dims
    if data is None or before is None or after is None or len(after) != RANK:
        return None
    if node.is_op("Reshape"):
        return _match_grown_axis(editor, node, after)
    heads, total = before[HEADS].constant if len(before) > HEADS else None, after[HEADS].constant
    if len(before) != RANK or not heads or not total or total % heads:
        return None
    count = total // heads
    if node.is_op("Gather"):  # heads taken by constant indices: 0, 0, 1, 1
        taken = editor.known_integers(node.input(1))
        is_repeat = node.axis(RANK) == HEADS and editor.shapes[node.input(1)].rank == 1
        is_repeat = is_repeat and taken == [place // count for place in range(total)]
        return Repeat(node, data, before, count) if is_repeat else None
    is_same = (before[:HEADS], before[HEADS + 1 :]) == (after[:HEADS], after[HEADS + 1 :])
    if not is_same or not _is_copying(node, data, HEADS, RANK):
        return None
    return Repeat(node, data, before, count, is_in_turn=heads > 1)  # without another axis: all in turn, or the only one


def _match_grown_axis(editor: Editor, node: Node, after: Dims) -> Repeat | None:
    """[batch, heads, 1, ...], grown to [batch, heads, count, ...], with both axes made one."""
    grown = node.input(0)
    dims = editor.shapes[grown].dims
    if grown is None or grown.producer is None or dims is None or len(dims) != RANK + 1:
        return None
    batch, first, second, *rest = dims
    if after != (batch, first * second, *rest):
        return None
    source = grown.producer.input(0)
    for heads, count, axis in ((first, second, HEADS + 1), (second, first, HEADS)):
        if source is None or heads.constant is None or count.constant is None:
            continue
        if editor.shapes[source].dims != (*dims[:axis], const(1), *dims[axis + 1 :]):
            continue
        if _is_copying(grown.producer, source, axis, len(dims)):
            once, maker = (batch, heads, *rest), source.producer
            inner = maker.input(0) if maker is not None and maker.operator in RESHAPING else None
            if inner is not None and editor.shapes[inner].dims == once:  # which only another axis was put into
                source = inner
            return Repeat(node, source, once, count.constant, axis == HEADS and heads != const(1))
    return None


def _is_copying(node: Node, data: Value, axis: int, rank: int) -> bool:
    """Whether a node whose output is longer on that axis only copies its input."""
    if parts := joined_parts(node):
        return node.attr("axis", int) in (axis, axis - rank) and all(each is data for each in parts)
    return node.is_op("Expand", "Tile")


class Product(Struct, frozen=True):
    """A MatMul whose right operand is repeated."""

    node: Node  # the MatMul
    rows: tuple[int, ...] | None  # the shape that makes rows of the queries of a group; None where it is not constant
    back: tuple[int, ...] | None  # the shape that makes heads of these rows in the result; None where not constant


class RepeatReaders:
    """All readers of a repeat's copies, direct or behind nodes that treat all heads alike."""

    def __init__(self, editor: Editor, repeat: Repeat) -> None:
        self.editor, self.repeat = editor, repeat
        self.products: list[Product] = []  # the MatMuls
        self.movers: list[Node] = []  # nodes that treat all heads alike, in the order of reading
        self.shapes: list[Node] = []  # the Shapes of the copies
        self.once = reshape_spec(editor.shapes[repeat.source].dims or (), repeat.dims)  # which gives the heads once
        self.failures: list[MatchFailure] = []  # why the copies are needed, none where they are not
        if repeat.is_in_turn:
            self.failures.append(MatchFailure("its heads come in turn, and those of a group have to be neighbours"))
        elif self.once is None:
            self.failures.append(MatchFailure("no constant shape gives its heads, which may be empty"))
        self.is_operand = self.is_waiting = False  # whether a MatMul reads them, and another edit has to come first
        self._follow_copies(repeat.node.outputs[0])
        for mover in self.movers:
            self._follow_copies(mover.outputs[0])  # which adds to the movers

    def _follow_copies(self, copies: Value | None) -> None:
        if copies is None:
            return
        if copies.is_output:
            self.failures.append(MatchFailure(f"'{copies.name}' is an output"))
        self.is_waiting = self.is_waiting or copies in self.editor.aliases
        for node, index in copies.consumers:
            self.is_waiting = self.is_waiting or not self.editor.is_free(node)
            try:
                self._sort_reader(copies, node, index)
            except MatchFailure as failure:
                self.failures.append(failure)

    def _sort_reader(self, copies: Value, node: Node, index: int) -> None:
        """Sort a reader in, or raise a MatchFailure where it needs the copies."""
        if not self.editor.is_visible(self.repeat.source, node.scope):
            raise MatchFailure(f"{node.label} cannot read '{self.repeat.source.name}' by that name")
        if node.is_op("MatMul") and index == 1:
            self.is_operand = True
            left, right = (self.editor.shapes[value].dims for value in (node.input(0), copies))
            if left is None or right is None or len(left) != len(right) or left[:MATRIX] != right[:MATRIX]:
                raise MatchFailure(f"the left operand of {node.label} is not known to be of the same batch and heads")
            batch, heads, count, size = left
            rows = (batch, const(self.repeat.heads), count * self.repeat.count)
            to_rows = reshape_spec(left, (*rows, size))
            to_heads = reshape_spec((*rows, right[-1]), (batch, heads, count, right[-1]))
            if None in (to_rows, to_heads) and node.scope.opset() < SHAPE_SLICE_SINCE:
                why = f"may be empty, where a shape that makes rows takes opset {SHAPE_SLICE_SINCE}"
                raise MatchFailure(f"{node.label} {why}")
            self.products.append(Product(node, to_rows, to_heads))
        elif node.is_op("Shape"):
            self.shapes.append(node)
        elif _is_alike(self.editor, copies, node, index):
            self.movers.append(node)
        else:
            raise MatchFailure(f"{node.label} needs its copies")


def _is_alike(editor: Editor, copies: Value, node: Node, index: int) -> bool:
    """Whether a node does the same with each head, and keeps batch and heads where they are."""
    out, dims = node.outputs[0], editor.shapes[copies].dims
    if out is None or len(node.outputs) != 1 or node.domain or dims is None:
        return False
    if node.is_op("Transpose"):
        return (node.attr("perm", tuple) or ())[:MATRIX] == (0, HEADS)
    if editor.shapes[out].dims != dims:
        return False
    if node.is_op(*UNARY):
        return index == 0
    others = [editor.shapes[value].dims for value in node.inputs if value is not copies]
    if not broadcasts_inputs(node) or len(others) != len(node.inputs) - 1:
        return False
    return all(each is not None and (len(each) <= MATRIX or each[-MATRIX - 1].constant == 1) for each in others)


class ShareKvHeads(NodeRewrite):
    """Multiply the queries of a group with the one head that they share, instead of with copies of it.

    Exporters repeat each head of the keys and values for the queries of its group (Unsqueeze, Expand, Reshape; a Tile,
    copies that are joined, or indices do the same), which copies the whole cache at every step. The queries of a group
    become rows of one matrix, `[batch, heads, group * rows, ...]`: that and its way back are Reshapes, which copy
    nothing. A kernel may add up larger matrices in another order: the last digits of results may change.

    Legality: the copies of a head are neighbours, on axis 1 of a tensor of rank 4. All that reads them is the right
    operand of MatMuls whose left operand has as many heads and no others in its batch, directly or through what treats
    all heads alike: a Transpose of the matrices, a scale, a Cast. A Shape of the copies is calculated. So is the shape
    that makes rows where tensors may be empty and no constant one does, from opset 15 on.

    Before:

        agraph (float[B, 4, S, 8] q, float[B, 2, 8, T] k) => (float[B, 4, S, T] y)
        <int64[1] two = {2}, int64[5] copies = {1, 1, 2, 1, 1}, int64[4] heads = {0, 4, 8, -1}> {
            one = Unsqueeze (k, two)
            many = Expand (one, copies)
            repeated = Reshape (many, heads)
            y = MatMul (q, repeated)
        }

    After:

        agraph (float[B, 4, S, 8] q, float[B, 2, 8, T] k) => (float[B, 4, S, T] y)
        <int64[4] q_rows_shape = {0, 2, -1, 8}, int64[4] y_shape = {0, 4, -1, 0}> {
            q_rows = Reshape (q, q_rows_shape)
            y_rows = MatMul (q_rows, k)
            y = Reshape (y_rows, y_shape)
        }
    """

    largest_error = ROUNDING
    operators = COPYING

    def edit_node(self, editor: Editor, node: Node) -> None:
        repeat = repeat_of(editor, node) if node.scope.opset() >= RESHAPE_SINCE else None
        if repeat is None or repeat.count == 1:
            return
        readers = RepeatReaders(editor, repeat)
        if not readers.is_operand or readers.is_waiting:
            return
        if readers.failures:
            raise readers.failures[0]
        heads: NodeInput = repeat.source
        if editor.shapes[repeat.source].dims == repeat.dims:
            editor.take(repeat.node)  # the nodes that repeat stay until nothing reads them
        else:
            heads = editor.unique_name(f"{repeat.source.name}_heads")
            shape = editor.integers(readers.once or (), f"{heads}_shape")
            editor.insert_before(repeat.node, make_reshape(repeat.source, shape, heads, like=repeat.node))
        shared: dict[Value | None, NodeInput] = {repeat.node.outputs[0]: heads}
        for mover in readers.movers:
            out = mover.result()
            shared[out] = name = editor.unique_name(f"{out.name}_shared")
            inputs = [shared.get(value, value) for value in mover.inputs]
            editor.insert_before(mover, copy_node(mover, inputs, [name]))
        for product in readers.products:
            _multiply_rows(editor, product, shared[product.node.inputs[1]], repeat)
        for reader in readers.shapes:  # of the copies: their dims are given without them
            out = reader.result()
            once = editor.unique_name(f"{out.name}_once")
            times = [1, repeat.count, *[1] * (RANK - MATRIX)][reader.attr("start", 0) : reader.attr("end", RANK)]
            editor.replace(
                reader,
                copy_node(reader, [shared[reader.inputs[0]]], [once]),
                NewNode("Mul", [once, editor.integers(times, f"{out.name}_times")], [out.name]),
            )
        editor.note("repeat(s) of heads removed")


def _multiply_rows(editor: Editor, product: Product, heads: NodeInput, repeat: Repeat) -> None:
    left, out = product.node.operand(0), product.node.result()
    rows, made = editor.unique_name(f"{left.name}_rows"), editor.unique_name(f"{out.name}_rows")
    sizes: list[NewNode] = []
    if product.rows is not None and product.back is not None:
        to_rows = editor.integers(product.rows, f"{rows}_shape")
        to_heads = editor.integers(product.back, f"{out.name}_shape")
    else:  # nodes give the shapes `[0, heads, queries * count, 0]` and `[0, heads * count, queries, 0]`
        to_rows, to_heads = editor.unique_name(f"{rows}_shape"), editor.unique_name(f"{out.name}_shape")
        queries, many_rows = editor.unique_name(f"{to_rows}_queries"), editor.unique_name(f"{to_rows}_rows")
        last = editor.integers([0], f"{to_rows}_last")
        few = editor.integers([0, repeat.heads], f"{to_rows}_heads")
        many = editor.integers([0, repeat.heads * repeat.count], f"{to_heads}_heads")
        sizes = [
            NewNode("Shape", [left], [queries], {"start": MATRIX, "end": MATRIX + 1}),
            NewNode("Mul", [queries, editor.integers([repeat.count], f"{to_rows}_count")], [many_rows]),
            make_concat([few, many_rows, last], 0, to_rows),
            make_concat([many, queries, last], 0, to_heads),
        ]
    editor.replace(
        product.node,
        *sizes,
        make_reshape(left, to_rows, rows),
        NewNode("MatMul", [rows, heads], [made], like=product.node),
        make_reshape(made, to_heads, out.name),
    )
