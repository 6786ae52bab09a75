"""Match the nodes of two graphs that compute the same, node by node, whatever their values are called."""

from __future__ import annotations

from graphkit.graph.view import Node, Scope, Value
from graphkit.matching.matches import How, Matching

__all__ = ["match_equal"]


def match_equal(matching: Matching, one: Scope, two: Scope) -> None:
    """Match the nodes of two graphs that compute the same; of several that do, those of one name first."""
    named = {value.name: value for value in two.inputs} if not one.path else {}  # those of the main graph
    for index, x in enumerate(one.inputs):
        y = two.inputs[index] if one.path else named.get(x.name)
        if y is not None:
            matching.add(x, y, _how(x, y))
    theirs: dict[int, list[Node]] = {}
    for node in two.nodes:
        theirs.setdefault(matching.numbers.nodes[node], []).append(node)
    unnamed: list[Node] = []
    for node in one.nodes:
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


def _match_nodes(matching: Matching, one: Node, two: Node) -> None:
    matching.equal[one] = two
    for x, y in zip(one.outputs, two.outputs, strict=False):
        if x is not None and y is not None:
            matching.add(x, y, _how(x, y))
    for name, body in one.bodies.items():
        match_equal(matching, body, two.bodies[name])


def _how(one: Value, two: Value) -> How:
    return "name" if one.name == two.name else "structure"
