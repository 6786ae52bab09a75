"""The graphs of two models as the data of one page: a node's panel shows what it is in the other model."""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.analysis.page_graph import page_graph
from graphkit.errors import ModelError
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.model_diff.node_matching import NodeMatching, match_nodes
from graphkit.shapes import declarations, infer

__all__ = ["page_pair"]


def page_pair(models: tuple[Model, Model], names: tuple[str, str]) -> tuple[Mapping[str, object], ...]:
    """Return the graphs of two models, as `page_graph` does, with what a page reads of both.

    Args:
        models: The models.
        names: What the page calls them.

    Returns:
        Both graphs, with `twins`: the number of each node that is in the other model too, with its number there.
        Nothing where files of weights have changed since the models were read.
    """
    shapes = (infer(declarations(models[0]).model), infer(declarations(models[1]).model))
    try:
        matching = match_nodes(shapes[0].model, shapes[1].model, shapes)
    except ModelError:
        return ()
    numbers = tuple({node: number for number, node in enumerate(all_nodes(each.model.scopes))} for each in shapes)
    twins = _twins(matching)
    forth = {numbers[0][one]: numbers[1][two] for one, two in twins.items()}
    back = {two: one for one, two in forth.items()}
    first, second = (page_graph(each) for each in shapes)
    return {**first, "model": names[0], "twins": forth}, {**second, "model": names[1], "twins": back}


def _twins(matching: NodeMatching) -> Mapping[Node, Node]:
    """Return the nodes that are the same ones, and those of graphs that compute the same."""
    return {**matching.values.equal, **matching.forth}
