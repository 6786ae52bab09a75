"""Plans of memory: the order in which onnxruntime runs the nodes of a scope, and how long each value is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphkit.graph.dataflow import values_read
from graphkit.graph.view import Node, Scope, Value

__all__ = ["Plan", "runtime_order"]


@dataclass(frozen=True)
class Plan:
    """The nodes of a scope in order.

    Attributes:
        last: The position of the last node that reads each value; after all of them for an output of the scope.
        ending: The values that are read for the last time at each position.
        results: The outputs of the scope.
    """

    nodes: tuple[Node, ...]
    last: Mapping[Value, int]
    ending: Mapping[int, list[Value]]
    results: frozenset[Value]

    @classmethod
    def of(cls, scope: Scope) -> Plan:
        """Return the plan of a scope."""
        nodes = runtime_order(scope)
        last = {value: position for position, node in enumerate(nodes) for value in values_read(node)}
        last |= dict.fromkeys(scope.outputs, len(nodes))
        ending: dict[int, list[Value]] = {}
        for value, position in last.items():
            ending.setdefault(position, []).append(value)
        return cls(nodes, last, ending, frozenset(scope.outputs))


def runtime_order(scope: Scope) -> tuple[Node, ...]:
    """Return the nodes of a scope in the order in which onnxruntime runs them.

    That is the order in which a search from the last nodes back to the first leaves them: of what a node reads, the
    latest node of the file is searched first. Source: Graph::ReverseDFSFrom and GraphViewer of onnxruntime 1.32.
    """
    place = {node: number for number, node in enumerate(scope.nodes)}
    reads = {node: sorted(_sources(node, place), key=place.__getitem__) for node in scope.nodes}
    read = {source for sources in reads.values() for source in sources}
    stack = [(node, False) for node in scope.nodes if node not in read]
    order: dict[Node, None] = {}
    visited: set[Node] = set()
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order[node] = None
        elif node not in visited:
            visited.add(node)
            stack += [(node, True), *((source, False) for source in reads[node] if source not in visited)]
    return (*order, *(node for node in scope.nodes if node not in order))


def _sources(node: Node, place: Mapping[Node, int]) -> set[Node]:
    """Return the nodes of the same scope that a node reads."""
    return {value.producer for value in values_read(node) if value.producer is not None and value.producer in place}
