"""Bodies whose nodes are in another graph of the other model, such as a branch of an If that was inlined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from graphkit.graph.view import Node, Scope
from graphkit.matching.matches import Matching

__all__ = ["moved_bodies", "release_outputs"]

Nodes = Mapping[Scope, Sequence[Node]]


def moved_bodies(
    values: Matching, mine: Nodes, theirs: Nodes, lone: Collection[Scope]
) -> Iterator[tuple[Scope, Scope]]:
    """Yield graphs of A and of B that share nodes, where one is a body that the other model lacks.

    The most alike come first. A graph takes one body of a node: both branches of an If are much alike.

    Args:
        values: The numbers of everything in both models.
        mine: The nodes of A that match none of B, by graph; no constants.
        theirs: The same of B.
        lone: The bodies that the other model lacks.
    """
    taken: set[object] = set()
    for (graph_a, graph_b), count in _shared(values, mine, theirs).most_common():
        sizes = [len(nodes) for body, nodes in ((graph_a, mine[graph_a]), (graph_b, theirs[graph_b])) if body in lone]
        uses: set[object] = {body for body in (graph_a, graph_b) if body in lone} | {
            (graph_a.owner, graph_b),
            (graph_b.owner, graph_a),
        }
        if sizes and 2 * count >= min(sizes) and not uses & taken:
            taken |= uses
            yield graph_a, graph_b


def _shared(values: Matching, mine: Nodes, theirs: Nodes) -> Counter[tuple[Scope, Scope]]:
    """Count the nodes that two graphs share: those that compute the same, and again those of one operator and name."""
    places: dict[Hashable, Counter[Scope]] = {}
    for graph_b, nodes in theirs.items():
        for key, count in _keys(values, nodes).items():
            places.setdefault(key, Counter())[graph_b] = count
    shared: Counter[tuple[Scope, Scope]] = Counter()
    for graph_a, nodes in mine.items():
        for key, count in _keys(values, nodes).items():
            for graph_b, there in places.get(key, {}).items():
                shared[graph_a, graph_b] += min(count, there)
    return shared


def _keys(values: Matching, nodes: Sequence[Node]) -> Counter[Hashable]:
    names = [(node.operator, tuple(value.name for value in node.outputs if value is not None)) for node in nodes]
    return Counter([*(values.numbers.nodes[node] for node in nodes), *names])


def release_outputs(values: Matching, graph_a: Scope, graph_b: Scope) -> None:
    """Match what a body gives with what its node gave, where that is a value of the graph that has its nodes."""
    for body, there, forth in ((graph_a, graph_b, True), (graph_b, graph_a, False)):
        matched = values.forth if forth else values.back
        for outer, inner in zip(body.owner.outputs if body.owner is not None else (), body.outputs, strict=False):
            twin = matched.get(outer) if outer is not None else None
            if outer is None or twin is None or twin.producer is None or twin.producer.scope is not there:
                continue
            values.release(outer if forth else twin)
            values.add(*((inner, twin) if forth else (twin, inner)), "structure")
