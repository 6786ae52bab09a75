"""Heads that a graph repeats, as exporters do for the keys and values of grouped queries."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.operators import RESHAPING
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.shapes import const
from graphkit.shapes.tensor import Dims, numbers

__all__ = ["COPYING", "HEADS", "RANK", "Repeat", "repeat_of"]

HEADS = 1  # the axis of heads in [batch, heads, ...]
RANK = 4
COPYING = ("Reshape", "Expand", "Tile", "Concat", "Gather")  # what may be the last node of a repeat


@dataclass(frozen=True)
class Repeat:
    """A tensor `[batch, heads * count, ...]` in which each head comes `count` times.

    Attributes:
        node: What gives it.
        source: The heads once, in the order of elements of `dims`.
        dims: `[batch, heads, ...]`.
        count: How often each head comes.
        is_in_turn: Whether all heads come in turn (0, 1, 0, 1), instead of each one and its copies (0, 0, 1, 1).
    """

    node: Node
    source: Value
    dims: Dims
    count: int
    is_in_turn: bool = False

    @property
    def heads(self) -> int:
        """How many heads there are."""
        number = self.dims[HEADS].constant
        assert number is not None
        return number


def repeat_of(editor: Editor, node: Node) -> Repeat | None:
    """Return a node's output as a repeat, None where it is no known one."""
    out = node.outputs[0] if node.outputs else None
    after = editor.shapes[out].dims if out is not None else None
    if after is None or len(after) != RANK:
        return None
    if node.is_op("Reshape"):
        return _reshaped(editor, node, after)
    if node.is_op("Gather"):
        return _gathered(editor, node, after)
    return _copied_heads(editor, node, after)


def _reshaped(editor: Editor, node: Node, after: Dims) -> Repeat | None:
    """[batch, heads, 1, ...], grown to [batch, heads, count, ...], with both axes made one."""
    grown = node.input(0)
    dims = editor.shapes[grown].dims if grown is not None else None
    if grown is None or grown.producer is None or dims is None or len(dims) != RANK + 1:
        return None
    batch, first, second, *rest = dims
    if after != (batch, first * second, *rest):
        return None
    for heads, count, axis in ((first, second, HEADS + 1), (second, first, HEADS)):
        source = _copied(editor, grown.producer, dims, axis)
        if source is not None and heads.constant is not None and count.constant is not None:
            once = (batch, heads, *rest)
            is_in_turn = axis == HEADS and heads != const(1)
            return Repeat(node, _unwrapped(editor, source, once), once, count.constant, is_in_turn)
    return None


def _copied_heads(editor: Editor, node: Node, after: Dims) -> Repeat | None:
    """Heads that are copied without another axis: all in turn, or the only one."""
    data = node.input(0)
    before = editor.shapes[data].dims if data is not None else None
    if data is None or before is None or (before[:HEADS], before[HEADS + 1 :]) != (after[:HEADS], after[HEADS + 1 :]):
        return None
    heads, total = before[HEADS].constant, after[HEADS].constant
    if not heads or not total or total % heads or not _is_copying(node, data, HEADS, RANK):
        return None
    return Repeat(node, data, before, total // heads, is_in_turn=heads > 1)


def _copied(editor: Editor, node: Node, after: Dims, axis: int) -> Value | None:
    """Return the value that a node copies along an axis of length 1, and along no other."""
    data = node.input(0)
    if data is None or editor.shapes[data].dims != (*after[:axis], const(1), *after[axis + 1 :]):
        return None
    return data if _is_copying(node, data, axis, len(after)) else None


def _is_copying(node: Node, data: Value, axis: int, rank: int) -> bool:
    """Whether a node whose output is longer on that axis only copies its input."""
    if node.is_op("Concat"):
        return node.attr("axis", int) in (axis, axis - rank) and all(each is data for each in node.inputs)
    return node.is_op("Expand", "Tile")


def _gathered(editor: Editor, node: Node, after: Dims) -> Repeat | None:
    """Heads taken by constant indices: 0, 0, 1, 1."""
    data, indices = node.input(0), node.input(1)
    before = editor.shapes[data].dims if data is not None else None
    taken = numbers(editor.shapes[indices]) if indices is not None else None
    if data is None or before is None or taken is None or len(before) != RANK or taken.ndim != 1:
        return None
    heads, total = before[HEADS].constant, after[HEADS].constant
    if node.attr("axis", 0) not in (HEADS, HEADS - RANK) or not heads or not total or total % heads:
        return None
    count = total // heads
    return Repeat(node, data, before, count) if [*taken] == [i // count for i in range(total)] else None


def _unwrapped(editor: Editor, value: Value, dims: Dims) -> Value:
    """Return a value of these dims that only another axis was put into, or the value itself."""
    maker = value.producer
    source = maker.input(0) if maker is not None and maker.is_op(*RESHAPING) else None
    return source if source is not None and editor.shapes[source].dims == dims else value
