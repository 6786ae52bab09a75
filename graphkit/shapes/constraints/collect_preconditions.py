"""Collect the preconditions of all nodes of a model, in the order in which the nodes run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from graphkit.graph.dataflow import in_order
from graphkit.graph.view import Node, Scope, Value, unwrap_value
from graphkit.ops.data_movement import dims_product
from graphkit.ops.preconditions import Index, Precondition, Related
from graphkit.ops.registry import PRECONDITIONS
from graphkit.ops.rule_context import NodeView, UnknownError
from graphkit.ops.tensor import unknown_tensor
from graphkit.shapes import Expr, Relation, Shapes, Tensor, const, is_known, lower
from graphkit.shapes.constraints.body_guards import Guarded, guard_of
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["SharedPrecondition", "collect_preconditions"]

NOTED = {"==": "dims that must be equal", ">=": "too small", "<=": "too large"}  # kinds of notes of the shape engine


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
        self.noted: dict[Node, list[Precondition]] = {}
        for noted in (*shapes.equalities, *shapes.inequalities):
            if is_known(noted.left) and is_known(noted.right):
                relation = Relation(noted.left, noted.relation, noted.right)
                self.note(noted.node, Related(relation, NOTED[noted.relation], ""))

    def note(self, node: Node, precondition: Precondition) -> None:
        if node.operator not in PRECONDITIONS:
            self.noted.setdefault(node, []).append(precondition)

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
        rule = PRECONDITIONS.get(node.operator)
        if rule is None and not node.is_op("Gather", "GatherND"):
            yield from self.noted.get(node, ())
            return
        view = self.view(node)
        if view is None:
            return
        try:
            yield from [precondition for precondition in self.preconditions(view) if _has_symbols(precondition)]
        except (UnknownError, ArithmeticError, LookupError, ValueError):  # not known, too complex, or no valid node
            return

    def preconditions(self, view: NodeView) -> Iterator[Precondition]:
        """Yield the preconditions of a node, by its rule or of its indices."""
        if view.node.is_op("Gather"):
            dims = view.dims(0)
            size = dims[view.axis(view.attr("axis", 0), len(dims))]
            yield from self.inside(
                view.node.input(1), size, dims_product(view.dims(1)), "indices element out of data bounds"
            )
        elif view.node.is_op("GatherND"):
            columns = _index_columns(view.node) if not view.attr("batch_dims", 0) else ()
            for column, size in zip(columns, view.dims(0), strict=False):
                yield from self.inside(column, size, dims_product(view.dims(1)), "invalid index found")
        else:
            yield from PRECONDITIONS[view.node.operator](view)

    def inside(self, indices: Value | None, size: Expr, count: Expr, says: str) -> Iterator[Precondition]:
        ends = self.ranges.range(indices) if is_known(size) else None
        if ends is not None and (lower(size - 1 - ends.high) < 0 or lower(ends.low + size) < 0):
            yield Index(ends.low, ends.high, size, count if is_known(count) else const(1), says)

    def tensor(self, value: Value) -> Tensor:
        """Return the known facts of a value at all sizes at which the nodes before its own run.

        The first pass of an inference assumes nothing that only later nodes need. The last pass stands in for tensors
        that the first one does not know.
        """
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


def _has_symbols(precondition: Precondition) -> bool:
    return any(expr.constant is None for expr in precondition.exprs)


def collect_preconditions(shapes: Shapes) -> list[SharedPrecondition]:
    """Return the preconditions of all nodes; in a function, those that hold for all its calls."""
    if shapes not in _KNOWN:
        collector = _Collector(shapes)
        for scope in shapes.model.scopes:
            collector.scope(scope)
        _KNOWN[shapes] = tuple(collector.found.values())
    return list(_KNOWN[shapes])


_KNOWN: WeakKeyDictionary[Shapes, tuple[SharedPrecondition, ...]] = WeakKeyDictionary()  # a report asks twice
