"""How many positions a decoder has: the rows of tables that positions are looked up in, or that are cut to a length."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from onnx import TensorProto

from graphkit.graph.declared_types import declared_type
from graphkit.graph.traversal import chain_end, postorder, reachable
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.shapes import Expr, infer
from graphkit.shapes.constraints.legal_sizes import legal_sizes

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
COUNTERS = ("Range", "CumSum")
QUANTIZED = (TensorProto.INT8, TensorProto.UINT8)  # dtypes of tables that are rounded to 8 bits


def table_positions(model: Model) -> int | None:
    """Return how many positions the tables of a model have, None where it has none, or it is not known.

    More is known of a folded model.
    """
    rows = {node: found for node in all_nodes(model.scopes) if (found := _table_rows(model, node)) is not None}
    offsets = _offsets(model, [indices for node in rows if (indices := node.input(1)) is not None])
    known = ((offsets.get(indices), rows[node]) for node in rows if (indices := node.input(1)) is not None)
    counts = [count - offset for offset, count in known if offset is not None]
    return min((count for count in (*counts, *_cut_tables(model)) if count > 0), default=None)


def _cut_tables(model: Model) -> Iterator[int]:
    """Yield the lengths of tables that nodes cut to as many positions as there are, from either end."""
    cuts = [node for node in model.graph.nodes if node.is_op("Slice") and len(node.operands) > 3]
    cuts = [node for node in cuts if node.operands[0].is_constant]
    legal = legal_sizes(model) if cuts else None
    if legal is None or legal.past is None or legal.tokens is None:
        return
    shapes, total = infer(model), legal.past + legal.tokens
    for node in cuts:
        data, *bounds = node.operands[:4]
        dims, elements = shapes[data].dims or (), [shapes[value].elements or () for value in bounds]
        for start, end, axis in zip(*elements, strict=False):
            at = axis.constant if isinstance(axis, Expr) and axis.constant is not None else len(dims)
            size = dims[at] if -len(dims) <= at < len(dims) else None
            if size is not None and size.constant is not None and total in (end, size - start):
                yield size.constant


def _table_rows(model: Model, node: Node) -> int | None:
    """Return the number of rows of the table that a node looks up, None where it reads something else."""
    data = node.input(0) if node.is_op("Gather", "GatherElements") else None
    if data is None:
        return None
    repeating = ("Tile", "Expand", "Unsqueeze") if node.op_type == "GatherElements" else ()
    table = chain_end(data, lambda value: _source(value, ("DequantizeLinear", "Cast", "Identity", *repeating)))
    declared = declared_type(table) if table.is_constant else None
    if declared is None or not (declared.is_float or declared.dtype in QUANTIZED):
        return None
    dims, axis = infer(model)[data].dims or (), node.attr("axis", 0)
    return dims[-2].constant if len(dims) > 1 and axis in (len(dims) - 2, -2) else None


def _source(value: Value, operators: Collection[str]) -> Value | None:
    node = value.producer
    return node.input(0) if node is not None and node.is_op(*operators) else None


def _offsets(model: Model, indices: Sequence[Value]) -> Mapping[Value, int | None]:
    """Return the offset of each value that counts positions, None for others, among some and those that they rest on.

    Each value is looked at once, after the one that it counts on from.
    """
    counted, offsets = _counted(model), dict[Value, int | None]()
    for value in postorder(indices, lambda value: (_counted_input(value, counted),)):
        offsets[value] = _offset(model, value, counted, offsets)
    return offsets


def _counted(model: Model) -> set[Value]:
    """Return the values that count positions, and all that rest on one."""
    nodes = (node for node in all_nodes(model.scopes) if node.is_op(*COUNTERS))
    made = (value for node in nodes for value in node.results)
    return set(reachable([*model.roles.all("positions"), *made], _read_for))


def _read_for(value: Value) -> list[Value | None]:
    return [output for node, _ in value.consumers for output in node.outputs]


def _counted_input(value: Value, counted: Collection[Value]) -> Value | None:
    reads = value.producer.inputs if value.producer is not None else ()
    return next((each for each in reads if each is not None and not each.is_constant and each in counted), None)


def _offset(model: Model, value: Value, counted: Collection[Value], offsets: Mapping[Value, int | None]) -> int | None:
    node = value.producer
    if node is None:
        return 0 if model.roles.of(value) == "positions" else None
    if node.is_op(*COUNTERS):
        return int(node.is_op("CumSum"))
    before, shift = _counted_input(value, counted), _shift(model, node)
    offset = offsets.get(before) if before is not None else None
    return offset + shift if offset is not None and shift is not None else None


def _shift(model: Model, node: Node) -> int | None:
    """Return the number that a node adds to positions, None where it may compute something else."""
    if not node.is_op("Add", "Sub"):
        return 0 if node.is_op(*KEEPING) else None
    number = next((n for each in node.inputs[::-1] if (n := _number(model, each)) is not None), None)
    if number is None:
        return 0
    read = [each for each in node.operands if not each.is_constant]
    return (-number if node.is_op("Sub") else number) if len(read) == 1 else None


def _number(model: Model, value: Value | None) -> int | None:
    tensor = value.constant if value is not None else None
    if tensor is None or tensor.data_type not in (6, 7):
        return None
    array = model.array(tensor)
    return int(array.reshape(-1)[0]) if array.size == 1 else None
