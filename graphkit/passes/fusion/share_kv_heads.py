"""Let grouped queries read the heads of keys and values that they share, without copies."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.operators import UNARY, broadcasts
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput, attributes_of
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.repeats import COPYING, HEADS, RANK, Repeat, repeat_of
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import const

__all__ = ["ShareKvHeads"]

RESHAPE_SINCE = 5  # from which its shape is an input
MATRIX = 2  # the axes of a matrix, behind batch and heads


@dataclass(frozen=True)
class ShareKvHeads(Rewrite):
    """Multiply the queries of a group with the one head that they share, instead of with copies of it.

    Exporters repeat each head of the keys and values for the queries of its group (Unsqueeze, Expand, Reshape; Tile, a
    Concat of copies, or a Gather do the same), which copies the whole cache at every step. The queries of a group
    become rows of one matrix, `[batch, heads, group * rows, ...]`: that and its way back are Reshapes, which copy
    nothing. A kernel may add up larger matrices in another order: the last digits of results may change.

    Legality: the copies of a head are neighbours, on axis 1 of a tensor of rank 4. All that reads them is the right
    operand of MatMuls whose left operand has as many heads and no others in its batch, directly or through what treats
    all heads alike: a Transpose of the matrices, a scale, a Cast. A Shape of the copies is calculated. The rows have a
    constant Reshape at all legal dims.

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

    def edit(self, editor: Editor) -> None:
        for node in list(editor.nodes(*COPYING)):
            repeat = repeat_of(editor, node) if node.scope.opset() >= RESHAPE_SINCE else None
            if repeat is None or repeat.count == 1:
                continue
            readers = _Readers(editor, repeat)
            if not readers.products or readers.is_waiting:
                continue
            if readers.obstacle:
                editor.decline(node, readers.obstacle)
            else:
                _share(editor, repeat, readers)


@dataclass(frozen=True)
class _Product:
    """A MatMul whose right operand is repeated.

    Attributes:
        node: The MatMul.
        rows: The shape that makes rows of the queries of a group.
        back: The shape that makes heads of these rows in what it gives.
    """

    node: Node
    rows: tuple[int, ...]
    back: tuple[int, ...]


class _Readers:
    """All that reads the copies of a repeat, directly or through what treats all heads alike.

    Attributes:
        movers: What treats all heads alike, in the order of reading.
        products: The MatMuls.
        shapes: What asks for the dims.
        once: The shape that gives the heads once.
        obstacle: Why the copies are needed, "" where they are not.
        is_waiting: Whether another edit has to come first.
    """

    def __init__(self, editor: Editor, repeat: Repeat) -> None:
        self.editor, self.repeat = editor, repeat
        self.movers: list[Node] = []
        self.products: list[_Product] = []
        self.shapes: list[Node] = []
        self.obstacle = (
            "its heads come in turn, and those of a group have to be neighbours" if repeat.is_in_turn else ""
        )
        self.is_waiting = False
        once = reshape_spec(editor.shapes[repeat.source].dims or (), repeat.dims)
        self.once = once or ()
        if once is None:
            self.obstacle = self.obstacle or "no constant shape gives its heads where one may be empty"
        self._follow(repeat.node.outputs[0])
        for mover in self.movers:
            self._follow(mover.outputs[0])  # which adds to the movers

    def _follow(self, copies: Value | None) -> None:
        if copies is None:
            return
        if self.editor.is_output(copies):
            self.obstacle = self.obstacle or f"'{copies.name}' is an output"
        self.is_waiting = self.is_waiting or self.editor.has_alias(copies)
        for node, index in copies.consumers:
            self.is_waiting = self.is_waiting or not self.editor.is_free(node)
            needed = self._read(copies, node, index)
            self.obstacle = self.obstacle or needed

    def _read(self, copies: Value, node: Node, index: int) -> str:
        """Sort a reader in, or return why it needs the copies."""
        if not self.editor.is_visible(self.repeat.source, node.scope):
            return f"{node.label} cannot read '{self.repeat.source.name}' by that name"
        if node.is_op("MatMul") and index == 1:
            found = self._product(copies, node)
            if isinstance(found, str):
                return found
            self.products.append(found)
        elif node.is_op("Shape"):
            self.shapes.append(node)
        elif _is_alike(self.editor, copies, node, index):
            self.movers.append(node)
        else:
            return f"{node.label} needs its copies"
        return ""

    def _product(self, copies: Value, node: Node) -> _Product | str:
        left, right = (
            self.editor.shapes[value].dims if value is not None else None for value in (node.input(0), copies)
        )
        heads, count = const(self.repeat.heads), self.repeat.count
        if left is None or right is None or len(left) != len(right) or left[:MATRIX] != right[:MATRIX]:
            return f"the left operand of {node.label} is not known to be of the same batch and heads"
        batch, _, queries, _ = left
        rows = reshape_spec(left, (batch, heads, queries * count, left[3]))
        back = reshape_spec((batch, heads, queries * count, right[3]), (batch, left[HEADS], queries, right[3]))
        if rows is None or back is None:
            return f"{node.label} may be empty, where no constant shape makes rows of its queries"
        return _Product(node, rows, back)


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
    others = [value for value in node.inputs if value is not copies]
    return broadcasts(node) and len(others) == len(node.inputs) - 1 and all(_has_no_heads(editor, v) for v in others)


