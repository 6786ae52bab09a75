"""The graphs of models before and after rewrites as the data of one page: a panel shows a node in the others too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from graphkit.analysis.cost_changes import CostChange, frozen_dims, models_of, sizes_of_originals
from graphkit.analysis.page_graph import PageSizes, page_graph
from graphkit.errors import ModelError
from graphkit.graph.names import group_pairs
from graphkit.graph.roles import Axis
from graphkit.graph.view import Node, all_nodes, all_scopes
from graphkit.model import Model
from graphkit.model_diff.node_matching import match_nodes
from graphkit.render.document_blocks import NodeMark
from graphkit.render.result import Sizes
from graphkit.shapes import Expr, Shapes, declarations, infer
from graphkit.shapes.constraints.legal_sizes import symbol_roles


class _Side(Struct):
    """A model on a page: its name, the sizes that it is first shown at, and those that its reader cannot set."""

    model: Model
    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    runs: Sequence[Mapping[str, int]] = ()  # sizes that it keeps in further runs
    links: Mapping[str, Expr] = field(default_factory=dict)  # symbols that are expressions in the original's dims
    values: Mapping[str, object] = field(default_factory=dict)  # values of inputs that decide sizes
    marks: Iterable[NodeMark] = ()  # what the drawing says about its nodes

    def fix(self, sizes: Mapping[str, int]) -> None:
        """Show it at some sizes, and nowhere else."""
        self.sizes |= sizes
        self.fixed |= set(sizes)


def page_pair(
    models: tuple[Model, Model], names: tuple[str, str], marks: Sequence[Iterable[NodeMark]] = ((), ())
) -> tuple[Mapping[str, object], ...]:
    """Return the graphs of two models, as `page_graph` does, with what a page reads of both.

    That is `twins`: by the number of the other graph, the number of each node that is there too, with its number there.
    """
    side_a, side_b = (_Side(model, name, marks=told) for model, name, told in zip(models, names, marks, strict=True))
    _freeze_original(side_a, side_b)
    return _make_pages([side_a, side_b], [(0, 1)], _find_twins)


def page_rewrites(changes: Sequence[CostChange]) -> tuple[Mapping[str, object], ...]:
    """Return the graphs of rewrites, at the sizes of their costs: each original once, and each result.

    A result that was counted at another size than the page shows first, such as a first step without a past, keeps it,
    and so does a further run of its original.
    """
    models = models_of(changes)
    numbers = {id(model): number for number, model in enumerate(models)}
    sides = [_Side(model, f"the original {model.name}") for model in models]
    pairs = []
    counted = [(change, change.models) for change in changes if change.models is not None]
    for change, both in counted:
        after = numbers[id(both.after)]
        sides[after] = _Side(both.after, change.what, dict(change.sizes), links=change.links, values=both.values)
        for number in (numbers[id(model)] for model in both.before):
            sides[number].sizes |= change.sizes
            pairs.append((number, after))
    first: dict[str, int] = {}  # the sizes that the page shows; of a symbol of two originals, what the first one says
    for side in (sides[original] for original, _ in pairs):
        known = symbol_roles(side.model)
        first = {name: size for name, size in side.sizes.items() if name in known} | first

    def other_sizes(sizes: Sizes) -> Mapping[str, int]:
        return {name: size for name, size in sizes if first.get(name, size) != size}

    for change, both in counted:
        result = sides[numbers[id(both.after)]]
        result.fix(other_sizes(change.sizes))
        for model in both.before:
            _freeze_original(sides[numbers[id(model)]], result, both.wish)
    for original, (_, *sizes) in sizes_of_originals(changes).items():
        sides[numbers[original]].runs = [*map(other_sizes, sizes)]
    return _make_pages(sides, pairs, _part_twins)


def _freeze_original(original: _Side, result: _Side, wish: Mapping[Axis, int] = {}) -> None:
    frozen = dict(frozen_dims(original.model, result.model, wish).dims)
    original.fix(frozen)
    result.fix(frozen)
    if not symbol_roles(result.model):
        original.fixed |= set(symbol_roles(original.model))


def _make_pages(
    sides: Sequence[_Side], pairs: Iterable[tuple[int, int]], twins_of: Callable[[Shapes, Shapes], Mapping[Node, Node]]
) -> tuple[Mapping[str, object], ...]:
    shapes = [infer(declarations(side.model).model, values=side.values) for side in sides]
    nodes = [{node: number for number, node in enumerate(all_nodes(each.model.scopes))} for each in shapes]
    twins: list[dict[int, dict[int, int]]] = [{} for _ in sides]
    for first, second in pairs:
        same = twins_of(shapes[first], shapes[second])
        forth = {nodes[first][mine]: nodes[second][theirs] for mine, theirs in same.items()}
        twins[first][second], twins[second][first] = forth, {theirs: mine for mine, theirs in forth.items()}
    graphs = []
    for each, side, there in zip(shapes, sides, twins, strict=True):
        at = PageSizes.of(each, sizes=side.sizes, fixed=side.fixed, links=side.links)
        graphs.append({**page_graph(each, at=at, runs=side.runs, marks=side.marks), "model": side.name, "twins": there})
    return tuple(graphs)


def _find_twins(shapes_a: Shapes, shapes_b: Shapes) -> Mapping[Node, Node]:
    """Return the nodes that are the same ones, and those of graphs that compute the same.

    Where files of weights have changed since the models were read, names tell.
    """
    try:
        matching = match_nodes(shapes_a.model, shapes_b.model, (shapes_a, shapes_b))
    except ModelError:
        return _by_name(all_nodes(shapes_a.model.scopes), all_nodes(shapes_b.model.scopes))
    return {**matching.values.equal, **matching.forth}


def _part_twins(original: Shapes, result: Shapes) -> Mapping[Node, Node]:
    """Return the same of a model and a result that was made of a part of it, or of it and others: names tell the rest.

    The branch of a merged decoder keeps its names; what comes from one of several models is named after that.
    """
    model, roles = original.model, result.model.roles
    if model.roles.merged and not roles.merged:  # it has what is outside of the If, and one branch
        decoder, twins = model.roles.merged[0], dict[Node, Node]()
        name = decoder.cache_branch if roles.pasts else decoder.first_branch
        others = [body for branch, body in decoder.node.bodies.items() if branch != name]
        left_out = set(all_scopes(tuple(others)))
        nodes = [node for scope in all_scopes(model.scopes) if scope not in left_out for node in scope.nodes]
    else:
        nodes, twins = [*all_nodes(model.scopes)], {**_find_twins(original, result)}
    there = set(twins.values())
    mine = (node for node in nodes if node not in twins)
    return {**twins, **_by_name(mine, (node for node in all_nodes(result.model.scopes) if node not in there))}


def _by_name(mine: Iterable[Node], theirs: Iterable[Node]) -> Mapping[Node, Node]:
    nodes_a, nodes_b = _nodes_by_name(mine), _nodes_by_name(theirs)
    parts = {(operator, label.partition("/")[2]): node for (operator, label), node in nodes_b.items() if "/" in label}
    return {node: (nodes_b.get(key) or parts[key]) for key, node in nodes_a.items() if key in nodes_b or key in parts}


def _nodes_by_name(nodes: Iterable[Node]) -> dict[tuple[str, str], Node]:
    groups = group_pairs(((node.operator, node.label), node) for node in nodes)
    return {key: same[0] for key, same in groups.items() if len(same) == 1}
