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

How = Literal["map", "name", "structure", "order"]
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

    def add(self, one: Value, two: Value, how: How) -> bool:
        """Match two values, unless one of them is matched."""
        if one in self.forth or two in self.back:
            return False
        self.forth[one], self.back[two], self.how[one] = two, one, how
        return True

    def release(self, one: Value) -> None:
        """Take back the match of a value of A."""
        del self.back[self.forth.pop(one)], self.how[one]

    def add_nodes(self, one: Node, two: Node, how: How) -> None:
        """Match the outputs of two nodes of one operator."""
        for x, y in zip(one.outputs, two.outputs, strict=False):
            if x is not None and y is not None:
                self.add(x, y, how)

    def same_constants(self, one: Value, two: Value) -> bool:
        """Whether two constants have one dtype, the same dims and the same bytes."""
        return self.numbers.value(source_of(one)) == self.numbers.value(source_of(two))

    def corresponds(self, one: Node, two: Node, constants: Alike | None = None) -> bool:
        """Whether two nodes compute the same of values that match; constants need one dtype and the same dims only."""
        if not same_operator(one, two) or len(one.outputs) != len(two.outputs):
            return False
        attributes = self.numbers.attributes
        if attributes[one] != attributes[two] or self._bodies(one) != self._bodies(two):
            return False
        alike = constants or same_type
        if self._pairwise(one.inputs, two.inputs, alike):
            return True
        return one.is_op(*COMMUTATIVE) and self._pairwise(one.inputs, two.inputs[::-1], alike)

    def _bodies(self, node: Node) -> Mapping[str, int]:
        return {name: self.numbers.graphs[body] for name, body in node.bodies.items()}

    def _pairwise(self, ones: Sequence[Value | None], twos: Sequence[Value | None], constants: Alike) -> bool:
        return all(self._alike(x, y, constants) for x, y in zip(ones, twos, strict=True))

    def _alike(self, one: Value | None, two: Value | None, constants: Alike) -> bool:
        if one is None or two is None:
            return one is two
        if known(one) is not None and known(two) is not None:
            return constants(one, two)
        return self.forth.get(one) is two


def is_counted(name: str) -> bool:
    """Whether an exporter may have counted a name, such as `add_3` or `/layer/Add_1_output_0`."""
    return COUNTED.fullmatch(name) is not None


def same_operator(one: Node, two: Node) -> bool:
    """Whether two nodes have one operator and as many inputs."""
    return one.operator == two.operator and len(one.inputs) == len(two.inputs)


def same_type(one: Value, two: Value) -> bool:
    """Whether two constants have one dtype and the same dims."""
    first, second = known(one), known(two)
    if first is None or second is None:
        return False
    return (first.data_type, first.dims) == (second.data_type, second.dims)
