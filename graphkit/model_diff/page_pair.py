"""The graphs of models before and after rewrites as the data of one page: a panel shows a node in the others too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from graphkit.analysis.costs.cost_changes import CostChange, frozen_dims, models_of
from graphkit.analysis.page_graph import page_graph
from graphkit.errors import ModelError
from graphkit.graph.view import Node, all_nodes, all_scopes
from graphkit.model import Model
from graphkit.model_diff.node_matching import match_nodes
from graphkit.shapes import Shapes, declarations, infer
from graphkit.shapes.constraints.symbol_sizes import symbol_roles

__all__ = ["page_pair", "page_rewrites"]


def page_pair(models: tuple[Model, Model], names: tuple[str, str]) -> tuple[Mapping[str, object], ...]:
    """Return the graphs of two models, as `page_graph` does, with what a page reads of both.

    Args:
        models: The models.
        names: What the page calls them.

    Returns:
        Both graphs, with `twins`: by the number of the other graph, the number of each node that is there too, with
        its number there.
    """
    return _page(models, names, [(0, 1)], ({}, {}), _twins)


def page_rewrites(changes: Sequence[CostChange]) -> tuple[Mapping[str, object], ...]:
    """Return the graphs of rewrites, at the sizes of their costs: each original once, and each result."""
    models = models_of(changes)
    numbers = {id(model): number for number, model in enumerate(models)}
    names = [f"the original {model.name}" for model in models]
    sizes: list[Mapping[str, int]] = [{} for _ in models]
    pairs = []
    for change in changes:
        if change.models is None:
            continue
        after = numbers[id(change.models.after)]
        names[after], sizes[after] = change.what, dict(change.sizes)
        for number in (numbers[id(model)] for model in change.models.before):
            sizes[number] = dict(change.sizes)
            pairs.append((number, after))
    return _page(models, names, pairs, sizes, _part_twins)


def _page(
    models: Sequence[Model],
    names: Sequence[str],
    pairs: Iterable[tuple[int, int]],
    sizes: Sequence[Mapping[str, int]],
    twins_of: Callable[[Shapes, Shapes], Mapping[Node, Node]],
) -> tuple[Mapping[str, object], ...]:
    shapes = [infer(declarations(model).model) for model in models]
    nodes = [{node: number for number, node in enumerate(all_nodes(each.model.scopes))} for each in shapes]
    twins: list[dict[int, dict[int, int]]] = [{} for _ in models]
    fixed: list[set[str]] = [set() for _ in models]
    first = [dict(each) for each in sizes]
    for one, two in pairs:
        frozen = dict(frozen_dims(models[one], models[two]).dims)
        first[one] |= frozen
        fixed[one] |= set(frozen) if symbol_roles(models[two]) else set(symbol_roles(models[one]))
        forth = {nodes[one][mine]: nodes[two][theirs] for mine, theirs in twins_of(shapes[one], shapes[two]).items()}
        twins[one][two], twins[two][one] = forth, {theirs: mine for mine, theirs in forth.items()}
    return tuple(
        {**page_graph(each, sizes=first[number], fixed=fixed[number]), "model": names[number], "twins": twins[number]}
        for number, each in enumerate(shapes)
    )


def _twins(one: Shapes, two: Shapes) -> Mapping[Node, Node]:
    """Return the nodes that are the same ones, and those of graphs that compute the same.

    Where files of weights have changed since the models were read, names tell.
    """
    try:
        matching = match_nodes(one.model, two.model, (one, two))
    except ModelError:
        return _by_name(all_nodes(one.model.scopes), all_nodes(two.model.scopes))
    return {**matching.values.equal, **matching.forth}


def _part_twins(one: Shapes, two: Shapes) -> Mapping[Node, Node]:
    """Return the same of a model and a result that was made of a part of it, or of it and others: names tell the rest.

    The branch of a merged decoder keeps its names; what comes from one of several models is named after that.
    """
    nodes = _branch(one.model, two.model)
    found = _twins(one, two) if nodes is None else {}
    there = set(found.values())
    mine = (node for node in nodes or all_nodes(one.model.scopes) if node not in found)
    return {**found, **_by_name(mine, (node for node in all_nodes(two.model.scopes) if node not in there))}


def _branch(model: Model, result: Model) -> list[Node] | None:
    """Return the nodes of a merged decoder that a result is made of: those outside of its If, and of one branch."""
    if not model.roles.merged or result.roles.merged:
        return None
    (decoder, *_) = model.roles.merged
    name = decoder.cache_branch if result.roles.pasts else decoder.first_branch
    others = [body for branch, body in decoder.node.bodies.items() if branch != name]
    left_out = set(all_scopes(tuple(others)))
    return [node for scope in all_scopes(model.scopes) if scope not in left_out for node in scope.nodes]


def _by_name(mine: Iterable[Node], theirs: Iterable[Node]) -> Mapping[Node, Node]:
    """Return nodes of one operator and label, where these tell one node from all others."""
    one, two = _named(mine), _named(theirs)
    parts = {(operator, label.partition("/")[2]): node for (operator, label), node in two.items() if "/" in label}
    return {node: (two.get(key) or parts[key]) for key, node in one.items() if key in two or key in parts}


def _named(nodes: Iterable[Node]) -> dict[tuple[str, str], Node]:
    found: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        found.setdefault((node.operator, node.label), []).append(node)
    return {key: same[0] for key, same in found.items() if len(same) == 1}
