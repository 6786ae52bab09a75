"""Collect the preconditions of all nodes of a model, in the order in which the nodes run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from graphkit.graph.dataflow import in_order
from graphkit.graph.view import Node, Scope, Value, unwrap_value
from graphkit.ops.data_movement import dims_product
from graphkit.ops.preconditions import Index, Precondition
from graphkit.ops.rule_context import NodeView, UnknownError
from graphkit.ops.tensor import unknown_tensor
from graphkit.shapes import Expr, Shapes, Tensor, const, is_known, lower
from graphkit.shapes.constraints.body_guards import Guarded, guard_of
from graphkit.shapes.inferred_shapes import Preconditions
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["SharedPrecondition", "collect_preconditions"]


@dataclass(eq=False)
class SharedPrecondition:
    """A precondition and the nodes of one scope that share it, in the order in which they run."""

    scope: Scope
    precondition: Precondition
    nodes: list[Node] = field(default_factory=list)


class _Collector:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.tensors: dict[Value, Tensor] = {}
        self.ranges = ValueRangeAnalysis(shapes.model, self.tensor, typical=True)
        self.found: dict[tuple[Scope, str, Precondition], SharedPrecondition] = {}
        self.passes = [*map(_by_node, shapes.preconditions)]

    def scope(self, scope: Scope) -> None:
        guard = guard_of(scope, self.tensor)
        for node in in_order(scope) if scope.problems else scope.nodes:
            for body in node.bodies.values():
                self.scope(body)
            for required in self.of(node):
                precondition = required if guard is None else Guarded(required, guard)
                key = scope, node.operator, precondition
                self.found.setdefault(key, SharedPrecondition(scope, precondition)).nodes.append(node)

    def of(self, node: Node) -> Iterator[Precondition]:
        """Yield the preconditions of a node at all sizes at which the nodes before it run.

        The first pass of an inference assumes nothing that only later nodes need. Later passes stand in where it does
        not know all.
        """
        noted: Iterable[Precondition] = ()
        for by_node in self.passes:
            noted = by_node.get(node, ())
            if all(map(_is_known, noted)):
                break
        required = [precondition for precondition in noted if _is_known(precondition)]
        if node.is_op("Gather", "GatherND") and (view := self.view(node)) is not None:
            with suppress(UnknownError, ArithmeticError, LookupError, ValueError):  # not known, or no valid node
                required += self.indices_inside(view)
        yield from (precondition for precondition in required if precondition.symbols)

    def indices_inside(self, view: NodeView) -> Iterator[Precondition]:
        """Yield the preconditions that the indices of a node are inside of its axes."""
        dims, count = view.dims(0), dims_product(view.dims(1))
        if view.node.is_op("Gather"):
            size = dims[view.axis(view.attr("axis", 0), len(dims))]
            yield from self.inside(view.node.input(1), size, count, "indices element out of data bounds")
        elif not view.attr("batch_dims", 0):
            for column, size in zip(_index_columns(view.node), dims, strict=False):
                yield from self.inside(column, size, count, "invalid index found")

    def inside(self, indices: Value | None, size: Expr, count: Expr, says: str) -> Iterator[Precondition]:
        ends = self.ranges.range(indices) if is_known(size) else None
        if ends is not None and (lower(size - 1 - ends.high) < 0 or lower(ends.low + size) < 0):
            yield Index(ends.low, ends.high, size, count if is_known(count) else const(1), says)

    def tensor(self, value: Value) -> Tensor:
        """Return the known facts of a value at all sizes at which the nodes before its own run."""
        if value not in self.tensors:
            self.tensors[value] = self._tensor(value)
        return self.tensors[value]

    def _tensor(self, value: Value) -> Tensor:
        first = self.shapes.first.get(value)
        if first is not None and first.is_known and (not first.may_have_data or _is_known_data(first)):
            return first
        return self.shapes.table.get(value) or first or unknown_tensor("nothing leads to it")

    def view(self, node: Node) -> NodeView | None:
        """Return a view of a node for its rule; None if an attribute comes from a function's call."""
        if any(attribute.ref_attr_name for attribute in node.attributes.values()):
            return None
        inputs = [None if value is None else self.tensor(value) for value in node.inputs]
        return NodeView(node, inputs, node.attributes)


def _index_columns(node: Node) -> Sequence[Value | None]:
    """Return the parts of indices that are concatenated of one part for each axis."""
    indices = node.input(1)
    producer = unwrap_value(indices, ("Cast", "Identity")).producer if indices is not None else None
    if producer is None or not producer.is_op("Concat") or producer.attr("axis", int) != -1:
        return ()
    return producer.inputs if all(_is_unsqueezed(value) for value in producer.inputs) else ()


def _is_unsqueezed(value: Value | None) -> bool:
    return value is not None and value.producer is not None and value.producer.is_op("Unsqueeze")


def _is_known_data(tensor: Tensor) -> bool:
    data = tensor.data if tensor.is_shape_like else None
    return data is None or all(is_known(element) for element in data.ravel().tolist() if isinstance(element, Expr))


def _by_node(noted: Preconditions) -> dict[Node, dict[Precondition, None]]:
    """Return the distinct preconditions of each node; those of all calls of a function."""
    result: dict[Node, dict[Precondition, None]] = {}
    for node, precondition in noted:
        result.setdefault(node, {})[precondition] = None
    return result


def _is_known(precondition: Precondition) -> bool:
    return all(map(is_known, precondition.exprs))


def collect_preconditions(shapes: Shapes) -> list[SharedPrecondition]:
    """Return the preconditions of all nodes; in a function, those that hold for all its calls."""
    if shapes not in _KNOWN:
        collector = _Collector(shapes)
        for scope in shapes.model.scopes:
            collector.scope(scope)
        _KNOWN[shapes] = tuple(collector.found.values())
    return list(_KNOWN[shapes])


_KNOWN: WeakKeyDictionary[Shapes, tuple[SharedPrecondition, ...]] = WeakKeyDictionary()  # a report asks twice
