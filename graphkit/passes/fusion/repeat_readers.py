"""The readers of repeated heads, and whether they could read each head once instead."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.operators import UNARY, broadcasts
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.repeats import HEADS, Repeat
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import const

__all__ = ["MATRIX", "Product", "RepeatReaders"]

SHAPE_SLICE_SINCE = 15  # of Shape: a part of the dims
MATRIX = 2  # the first axis of a matrix, behind batch and heads


@dataclass(frozen=True)
class Product:
    """A MatMul whose right operand is repeated.

    Attributes:
        node: The MatMul.
        rows: The shape that makes rows of the queries of a group; None where it is not constant.
        back: The shape that makes heads of these rows in what it gives; None where it is not constant.
    """

    node: Node
    rows: tuple[int, ...] | None
    back: tuple[int, ...] | None


class RepeatReaders:
    """All readers of a repeat's copies, direct or behind nodes that treat all heads alike.

    Attributes:
        products: The MatMuls.
        movers: What treats all heads alike, in the order of reading.
        shapes: What asks for the dims.
        once: The shape that gives the heads once.
        obstacle: Why the copies are needed, "" where they are not.
        is_operand: Whether a MatMul reads them.
        is_waiting: Whether another edit has to come first.
    """

    def __init__(self, editor: Editor, repeat: Repeat) -> None:
        self.editor, self.repeat = editor, repeat
        self.products: list[Product] = []
        self.movers: list[Node] = []
        self.shapes: list[Node] = []
        self.once = reshape_spec(editor.shapes[repeat.source].dims or (), repeat.dims)
        self.obstacle = "" if self.once is not None else "no constant shape gives its heads, which may be empty"
        if repeat.is_in_turn:
            self.obstacle = "its heads come in turn, and those of a group have to be neighbours"
        self.is_operand = self.is_waiting = False
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
            need = self._read(copies, node, index)
            self.obstacle = self.obstacle or need

    def _read(self, copies: Value, node: Node, index: int) -> str:
        """Sort a reader in, or return why it needs the copies."""
        if not self.editor.is_visible(self.repeat.source, node.scope):
            return f"{node.label} cannot read '{self.repeat.source.name}' by that name"
        if node.is_op("MatMul") and index == 1:
            self.is_operand = True
            product = self._product(copies, node)
            if isinstance(product, str):
                return product
            self.products.append(product)
        elif node.is_op("Shape"):
            self.shapes.append(node)
        elif _is_alike(self.editor, copies, node, index):
            self.movers.append(node)
        else:
            return f"{node.label} needs its copies"
        return ""

    def _product(self, copies: Value, node: Node) -> Product | str:
        queries = node.input(0)
        left = self.editor.shapes[queries].dims if queries is not None else None
        right = self.editor.shapes[copies].dims
        if left is None or right is None or len(left) != len(right) or left[:MATRIX] != right[:MATRIX]:
            return f"the left operand of {node.label} is not known to be of the same batch and heads"
        batch, heads, count, size = left
        rows = (batch, const(self.repeat.heads), count * self.repeat.count)
        to_rows = reshape_spec(left, (*rows, size))
        to_heads = reshape_spec((*rows, right[-1]), (batch, heads, count, right[-1]))
        if (to_rows is None or to_heads is None) and node.scope.opset() < SHAPE_SLICE_SINCE:
            return f"{node.label} may be empty, where a shape that makes rows takes opset {SHAPE_SLICE_SINCE}"
        return Product(node, to_rows, to_heads)


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