def _has_no_heads(editor: Editor, value: Value | None) -> bool:
    dims = editor.shapes[value].dims if value is not None else None
    return dims is not None and (len(dims) <= MATRIX or dims[-MATRIX - 1].constant == 1)


def _share(editor: Editor, repeat: Repeat, readers: _Readers) -> None:
    """Let the readers of the copies read each head once."""
    shared: dict[Value | None, NodeInput] = {repeat.node.outputs[0]: _heads(editor, repeat, readers.once)}
    for mover in readers.movers:
        out = mover.outputs[0]
        assert out is not None
        shared[out] = name = editor.unique_name(f"{out.name}_shared")
        inputs = [shared.get(value, value) for value in mover.inputs]
        editor.replace(mover, NewNode(mover.op_type, inputs, [name], attributes_of(mover), like=mover))
    for product in readers.products:
        left, right, out = product.node.inputs[0], product.node.inputs[1], product.node.outputs[0]
        assert left is not None
        assert out is not None
        rows, made = editor.unique_name(f"{left.name}_rows"), editor.unique_name(f"{out.name}_rows")
        editor.replace(
            product.node,
            NewNode("Reshape", [left, editor.integers(product.rows, f"{rows}_shape")], [rows]),
            NewNode("MatMul", [rows, shared[right]], [made], like=product.node),
            NewNode("Reshape", [made, editor.integers(product.back, f"{out.name}_shape")], [out.name]),
        )
    for shape in readers.shapes:
        _measure(editor, shape, shared[shape.inputs[0]], repeat.count)
    editor.note("repeat(s) of heads removed")


def _measure(editor: Editor, node: Node, source: NodeInput, count: int) -> None:
    """Let a Shape of the copies give their dims without them."""
    out = node.outputs[0]
    assert out is not None
    once = editor.unique_name(f"{out.name}_once")
    times = [1, count, *[1] * (RANK - MATRIX)][node.attr("start", 0) : node.attr("end", RANK)]
    editor.replace(
        node,
        NewNode("Shape", [source], [once], attributes_of(node), like=node),
        NewNode("Mul", [once, editor.integers(times, f"{out.name}_times")], [out.name]),
    )


def _heads(editor: Editor, repeat: Repeat, once: tuple[int, ...]) -> NodeInput:
    """Put what gives the heads once in the place of what repeats them, and return it."""
    if editor.shapes[repeat.source].dims == repeat.dims:
        editor.replace(repeat.node)
        return repeat.source
    name = editor.unique_name(f"{repeat.source.name}_heads")
    shape = editor.integers(once, f"{name}_shape")
    editor.replace(repeat.node, NewNode("Reshape", [repeat.source, shape], [name], like=repeat.node))
    return name
