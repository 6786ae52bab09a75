"""Which nodes of two models are the same: from the values that match, in the main graphs, bodies and functions.

Graphs match where their nodes do. What is left is looked for in other graphs: a rewrite may have moved it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct, field

from graphkit.analysis.node_costs import function_scopes
from graphkit.equivalence.check import shared_values
from graphkit.graph.names import group_pairs
from graphkit.graph.view import Node, Scope, Value, all_nodes
from graphkit.matching.interfaces import Interfaces, compare_interfaces
from graphkit.matching.value_matching import Dims, GraphSide, Matching, known_tensor, match_graphs, source_of
from graphkit.model import Model
from graphkit.shapes import Shapes

Nodes = Mapping[Scope, Sequence[Node]]


@dataclass(frozen=True, eq=False)
class ModelSide(GraphSide):
    """A graph of a model as it is declared: the main graph, a body or a function."""

    model: Model
    graph: Scope
    shapes: Shapes

    @property
    def scope(self) -> Scope:
        """The graph."""
        return self.graph

    def dims(self, value: Value) -> Dims:
        """Return the numbers among the dims of a value."""
        dims = self.shapes[value].dims
        return None if dims is None else tuple(dim.constant for dim in dims)


class GraphPair(Struct, frozen=True, eq=False):
    """Two graphs that are the same one, though they may differ."""

    a: Scope  # the graphs
    b: Scope
    owners: tuple[Node, Node] | None = None  # the nodes that they are bodies of; None for main graphs and functions


class NodeMatching(Struct, eq=False):
    """The nodes of two models that are the same, though they may differ."""

    models: tuple[Model, Model]  # both, with their shapes
    shapes: tuple[Shapes, Shapes]
    interface: Interfaces  # the inputs and outputs that match
    values: Matching = field(default_factory=Matching)  # the values that do
    graphs: list[GraphPair] = field(default_factory=list)  # the graphs that do
    moves: list[GraphPair] = field(default_factory=list)  # others, of which one has nodes of the other
    forth: dict[Node, Node] = field(default_factory=dict)  # nodes of A, with those of B
    back: dict[Node, Node] = field(default_factory=dict)  # the same the other way

    def agree(self, value_a: Value | None, value_b: Value | None) -> bool:
        """Whether a value of A and one of B are the same, or compute the same."""
        if value_a is None or value_b is None:
            return value_a is value_b
        value_a, value_b = _constant_or_itself(value_a), _constant_or_itself(value_b)
        numbers, matched = self.values.numbers, self.values.back.get(value_b)
        return (
            self.values.forth.get(value_a) is value_b
            or numbers.value(value_a) == numbers.value(value_b)
            or (matched is not None and numbers.value(matched) == numbers.value(value_a))
        )

    @property
    def alone(self) -> tuple[Sequence[Node], Sequence[Node]]:
        """The nodes of each model that match none of the other, bodies included; no function that one model lacks."""
        roots = [pair.a for pair in self.graphs], [pair.b for pair in self.graphs]
        return _unmatched_nodes(roots[0], self.forth), _unmatched_nodes(roots[1], self.back)

    def pair(self, node_a: Node, node_b: Node) -> None:
        """Note that two nodes are the same, unless one of them is another one."""
        if node_a not in self.forth and node_b not in self.back:
            self.forth[node_a], self.back[node_b] = node_b, node_a


def _unmatched_nodes(graphs: Sequence[Scope], matched: Mapping[Node, Node]) -> Sequence[Node]:
    alone = [node for graph in graphs for node in graph.nodes if node not in matched]
    inside = (inner for node in alone for inner in all_nodes(tuple(node.bodies.values())) if inner not in matched)
    return tuple(dict.fromkeys([*alone, *inside]))


def _constant_or_itself(value: Value) -> Value:
    source = source_of(value)
    return source if source.is_constant else value


def match_nodes(a: Model, b: Model, shapes: tuple[Shapes, Shapes]) -> NodeMatching:
    """Match the nodes of two models. Raises ModelError where a file of weights has shrunk since the model was read."""
    matching = NodeMatching((a, b), shapes, compare_interfaces(a, b))
    matching.values.numbers.add(a)
    matching.values.numbers.add(b, matching.interface.names)
    for value_a, value_b in matching.interface.inputs.pairs:
        matching.values.add(value_a, value_b, "name")
    for value_a, value_b in matching.interface.outputs.pairs:
        if value_a.producer is not None and value_b.producer is not None:
            matching.values.add(value_a, value_b, "name")
    functions_a, functions_b = function_scopes(a), function_scopes(b)
    functions = [GraphPair(functions_a[key], functions_b[key]) for key in functions_a if key in functions_b]
    _match_graphs(matching, [GraphPair(a.graph, b.graph), *functions])
    _match_moved(matching)
    return matching


def _match_graphs(matching: NodeMatching, pending: list[GraphPair]) -> None:
    while pending:
        matching.graphs.append(pending.pop(0))
        pending += _match_graph(matching, matching.graphs[-1])


def _match_moved(matching: NodeMatching) -> None:
    """Match nodes that are in another graph: those of bodies that one model lacks, then what computes the same."""
    alone = ((node for node in nodes if not node.is_op("Constant")) for nodes in matching.alone)
    mine, theirs = (group_pairs((node.scope, node) for node in nodes) for nodes in alone)
    if not mine or not theirs:
        return
    paired = {graph for pair in matching.graphs for graph in (pair.a, pair.b)}
    lone = {graph for graph in (*mine, *theirs) if graph not in paired}
    for graph_a, graph_b in list(_moved_bodies(matching.values, mine, theirs, lone)):
        matching.moves.append(GraphPair(graph_a, graph_b))
        # what a body gives is what its node gave, where that is a value of the graph that has its nodes
        values = matching.values
        for body, there, forth in ((graph_a, graph_b, True), (graph_b, graph_a, False)):
            matched = values.forth if forth else values.back
            for outer, inner in zip(body.owner.outputs if body.owner is not None else (), body.outputs, strict=False):
                twin = matched.get(outer) if outer is not None else None
                if outer is None or twin is None or twin.producer is None or twin.producer.scope is not there:
                    continue
                values.release(outer if forth else twin)
                values.add(*((inner, twin) if forth else (twin, inner)), "structure")
        _match_graphs(matching, list(_match_graph(matching, matching.moves[-1])))
    _pair_equal(matching, *([node for node in nodes if not node.is_op("Constant")] for nodes in matching.alone))


def _match_graph(matching: NodeMatching, pair: GraphPair) -> Iterator[GraphPair]:
    values, models = matching.values, matching.models
    equal: Iterator[tuple[Value, Value]] = iter(())
    are_main = [graph is model.graph for graph, model in zip((pair.a, pair.b), models, strict=True)]
    if not any(are_main):
        for value_a, value_b in zip(pair.a.inputs, pair.b.inputs, strict=False):
            values.add(value_a, value_b, "structure")
    if all(are_main):
        names_in_a = {value_b.name: name_a for value_b, name_a in matching.interface.names.items()}
        equal = shared_values(*models, values.numbers.constants, names_in_a=names_in_a)
    sides = (ModelSide(models[0], pair.a, matching.shapes[0]), ModelSide(models[1], pair.b, matching.shapes[1]))
    match_graphs(values, *sides, equal=equal, changed=True)
    for node in pair.a.nodes:
        matched = (values.forth.get(value) for value in node.outputs if value is not None)
        makers = (value.producer for value in matched if value is not None and value.producer is not None)
        twin = values.equal.get(node) or next((maker for maker in makers if maker.scope is pair.b), None)
        if twin is None:
            continue
        reads_same = len(node.inputs) == len(twin.inputs) and all(map(matching.agree, node.inputs, twin.inputs))
        if node.operator == twin.operator or reads_same:
            matching.pair(node, twin)
    # no value tells of others: constants match by name and operator, then what computes the same
    mine = [node for node in pair.a.nodes if node not in matching.forth]
    by_name = {(node.operator, _node_name(node)): node for node in pair.b.nodes if _is_untold(node)}
    for node in mine:
        if _is_untold(node) and (named := by_name.get((node.operator, _node_name(node)))) is not None:
            matching.pair(node, named)
    theirs = [node for node in pair.b.nodes if node not in matching.back]
    _pair_equal(matching, [node for node in mine if node not in matching.forth], theirs)
    for node in pair.a.nodes:
        if node.bodies and (twin := matching.forth.get(node)) is not None:
            shared = [name for name in node.bodies if name in twin.bodies]
            yield from (GraphPair(node.bodies[name], twin.bodies[name], (node, twin)) for name in shared)


def _pair_equal(matching: NodeMatching, mine: Sequence[Node], theirs: Sequence[Node]) -> None:
    numbers = matching.values.numbers.nodes
    by_number = group_pairs((numbers[node], node) for node in theirs)
    for node in mine:
        if twins := by_number.get(numbers[node]):
            matching.pair(node, twins.pop(0))


def _is_untold(node: Node) -> bool:
    """Whether a node gives constants alone, or nothing."""
    return all(known_tensor(each) is not None or each.producer is not node for each in node.outputs if each is not None)


def _node_name(node: Node) -> str:
    return next((value.name for value in node.outputs if value is not None), node.proto.name)


def _moved_bodies(
    values: Matching, mine: Nodes, theirs: Nodes, lone: Collection[Scope]
) -> Iterator[tuple[Scope, Scope]]:
    """Yield graphs of A and of B that share nodes that match none, where one is a body that the other model lacks.

    The most alike come first. A graph takes one body of a node: both branches of an If are much alike.
    """
    places: dict[Hashable, Counter[Scope]] = {}
    for graph_b, nodes in theirs.items():
        for key, count in _matching_keys(values, nodes).items():
            places.setdefault(key, Counter())[graph_b] = count
    # nodes that compute the same, and again those of one operator and name
    shared: Counter[tuple[Scope, Scope]] = Counter()
    for graph_a, nodes in mine.items():
        for key, count in _matching_keys(values, nodes).items():
            for graph_b, there in places.get(key, {}).items():
                shared[graph_a, graph_b] += min(count, there)
    taken: set[object] = set()
    for (graph_a, graph_b), count in shared.most_common():
        sizes = [len(nodes) for body, nodes in ((graph_a, mine[graph_a]), (graph_b, theirs[graph_b])) if body in lone]
        uses: set[object] = {body for body in (graph_a, graph_b) if body in lone}
        uses |= {(graph_a.owner, graph_b), (graph_b.owner, graph_a)}
        if sizes and 2 * count >= min(sizes) and not uses & taken:
            taken |= uses
            yield graph_a, graph_b


def _matching_keys(values: Matching, nodes: Sequence[Node]) -> Counter[Hashable]:
    names = [(node.operator, tuple(value.name for value in node.outputs if value is not None)) for node in nodes]
    return Counter([*(values.numbers.nodes[node] for node in nodes), *names])


def value_path(value: Value) -> str:
    """Return the name of a value after the path of its scope."""
    return f"{value.scope.path}/{value.name}" if value.scope.path else value.name
