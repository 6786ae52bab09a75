"""How many positions a decoder has: the rows of the tables that positions are looked up in."""

from __future__ import annotations

from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model

__all__ = ["table_positions"]

KEEPING = (
    "Tile",
    "Cast",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Expand",
    "Identity",
    "Slice",
    "Mul",
    "Clip",
    "Max",
    "Min",
)
STEPS = 64


def table_positions(model: Model) -> int | None:
    """Return how many positions the tables of a model have, None where it has none, or it is not known.

    More is known of a folded model.
    """
    counts = [rows for node in all_nodes(model.scopes) if (rows := _rows(model, node)) is not None]
    return min(counts, default=None)


def _rows(model: Model, node: Node) -> int | None:
    """Return how many positions a lookup has rows for, None where it is no lookup by position."""
    table, indices = node.input(0), node.input(1)
    declared = declared_type(table) if table is not None and table.is_constant else None
    if not node.is_op("Gather") or indices is None or declared is None or not declared.is_float or not declared.dims:
        return None
    rows, offset = declared.dims[0], _offset(model, indices)
    if not isinstance(rows, int) or len(declared.dims) != 2 or node.attr("axis", 0) != 0 or offset is None:
        return None
    return rows - offset if rows > offset else None


def _offset(model: Model, value: Value) -> int | None:
    """Return the offset of a value that counts positions, None for any other value."""
    offset = 0
    for _ in range(STEPS):
        node = value.producer
        if node is None:
            return offset if model.roles.of(value) == "positions" else None
        if node.is_op("Range", "CumSum"):
            return offset + node.is_op("CumSum")
        if node.is_op("Add", "Sub"):
            number = next((n for each in node.inputs[::-1] if (n := _number(model, each)) is not None), None)
            read = [each for each in node.inputs if each is not None and not each.is_constant]
            if number is not None and len(read) != 1:
                return None
            offset += 0 if number is None else -number if node.is_op("Sub") else number
        elif not node.is_op(*KEEPING):
            return None
        counting = [each for each in node.inputs if each is not None and not each.is_constant and _counts(model, each)]
        if not counting:
            return None
        value = counting[0]
    return None


def _counts(model: Model, value: Value) -> bool:
    """Whether a value rests on something that counts positions."""
    todo, seen = [value], {value}
    for _ in range(STEPS):
        if not todo:
            return False
        each = todo.pop()
        if each.producer is None:
            if model.roles.of(each) == "positions":
                return True
            continue
        if each.producer.is_op("Range", "CumSum"):
            return True
        unseen = [read for read in each.producer.inputs if read is not None and read not in seen]
        todo += unseen
        seen.update(unseen)
    return False


def _number(model: Model, value: Value | None) -> int | None:
    tensor = value.constant if value is not None else None
    if tensor is None or tensor.data_type not in (6, 7):
        return None
    array = model.array(tensor)
    return int(array.reshape(-1)[0]) if array.size == 1 else None
