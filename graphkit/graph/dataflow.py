"""Data flow in a graph: its nodes in topological order, and facts about values from those about their inputs.

ONNX requires sorted nodes; onnxruntime accepts any order, and some tools write unsorted graphs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from graphkit.graph.view import Node, Scope, Value

__all__ = ["ForwardAnalysis", "in_order", "sort_nodes", "values_read"]


def in_order(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads. Nodes of a cycle come last, in file order."""
    result = sort_nodes(scope)
    done = set(result)
    return result + [node for node in scope.nodes if node not in done]


def sort_nodes(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads, without those that depend on a cycle."""
    waiting: dict[Node, int] = {}
    readers: dict[Value, list[Node]] = {}
    for node in scope.nodes:
        needed = {value for value in values_read(node) if value.producer is not None and value.scope is scope}
        waiting[node] = len(needed)
        for value in needed:
            readers.setdefault(value, []).append(node)
    ready = [node for node, count in waiting.items() if not count][::-1]
    result: list[Node] = []
    while ready:
        node = ready.pop()
        result.append(node)
        freed = []
        for output in node.outputs:
            for reader in readers.pop(output, ()) if output is not None else ():
                waiting[reader] -= 1
                if not waiting[reader]:
                    freed.append(reader)
        ready.extend(freed[::-1])
    return result


def values_read(node: Node) -> set[Value]:
    """Return the values that a node reads, those that its bodies read of the scopes around them included."""
    read = set(node.operands)
    for body in node.bodies.values():
        for inner in body.walk():
            read.update(value for inner_node in inner.nodes for value in inner_node.operands)
            read.update(inner.outputs)
    return read


Fact = TypeVar("Fact")
MAX_DEPTH = 100  # nodes one after the other, each with a few calls on the stack of Python


class ForwardAnalysis(ABC, Generic[Fact]):
    """Finds facts on demand, each once: only the values that a transfer function asks for are looked at.

    Args:
        unknown: The fact about a value of which nothing is known: one that is left out, one that is computed from
            itself, as in a broken model, and one behind too many nodes.
    """

    def __init__(self, unknown: Fact) -> None:
        self._unknown = unknown
        self._facts: dict[Value, Fact] = {}
        self._depth = 0

    def of(self, value: Value | None) -> Fact:
        """Return the fact about a value."""
        if value is None:
            return self._unknown
        if value not in self._facts and self._depth < MAX_DEPTH:
            self._facts[value] = self._unknown
            self._depth += 1
            try:
                self._facts[value] = self.transfer(value)
            finally:
                self._depth -= 1
        return self._facts.get(value, self._unknown)

    @abstractmethod
    def transfer(self, value: Value) -> Fact:
        """Return the fact about a value from those about the inputs of its producer, for which it calls `of`."""
