"""Constants of a graph that dims, or positions counted along dims, meet: sizes on both sides are worth a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphkit.dtypes import INTEGERS
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.io.tensors import inline_array
from graphkit.model import Model
from graphkit.shapes import Shapes, infer
from graphkit.shapes.expr import Expr
from graphkit.shapes.tensor import is_known
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["Threshold", "thresholds"]

LEAST, MOST = 4, 1 << 16  # smaller ones are between the sizes that are tried anyway
MEETING = (
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip", "Sub", "Mod", "Range",
)  # fmt: skip
MAX_ELEMENTS = 8


@dataclass(frozen=True, order=True)
class Threshold:
    """A number that a dim meets.

    Attributes:
        symbols: The input dims that decide on which side of it a run is.
    """

    size: int
    symbols: frozenset[str]


def thresholds(model: Model) -> tuple[Threshold, ...]:
    """Return the constants that dims of a model meet, each once, in the order of nodes."""
    shapes = infer(model)
    reader = _Reader(shapes, ValueRangeAnalysis(model, lambda value: shapes[value], typical=True))
    return tuple(dict.fromkeys(one for node in all_nodes(model.scopes) for one in reader.of(node)))


@dataclass(frozen=True)
class _Reader:
    shapes: Shapes
    ranges: ValueRangeAnalysis

    def of(self, node: Node) -> Iterator[Threshold]:
        if node.domain:
            return
        if node.is_op(*MEETING):
            yield from self._met(node)
        elif node.is_op("Slice"):
            yield from self._cut(node)
        elif node.is_op("Gather"):
            yield from self._looked_up(node)

    def _met(self, node: Node) -> Iterator[Threshold]:
        constants = [number for value in node.inputs for number in _integers(value)]
        if constants:
            for value in node.inputs:
                for dim in self._counted(value):
                    yield from (found for number in constants for found in _threshold(number, dim))

    def _cut(self, node: Node) -> Iterator[Threshold]:
        """Yield the constant bounds of a slice of an axis that grows, or of a table by a dim."""
        data, bounds = node.input(0), [node.input(1), node.input(2)]
        dims = self.shapes.dims(data)
        axes = list(_integers(node.input(3))) or list(range(len(dims or ())))
        for value in bounds:
            for axis, number in zip(axes, _integers(value), strict=False):
                if dims and -len(dims) <= axis < len(dims):
                    yield from _threshold(number, dims[axis])
        for axis, dim in zip(axes, (dim for value in bounds for dim in self._counted(value)), strict=False):
            rows = dims[axis].constant if dims and -len(dims) <= axis < len(dims) else None
            if rows is not None:
                yield from _threshold(rows, dim)

    def _looked_up(self, node: Node) -> Iterator[Threshold]:
        """Yield the entry of an axis that grows, or the rows of a table of positions."""
        dims, axis = self.shapes.dims(node.input(0)), node.attr("axis", 0)
        if not dims or axis is None or not -len(dims) <= axis < len(dims):
            return
        for number in _integers(node.input(1)):
            yield from _threshold(number, dims[axis])
        rows = dims[axis].constant
        if rows is not None and node.input(1) is not None and not _integers(node.input(1)):
            for dim in self._counted(node.input(1)):
                yield from _threshold(rows, dim)

    def _counted(self, value: Value | None) -> list[Expr]:
        """Return dims that are elements of a value, or the last position that it counts."""
        if value is None or value.is_constant:
            return []
        tensor = self.shapes[value]
        if tensor.may_have_data and tensor.dtype in INTEGERS:
            found = [one for one in tensor.elements or () if isinstance(one, Expr)]
            return [one for one in found if one.symbols and is_known(one)]
        found_range = self.ranges.range(value)
        return [found_range.high] if found_range is not None and found_range.high.symbols else []


def _threshold(number: int, dim: Expr) -> Iterator[Threshold]:
    if dim.symbols and is_known(dim) and LEAST <= abs(number) <= MOST:
        yield Threshold(abs(number), frozenset(dim.symbols))


def _integers(value: Value | None) -> tuple[int, ...]:
    array = inline_array(value.constant) if value is not None else None
    if array is None or array.size > MAX_ELEMENTS or array.dtype.kind not in "iuf":
        return ()
    return tuple(int(one) for one in array.ravel().tolist() if one == one and abs(one) <= MOST and one == int(one))
