"""Topological order of the nodes of a graph.

ONNX requires sorted nodes; onnxruntime accepts any order, and some tools write unsorted graphs.
"""

from __future__ import annotations

from graphkit.graph.view import Node, Scope, Value

__all__ = ["in_order", "ordered", "values_read"]


def in_order(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads. Nodes of a cycle come last, in file order."""
    result = ordered(scope)
    done = set(result)
    return result + [node for node in scope.nodes if node not in done]


def ordered(scope: Scope) -> list[Node]:
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
    read = {value for value in node.inputs if value is not None}
    for body in node.bodies.values():
        for inner in body.walk():
            read.update(value for other in inner.nodes for value in other.inputs if value is not None)
            read.update(inner.outputs)
    return read
