"""Scopes as networkx graphs, for its algorithms: ancestors, dominators, paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import networkx as nx

from graphkit.graph.view import Node, Scope, Value, all_nodes

__all__ = ["Network", "cone", "to_networkx"]

Network: TypeAlias = "nx.DiGraph[Node | Value]"


def to_networkx(scopes: Iterable[Scope], keep: Callable[[Value], bool] | None = None) -> Network:
    """Return the values and nodes of some scopes, bodies included, as one directed graph.

    The graph's vertices are `Node` and `Value` objects; edges run value -> consumer and producer -> value.

    Args:
        scopes: Where to take the nodes from.
        keep: Which values to include; all by default. Edges to other values are left out.

    Returns:
        A directed graph of networkx.

    Example:
        >>> graphkit.to_networkx(graphkit.load("example:causal-attention").scopes).number_of_nodes()
        464
    """
    graph: Network = nx.DiGraph()
    is_included = keep or (lambda _: True)
    for node in all_nodes(tuple(scopes)):
        graph.add_node(node)
        graph.add_edges_from((value, node) for value in node.operands if is_included(value))
        graph.add_edges_from((node, value) for value in node.results if is_included(value))
        for body in node.bodies.values():
            graph.add_edges_from((value, node) for value in body.outputs if is_included(value))
    return graph


def cone(graph: Network, vertex: Node | Value) -> Network:
    """Return the part of a graph that a vertex is computed from, itself included.

    Returns:
        A view of the graph with the vertex and its ancestors.

    Raises:
        NetworkXError: The vertex is not in the graph.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> whole = graphkit.to_networkx(model.scopes)
        >>> len(graphkit.cone(whole, model.graph.outputs[0])) <= len(whole)
        True
    """
    return graph.subgraph({vertex, *nx.ancestors(graph, vertex)})
