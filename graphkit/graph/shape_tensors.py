"""Find shape arithmetic: values computed from Shape, Size and constants, and read as shapes.

Two passes over each scope in file order: forward for what a value is computed from, backward for what it
feeds. A value behind a custom operator, a loop or an unsorted graph counts as data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphkit.graph.operators import RANDOM, value_inputs
from graphkit.graph.view import Node, Scope, Value

__all__ = ["ShapeTensors", "find_shape_tensors"]

MAX_SOURCES = 256  # tensors that one shape is said to rest on


@dataclass(frozen=True)
class ShapeTensors:
    """The values of a model that shape arithmetic computes or reads.

    Attributes:
        static: Computable from constants alone.
        derived: Computable from constants and the shapes of other tensors; includes `static`.
        feeding: Read as a shape, axis or count, or used to compute one that is.
        measured: For derived values that are not static, the tensors whose shape they are computed from.
    """

    static: set[Value] = field(default_factory=set)
    derived: set[Value] = field(default_factory=set)
    feeding: set[Value] = field(default_factory=set)
    measured: dict[Value, frozenset[Value]] = field(default_factory=dict)

    def is_shape(self, value: Value | None) -> bool:
        """Whether a value is a shape tensor: derived, and feeding a shape input."""
        return value in self.derived and value in self.feeding

    def sources(self, value: Value) -> frozenset[Value]:
        """Return the tensors whose shapes a value is computed from, or the value itself if it is data."""
        if value in self.static:
            return frozenset()
        return self.measured.get(value, frozenset([value]))

    def works_on_shapes(self, node: Node) -> bool:
        """Whether a node computes a shape tensor."""
        return any(self.is_shape(value) for value in node.outputs)


def find_shape_tensors(scopes: Iterable[Scope]) -> ShapeTensors:
    """Return the shape arithmetic of these scopes and of the bodies in them."""
    found = ShapeTensors()
    for scope in scopes:
        _forward(scope, found)
        _backward(scope, found)
    return found


def _forward(scope: Scope, found: ShapeTensors) -> None:
    constants = [value for value in scope.initializers if value.is_constant]
    found.static.update(constants)
    found.derived.update(constants)
    for node in scope.nodes:
        for body in node.bodies.values():
            _forward(body, found)
        outputs = [value for value in node.outputs if value is not None]
        if node.is_op("If"):
            _forward_if(node, found)
        elif not (node.domain or node.bodies or node.op_type in RANDOM):
            inputs = [value for value in node.inputs if value is not None]
            if all(value in found.static for value in inputs):
                found.static.update(outputs)
                found.derived.update(outputs)
            elif node.is_op("Shape", "Size"):
                _derive(outputs, frozenset(inputs), found)
            elif all(value in found.derived for value in inputs):
                _derive(outputs, _union(inputs, found), found)


def _forward_if(node: Node, found: ShapeTensors) -> None:
    bodies = list(node.bodies.values())
    for index, value in enumerate(node.outputs):
        sources = [node.input(0), *(body.outputs[index] for body in bodies if index < len(body.outputs))]
        read = [source for source in sources if source is not None]
        if value is not None and all(source in found.derived for source in read):
            _derive([value], _union(read, found), found)


def _derive(outputs: list[Value], sources: frozenset[Value], found: ShapeTensors) -> None:
    found.derived.update(outputs)
    for value in outputs:
        found.measured[value] = sources


def _union(values: list[Value], found: ShapeTensors) -> frozenset[Value]:
    """Return the tensors that some derived values are computed from, as the same set where possible."""
    union: frozenset[Value] = frozenset()
    for value in values:
        sources = found.sources(value)
        if not sources <= union and len(union) < MAX_SOURCES:
            union = sources if union <= sources else union | sources
    return union


def _backward(scope: Scope, found: ShapeTensors) -> None:
    for node in reversed(scope.nodes):
        if node.is_op("If"):
            for body in node.bodies.values():
                pairs = zip(node.outputs, body.outputs, strict=False)
                found.feeding.update(inner for outer, inner in pairs if outer in found.feeding)
        for body in node.bodies.values():
            _backward(body, found)
        reads = value_inputs(node)
        passes_on = not node.is_op("Shape", "Size") and found.works_on_shapes(node)
        for index, value in enumerate(node.inputs):
            if value is not None and (index in reads or passes_on):
                found.feeding.add(value)
