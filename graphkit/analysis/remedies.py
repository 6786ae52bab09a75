"""Which pass removes which blocker: one table, by cause and operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from graphkit.graph.shape_tensors import ShapeTensors
from graphkit.graph.uses import table_entries
from graphkit.graph.view import Node, Value

__all__ = ["CAUSES", "REMEDIES", "Cause", "remedy"]

Cause = Literal["opset", "control flow", "function", "operator", "rank", "dtype", "dynamic shape"]
CAUSES: tuple[Cause, ...] = get_args(Cause)  # in the order of a report
Applies = Callable[[Node, ShapeTensors], bool]


class Remedy(NamedTuple):
    """A row: of those that fit a blocker, the first one counts.

    Attributes:
        cause: Of the blocker.
        op: Its operator, "" for any.
        pass_name: The pass.
        applies: What else must be true of the node.
    """

    cause: Cause
    op: str
    pass_name: str
    applies: Applies


def _always(node: Node, tensors: ShapeTensors) -> bool:  # noqa: ARG001 - every condition takes both
    return True


def _looks_up_a_table(node: Node, tensors: ShapeTensors) -> bool:
    """Whether the first input is a constant table, and the indices are computed."""
    table = node.input(0)
    is_table = table is not None and (table in tensors.static or table_entries(node, table) is not None)
    return is_table and not _is_static(node.input(1), tensors)


def _has_constant_indices(node: Node, tensors: ShapeTensors) -> bool:
    return _is_static(node.input(1), tensors)


def _fills(node: Node, tensors: ShapeTensors) -> bool:
    """Whether one of the values that a Where chooses from is computed from no data, as the floor of a mask is."""
    return any(node.input(index) in tensors.derived for index in (1, 2))


def _reads_scores(node: Node, tensors: ShapeTensors) -> bool:  # noqa: ARG001 - every condition takes both
    """Whether it guards the result of a Softmax."""
    source = node.input(0)
    return source is not None and source.producer is not None and source.producer.is_op("Softmax")


def _is_static(value: Value | None, tensors: ShapeTensors) -> bool:
    return value in tensors.static


REMEDIES: tuple[Remedy, ...] = (
    Remedy("operator", "Gather", "extract-embedding", _looks_up_a_table),
    Remedy("operator", "GatherND", "extract-embedding", _looks_up_a_table),
    Remedy("operator", "Gather", "gather-to-slice", _has_constant_indices),
    Remedy("operator", "GatherND", "gather-to-slice", _has_constant_indices),
    Remedy("operator", "Where", "masked-fill-to-add", _fills),
    Remedy("operator", "Where", "where-to-arithmetic", _always),
    Remedy("operator", "IsNaN", "masked-fill-to-add", _reads_scores),
    Remedy("operator", "Trilu", "tril-to-constant", _always),
    Remedy("operator", "Expand", "expand-to-broadcast", _always),
    Remedy("operator", "Erf", "gelu-to-tanh", _always),
    Remedy("operator", "Gelu", "gelu-to-tanh", _always),
    Remedy("operator", "Cast", "cast-int64-away", _always),
    Remedy("control flow", "If", "specialize-input", _always),
    Remedy("function", "", "inline-functions", _always),
    Remedy("rank", "", "reduce-rank", _always),
    Remedy("dynamic shape", "", "freeze-dims", _always),
    Remedy("dtype", "", "cast-int64-away", _always),
)


def remedy(cause: Cause, node: Node, tensors: ShapeTensors) -> str | None:
    """Return the pass that removes a blocker, None where none is known."""
    fitting = (row for row in REMEDIES if row.cause == cause and row.op in ("", node.operator))
    return next((row.pass_name for row in fitting if row.applies(node, tensors)), None)
