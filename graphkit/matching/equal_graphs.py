"""Match the nodes of two graphs that compute the same, node by node, whatever their values are called."""

from __future__ import annotations

from graphkit.graph.view import Node, Scope, Value
from graphkit.matching.matches import How, Matching

__all__ = ["match_equal"]


def match_equal(matching: Matching, graph_a: Scope, graph_b: Scope) -> None:
    """Match the nodes of two graphs that compute the same; of several that do, those of one name first."""
    named = {value.name: value for value in graph_b.inputs} if not graph_a.path else {}  # those of the main graph
    for index, x in enumerate(graph_a.inputs):
        y = graph_b.inputs[index] if graph_a.path else named.get(x.name)
        if y is not None:
            matching.add(x, y, _how(x, y))
    theirs: dict[int, list[Node]] = {}
    for node in graph_b.nodes:
        theirs.setdefault(matching.numbers.nodes[node], []).append(node)
    unnamed: list[Node] = []
    for node in graph_a.nodes:
        twins = theirs[matching.numbers.nodes[node]]
        twin = next((twin for twin in twins if _names(twin) == _names(node)), None)
        if twin is None:
            unnamed.append(node)
            continue
        twins.remove(twin)
        _match_nodes(matching, node, twin)
    for node in unnamed:
        _match_nodes(matching, node, theirs[matching.numbers.nodes[node]].pop(0))


def _names(node: Node) -> tuple[str, ...]:
    return tuple(value.name if value is not None else "" for value in node.outputs)


def _match_nodes(matching: Matching, node: Node, twin: Node) -> None:
    matching.equal[node] = twin
    for x, y in zip(node.outputs, twin.outputs, strict=False):
        if x is not None and y is not None:
            matching.add(x, y, _how(x, y))
    for name, body in node.bodies.items():
        match_equal(matching, body, twin.bodies[name])


def _how(value: Value, twin: Value) -> How:
    return "name" if value.name == twin.name else "structure"
