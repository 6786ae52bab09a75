"""Lengths at which a decoder may begin to behave otherwise: windows, buckets of distances, ends of position tables.

A proof that stays below such a length says nothing of what lies beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph.roles import Roles
from graphkit.graph.types import TensorType, declared_type
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.graph.walk import reachable
from graphkit.model import Model

__all__ = ["LEAST", "MARGIN", "Lengths", "lengths_of"]

LEAST = 32  # a length to go beyond in any model: half of T5's buckets, where distances are no longer told apart
MOST = 4096
MARGIN = 3  # beyond a length by more than one
NUMBERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
BRANCHING = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Sub", "Add", "Min", "Max", "Clip", "Trilu", "Mod")
POSITIONS = ("Range", "CumSum")
BUCKETING = ("Log", "Min", "Max", "Clip")  # what looks up by these is a table of distances, which never ends
PADDING = 3  # positions by which exporters shift a table's rows, at most


@dataclass(frozen=True)
class Lengths:
    """The lengths that matter to a model, by its graph.

    Attributes:
        beyond: Lengths to run at, the longest first; each is past one at which the model may change.
        ends: Lengths that reach the last row of the shortest table of positions, the longest first; the exporter may
            have shifted the rows, so that the first of these may be too long.
    """

    beyond: tuple[int, ...] = (LEAST + MARGIN,)
    ends: tuple[int, ...] = ()


def lengths_of(model: Model) -> Lengths:
    """Return the lengths at which a model may begin to behave otherwise."""
    marks, tables = {LEAST}, set[int]()
    for node in all_nodes(model.scopes):
        marks.update(_compared(model, node))
        marks.update(_bucketed(model, node))
        tables.update(_position_rows(node, model.roles))
    last = min(tables, default=None)
    beyond = {mark + MARGIN for mark in marks if LEAST <= mark <= MOST}
    if last is not None:
        beyond = {length for length in beyond if length < last - PADDING}
    ends = range(last, max(last - PADDING, 1), -1) if last is not None and last <= MOST else ()
    return Lengths(tuple(sorted(beyond, reverse=True)), tuple(ends))


def _compared(model: Model, node: Node) -> Iterator[int]:
    """Yield the numbers that positions may be compared with or cut at, windows of operators included."""
    if (window := node.attr("local_window_size", int)) is not None:
        yield window
    if node.is_op(*BRANCHING):
        for value in node.inputs:
            if (number := _number(model, value)) is not None and number == int(number):
                yield abs(int(number))
    if node.is_op("Slice"):  # the last so many of a cache
        for value in node.inputs[1:3]:
            if (number := _number(model, value)) is not None and -MOST <= number < 0:
                yield int(-number)


def _bucketed(model: Model, node: Node) -> Iterator[int]:
    """Yield the distance from which on all share a bucket: `log(x / exact) / log(most / exact)`, as T5 writes it."""
    if not node.is_op("Log"):
        return
    argument, out = node.input(0), node.outputs[0]
    divided = argument.producer if argument is not None else None
    exact = _number(model, divided.input(1)) if divided is not None and divided.is_op("Div") else 1.0
    for consumer, position in out.consumers if out is not None else ():
        scale = _number(model, consumer.input(1)) if consumer.is_op("Div") and position == 0 else None
        if exact is not None and scale is not None and 0 < scale < math.log(MOST):
            yield round(exact * math.exp(scale))


def _position_rows(node: Node, roles: Roles) -> Iterator[int]:
    """Yield the rows of a constant table that positions look up in, or that is cut to them."""
    table, indices = node.input(0), node.input(1)
    declared = declared_type(table) if table is not None and table.is_constant else None
    if not node.is_op("Gather") or declared is None or not declared.dims or not _may_embed(declared):
        return
    if node.attr("axis", 0) != 0 or len(declared.dims) < 2 or indices is None or not _are_positions(indices, roles):
        return
    if isinstance(rows := declared.dims[0], int) and rows > 1:
        yield rows


def _may_embed(declared: TensorType) -> bool:
    return declared.is_float or declared.dtype in (TensorProto.INT8, TensorProto.UINT8)


def _are_positions(indices: Value, roles: Roles) -> bool:
    """Whether indices count positions: a Range, a CumSum of the mask, part of a constant, or an input of that role."""
    found = False
    for value in reachable([indices], _computed_from):
        if value.producer is None:
            found |= roles.of(value) == "positions"
        elif value.producer.is_op(*BUCKETING):
            return False
        else:
            found |= _counts(value.producer)
    return found


def _counts(node: Node) -> bool:
    """Whether a node counts from 0, or cuts a part out of a constant."""
    source = node.input(0)
    return node.is_op(*POSITIONS) or (node.is_op("Slice") and source is not None and source.is_constant)


def _computed_from(value: Value) -> list[Value | None]:
    """Return the inputs that the elements of a value are computed from, if its producer does not count."""
    node = value.producer
    if node is None or _counts(node):
        return []
    shapes = value_inputs(node)
    return [source for index, source in enumerate(node.inputs) if index not in shapes]


def _number(model: Model, value: Value | None) -> float | None:
    """Return a constant's one number."""
    tensor = value.constant if value is not None else None
    if tensor is None or tensor.data_type not in NUMBERS or list(tensor.dims) not in ([], [1]):
        return None
    number = float(model.array(tensor).reshape(-1)[0])
    return number if math.isfinite(number) else None
