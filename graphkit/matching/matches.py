"""The values of two models that match, and what it takes for nodes and names to be the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphkit.graph.view import Node, Value
from graphkit.matching.graph_side import known, source_of
from graphkit.matching.value_numbering import ValueNumbers

__all__ = ["How", "Matching", "is_counted", "same_operator", "same_type"]

How = Literal["map", "form", "name", "structure", "order"]
COUNTED = re.compile(
    r"(.*[/.])?([A-Za-z_:]*?[._]?\d+|[A-Z]\w*(_\d+)?_output_\d+)"
)  # `add_3`, `123`, `/l/Add_1_output_0`
COMMUTATIVE = ("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")
Alike = Callable[[Value, Value], bool]


@dataclass(eq=False)
class Matching:
    """The matches so far, in both directions, of all graphs of two models.

    Attributes:
        numbers: The numbers of everything in both models.
        forth: Values of A, with those of B.
        back: The same the other way.
        how: How each value of A was matched.
        equal: Nodes of graphs that compute the same, node by node: those of A with those of B.
    """

    numbers: ValueNumbers = field(default_factory=ValueNumbers)
    forth: dict[Value, Value] = field(default_factory=dict)
    back: dict[Value, Value] = field(default_factory=dict)
    how: dict[Value, How] = field(default_factory=dict)
    equal: dict[Node, Node] = field(default_factory=dict)

    def add(self, value_a: Value, value_b: Value, how: How) -> bool:
        """Match two values, unless one of them is matched."""
        if value_a in self.forth or value_b in self.back:
            return False
        self.forth[value_a], self.back[value_b], self.how[value_a] = value_b, value_a, how
        return True

    def release(self, value_a: Value) -> None:
        """Take back the match of a value of A."""
        del self.back[self.forth.pop(value_a)], self.how[value_a]

    def add_nodes(self, node_a: Node, node_b: Node, how: How) -> None:
        """Match the outputs of two nodes of one operator."""
        for x, y in zip(node_a.outputs, node_b.outputs, strict=False):
            if x is not None and y is not None:
                self.add(x, y, how)

    def same_constants(self, value_a: Value, value_b: Value) -> bool:
        """Whether two constants have one dtype, the same dims and the same bytes."""
        return self.numbers.value(source_of(value_a)) == self.numbers.value(source_of(value_b))

    def corresponds(self, node_a: Node, node_b: Node, constants: Alike | None = None) -> bool:
        """Whether two nodes compute the same of values that match; constants need one dtype and the same dims only."""
        if not same_operator(node_a, node_b) or len(node_a.outputs) != len(node_b.outputs):
            return False
        attributes = self.numbers.attributes
        if attributes[node_a] != attributes[node_b] or self._bodies(node_a) != self._bodies(node_b):
            return False
        alike = constants or same_type
        if self._pairwise(node_a.inputs, node_b.inputs, alike):
            return True
        return node_a.is_op(*COMMUTATIVE) and self._pairwise(node_a.inputs, node_b.inputs[::-1], alike)

    def _bodies(self, node: Node) -> Mapping[str, int]:
        return {name: self.numbers.graphs[body] for name, body in node.bodies.items()}

    def _pairwise(self, ones: Sequence[Value | None], twos: Sequence[Value | None], constants: Alike) -> bool:
        return all(self._alike(x, y, constants) for x, y in zip(ones, twos, strict=True))

    def _alike(self, value_a: Value | None, value_b: Value | None, constants: Alike) -> bool:
        if value_a is None or value_b is None:
            return value_a is value_b
        if known(value_a) is not None and known(value_b) is not None:
            return constants(value_a, value_b)
        return self.forth.get(value_a) is value_b


def is_counted(name: str) -> bool:
    """Whether an exporter may have counted a name, such as `add_3` or `/layer/Add_1_output_0`."""
    return COUNTED.fullmatch(name) is not None


def same_operator(node_a: Node, node_b: Node) -> bool:
    """Whether two nodes have one operator and as many inputs."""
    return node_a.operator == node_b.operator and len(node_a.inputs) == len(node_b.inputs)


def same_type(value_a: Value, value_b: Value) -> bool:
    """Whether two constants have one dtype and the same dims."""
    tensor_a, tensor_b = known(value_a), known(value_b)
    if tensor_a is None or tensor_b is None:
        return False
    return (tensor_a.data_type, tensor_a.dims) == (tensor_b.data_type, tensor_b.dims)
