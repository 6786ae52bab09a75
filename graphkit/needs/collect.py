"""The needs of all nodes of a model, in the order in which they run, equal ones together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphkit.graph.order import in_order
from graphkit.graph.view import Node, Scope, Value
from graphkit.needs.known import Known
from graphkit.needs.need import AtLeast, Index, Need, Same
from graphkit.needs.rules import RULES
from graphkit.shapes import Expr, Shapes, const, is_known, lower
from graphkit.shapes.node_view import NodeView, UnknownError
from graphkit.shapes.rules.common import product
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["Needed", "collect"]


@dataclass(eq=False)
class Needed:
    """A need, and the nodes of one scope that have it, in the order in which they run."""

    scope: Scope
    need: Need
    nodes: list[Node] = field(default_factory=list)


class _Collector:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.known = shapes, Known(shapes)
        self.ranges = ValueRangeAnalysis(shapes.model, self.known.tensor, typical=True)
        self.found: dict[tuple[Scope, str, Need], Needed] = {}
        self.noted: dict[Node, list[Need]] = {}
        for equality in shapes.equalities:
            if is_known(equality.left) and is_known(equality.right):
                self.note(equality.node, Same(equality.left, equality.right, "dims that must be equal", ""))
        for requirement in shapes.requirements:
            if is_known(requirement.expr):
                self.note(requirement.node, AtLeast(requirement.expr, const(requirement.least), "too small", ""))

    def note(self, node: Node, need: Need) -> None:
        if node.operator not in RULES:
            self.noted.setdefault(node, []).append(need)

    def scope(self, scope: Scope) -> None:
        for node in in_order(scope) if scope.problems else scope.nodes:
            for body in node.bodies.values():
                self.scope(body)
            for need in self.of(node):
                key = scope, node.operator, need
                self.found.setdefault(key, Needed(scope, need)).nodes.append(node)

    def of(self, node: Node) -> Iterator[Need]:
        rule = RULES.get(node.operator)
        if rule is None and not node.is_op("Gather", "GatherND"):
            yield from self.noted.get(node, ())
            return
        view = self.known.view(node)
        if view is None:
            return
        try:
            yield from [need for need in self.needs(view) if _has_symbols(need)]
        except (UnknownError, ArithmeticError, LookupError, ValueError):  # not known, too complex, or no valid node
            return

    def needs(self, view: NodeView) -> Iterator[Need]:
        """Yield what the rule of a node yields, or that its indices are inside."""
        dims = view.dims(0) if view.has(0) else ()
        if view.node.is_op("Gather"):
            size = dims[view.axis(view.attr("axis", 0), len(dims))]
            yield from self.inside(
                view.node.input(1), size, product(view.dims(1)), "indices element out of data bounds"
            )
        elif view.node.is_op("GatherND"):
            columns = _columns(view.node) if not view.attr("batch_dims", 0) else ()
            for column, size in zip(columns, dims, strict=False):
                yield from self.inside(column, size, product(view.dims(1)), "invalid index found")
        else:
            yield from RULES[view.node.operator](view)

    def inside(self, indices: Value | None, size: Expr, count: Expr, says: str) -> Iterator[Need]:
        ends = self.ranges.range(indices) if is_known(size) else None
        if ends is not None and (lower(size - 1 - ends.high) < 0 or lower(ends.low + size) < 0):
            yield Index(ends.low, ends.high, size, count if is_known(count) else const(1), says)


def _columns(node: Node) -> Sequence[Value | None]:
    """Return the columns of indices that are joined of one for each axis."""
    producer = node.inputs[1].producer if node.inputs[1] is not None else None
    while producer is not None and producer.is_op("Cast", "Identity") and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer
    if producer is None or not producer.is_op("Concat") or producer.attr("axis", int) != -1:
        return ()
    return producer.inputs if all(_is_unsqueezed(value) for value in producer.inputs) else ()


def _is_unsqueezed(value: Value | None) -> bool:
    return value is not None and value.producer is not None and value.producer.is_op("Unsqueeze")


def _has_symbols(need: Need) -> bool:
    return any(expr.constant is None for expr in need.exprs)


def collect(shapes: Shapes) -> list[Needed]:
    """Return the needs of all nodes, those of a function as all its calls have them."""
    collector = _Collector(shapes)
    for scope in shapes.model.scopes:
        collector.scope(scope)
    return list(collector.found.values())
