"""Let grouped queries read the heads of keys and values that they share, without copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.view import Node, Value
from graphkit.passes.fusion.repeat_readers import MATRIX, Product, RepeatReaders
from graphkit.rewrite.base import ROUNDING
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput, attributes_of
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.paths import output_of
from graphkit.rewrite.repeats import COPYING, RANK, Repeat, repeat_of

__all__ = ["ShareKvHeads"]

RESHAPE_SINCE = 5  # from which its shape is an input


@dataclass(frozen=True)
class ShareKvHeads(Rewrite):
    """Multiply the queries of a group with the one head that they share, instead of with copies of it.

    Exporters repeat each head of the keys and values for the queries of its group (Unsqueeze, Expand, Reshape; Tile, a
    Concat of copies, or a Gather do the same), which copies the whole cache at every step. The queries of a group
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

    largest_error: ClassVar[float] = ROUNDING

    def edit(self, editor: Editor) -> None:
        for node in list(editor.nodes(*COPYING)):
            repeat = repeat_of(editor, node) if node.scope.opset() >= RESHAPE_SINCE else None
            if repeat is None or repeat.count == 1:
                continue
            readers = RepeatReaders(editor, repeat)
            if not readers.is_operand or readers.is_waiting:
                continue
            if readers.obstacle:
                editor.decline(node, readers.obstacle)
            else:
                _share(editor, repeat, readers)


def _share(editor: Editor, repeat: Repeat, readers: RepeatReaders) -> None:
    """Let the readers of the copies read each head once."""
    shared: dict[Value | None, NodeInput] = {repeat.node.outputs[0]: _heads(editor, repeat, readers.once or ())}
    for mover in readers.movers:
        out = output_of(mover)
        shared[out] = name = editor.unique_name(f"{out.name}_shared")
        inputs = [shared.get(value, value) for value in mover.inputs]
        editor.insert_before(mover, NewNode(mover.op_type, inputs, [name], attributes_of(mover), like=mover))
    for product in readers.products:
        _multiply(editor, product, shared[product.node.inputs[1]], repeat)
    for shape in readers.shapes:
        _measure(editor, shape, shared[shape.inputs[0]], repeat.count)
    editor.note("repeat(s) of heads removed")


def _heads(editor: Editor, repeat: Repeat, once: tuple[int, ...]) -> NodeInput:
    """Return the tensor of unrepeated heads; the nodes that repeat them stay until nothing reads them."""
    if editor.shapes[repeat.source].dims == repeat.dims:
        editor.take(repeat.node)
        return repeat.source
    name = editor.unique_name(f"{repeat.source.name}_heads")
    shape = editor.integers(once, f"{name}_shape")
    editor.insert_before(repeat.node, NewNode("Reshape", [repeat.source, shape], [name], like=repeat.node))
    return name


def _multiply(editor: Editor, product: Product, heads: NodeInput, repeat: Repeat) -> None:
    """Put a MatMul of rows in the place of one of heads."""
    left, out = product.node.inputs[0], output_of(product.node)
    assert left is not None
    rows, made = editor.unique_name(f"{left.name}_rows"), editor.unique_name(f"{out.name}_rows")
    sizes: list[NewNode] = []
    if product.rows is not None and product.back is not None:
        to_rows, to_heads = (
            editor.integers(product.rows, f"{rows}_shape"),
            editor.integers(product.back, f"{out.name}_shape"),
        )
    else:
        to_rows, to_heads = editor.unique_name(f"{rows}_shape"), editor.unique_name(f"{out.name}_shape")
        sizes = _sizes(editor, left, repeat, to_rows, to_heads)
    editor.replace(
        product.node,
        *sizes,
        NewNode("Reshape", [left, to_rows], [rows]),
        NewNode("MatMul", [rows, heads], [made], like=product.node),
        NewNode("Reshape", [made, to_heads], [out.name]),
    )


def _sizes(editor: Editor, left: Value, repeat: Repeat, to_rows: str, to_heads: str) -> list[NewNode]:
    """Return nodes that give the shapes `[0, heads, queries * count, 0]` and `[0, heads * count, queries, 0]`."""
    queries, rows = editor.unique_name(f"{to_rows}_queries"), editor.unique_name(f"{to_rows}_rows")
    last = editor.integers([0], f"{to_rows}_last")
    few = editor.integers([0, repeat.heads], f"{to_rows}_heads")
    many = editor.integers([0, repeat.heads * repeat.count], f"{to_heads}_heads")
    return [
        NewNode("Shape", [left], [queries], {"start": MATRIX, "end": MATRIX + 1}),
        NewNode("Mul", [queries, editor.integers([repeat.count], f"{to_rows}_count")], [rows]),
        NewNode("Concat", [few, rows, last], [to_rows], {"axis": 0}),
        NewNode("Concat", [many, queries, last], [to_heads], {"axis": 0}),
    ]


def _measure(editor: Editor, node: Node, source: NodeInput, count: int) -> None:
    """Let a Shape of the copies give their dims without them."""
    out = output_of(node)
    once = editor.unique_name(f"{out.name}_once")
    times = [1, count, *[1] * (RANK - MATRIX)][node.attr("start", 0) : node.attr("end", RANK)]
    editor.replace(
        node,
        NewNode("Shape", [source], [once], attributes_of(node), like=node),
        NewNode("Mul", [once, editor.integers(times, f"{out.name}_times")], [out.name]),
    )
