"""Find shape arithmetic: values computed from Shape, Size and constants, and read as shapes.

Two passes over each scope in file order: forward for the sources of a value, backward for the values it
feeds. A value behind a custom operator, a loop or an unsorted graph counts as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graphkit.graph.operator_traits import RANDOM, value_inputs
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
    tensors = ShapeTensors()
    for scope in scopes:
        _derive_forward(scope, tensors)
        _demand_backward(scope, tensors)
    return tensors


def _derive_forward(scope: Scope, tensors: ShapeTensors) -> None:
    constants = [value for value in scope.initializers if value.is_constant]
    tensors.static.update(constants)
    tensors.derived.update(constants)
    for node in scope.nodes:
        for body in node.bodies.values():
            _derive_forward(body, tensors)
        outputs = node.results
        if node.is_op("If"):
            _forward_if(node, tensors)
        elif not (node.domain or node.bodies or node.op_type in RANDOM):
            inputs = node.operands
            if all(value in tensors.static for value in inputs):
                tensors.static.update(outputs)
                tensors.derived.update(outputs)
            elif node.is_op("Shape", "Size"):
                _derive_outputs(outputs, frozenset(inputs), tensors)
            elif all(value in tensors.derived for value in inputs):
                _derive_outputs(outputs, _union_of_sources(inputs, tensors), tensors)


def _forward_if(node: Node, tensors: ShapeTensors) -> None:
    bodies = list(node.bodies.values())
    for index, value in enumerate(node.outputs):
        sources = [node.input(0), *(body.outputs[index] for body in bodies if index < len(body.outputs))]
        read = [source for source in sources if source is not None]
        if value is not None and all(source in tensors.derived for source in read):
            _derive_outputs([value], _union_of_sources(read, tensors), tensors)


def _derive_outputs(outputs: Sequence[Value], sources: frozenset[Value], tensors: ShapeTensors) -> None:
    tensors.derived.update(outputs)
    for value in outputs:
        tensors.measured[value] = sources


def _union_of_sources(values: Sequence[Value], tensors: ShapeTensors) -> frozenset[Value]:
    """Return the tensors that some derived values are computed from, as the same set where possible."""
    union: frozenset[Value] = frozenset()
    for value in values:
        sources = tensors.sources(value)
        if not sources <= union and len(union) < MAX_SOURCES:
            union = sources if union <= sources else union | sources
    return union


def _demand_backward(scope: Scope, tensors: ShapeTensors) -> None:
    for node in reversed(scope.nodes):
        if node.is_op("If"):
            for body in node.bodies.values():
                pairs = zip(node.outputs, body.outputs, strict=False)
                tensors.feeding.update(inner for outer, inner in pairs if outer in tensors.feeding)
        for body in node.bodies.values():
            _demand_backward(body, tensors)
        reads = value_inputs(node)
        passes_on = not node.is_op("Shape", "Size") and tensors.works_on_shapes(node)
        for index, value in enumerate(node.inputs):
            if value is not None and (index in reads or passes_on):
                tensors.feeding.add(value)
