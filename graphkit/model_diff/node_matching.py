"""Which nodes of two models are the same: from the values that match, in the main graphs, bodies and functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphkit.graph.view import Node, Scope, Value
from graphkit.matching.graph_side import Dims, GraphSide, known, source_of
from graphkit.matching.matches import Matching
from graphkit.matching.value_matching import match_graphs
from graphkit.model import Model
from graphkit.model_diff.interface_matching import InterfaceMatching, match_interfaces
from graphkit.shapes import Shapes

__all__ = ["GraphPair", "NodeMatching", "match_nodes"]


@dataclass(frozen=True, eq=False)
class ModelSide(GraphSide):
    """A graph of a model as it is declared: the main graph, a body or a function."""

    model: Model
    graph: Scope
    shapes: Shapes

    @property
    def scope(self) -> Scope:
        return self.graph

    def dims(self, value: Value) -> Dims:
        dims = self.shapes[value].dims
        return None if dims is None else tuple(dim.constant for dim in dims)


@dataclass(frozen=True, eq=False)
class GraphPair:
    """Two graphs that are the same one, though they may differ.

    Attributes:
        a, b: The graphs.
        owners: The nodes that they are bodies of; None for main graphs and functions.
    """

    a: Scope
    b: Scope
    owners: tuple[Node, Node] | None = None


@dataclass(eq=False)
class NodeMatching:
    """The nodes of two models that are the same, though they may differ.

    Attributes:
        values: The values that match.
        interface: The inputs and outputs that do.
        graphs: The graphs that do.
        forth: Nodes of A, with those of B.
        back: The same the other way.
    """

    values: Matching
    interface: InterfaceMatching
    graphs: list[GraphPair] = field(default_factory=list)
    forth: dict[Node, Node] = field(default_factory=dict)
    back: dict[Node, Node] = field(default_factory=dict)

    def agree(self, one: Value | None, two: Value | None) -> bool:
        """Whether a value of A and one of B are the same, or compute the same."""
        if one is None or two is None:
            return one is two
        one, two = _constant_or_itself(one), _constant_or_itself(two)
        numbers, matched = self.values.numbers, self.values.back.get(two)
        return (
            self.values.forth.get(one) is two
            or numbers.value(one) == numbers.value(two)
            or (matched is not None and numbers.value(matched) == numbers.value(one))
        )

    def pair(self, one: Node, two: Node) -> None:
        """Note that two nodes are the same, unless one of them is another one."""
        if one not in self.forth and two not in self.back:
            self.forth[one], self.back[two] = two, one


def _constant_or_itself(value: Value) -> Value:
    source = source_of(value)
    return source if source.is_constant else value


def match_nodes(a: Model, b: Model, shapes: tuple[Shapes, Shapes]) -> NodeMatching:
    """Match the nodes of two models.

    Args:
        a: A model.
        b: The other one.
        shapes: Their shapes.

    Raises:
        ModelError: A file of weights has shrunk since the model was read.
    """
    matching = NodeMatching(Matching(), match_interfaces(a, b))
    matching.values.numbers.add(a)
    matching.values.numbers.add(b, matching.interface.names)
    for one, two in matching.interface.inputs:
        matching.values.add(one, two, "name")
    for one, two in matching.interface.outputs:
        if one.producer is not None and two.producer is not None:
            matching.values.add(one, two, "name")
    pending = [GraphPair(a.graph, b.graph), *_functions(a, b)]
    while pending:
        pair = pending.pop(0)
        matching.graphs.append(pair)
        pending += _match_pair(matching, pair, (a, b), shapes)
    return matching


def function_keys(model: Model) -> dict[tuple[str, str, str], Scope]:
    """Return the functions of a model by domain, name and overload."""
    protos = model.proto.functions
    return {(f.domain, f.name, f.overload): scope for f, scope in zip(protos, model.scopes[1:], strict=True)}


def _functions(a: Model, b: Model) -> Iterator[GraphPair]:
    theirs = function_keys(b)
    for key, scope in function_keys(a).items():
        if key in theirs:
            yield GraphPair(scope, theirs[key])


def _match_pair(
    matching: NodeMatching, pair: GraphPair, models: tuple[Model, Model], shapes: tuple[Shapes, Shapes]
) -> Iterator[GraphPair]:
    """Match the nodes of two graphs, and yield the bodies that match."""
    values = matching.values
    if pair.a.parent is not None or pair.a is not models[0].graph:
        for one, two in zip(pair.a.inputs, pair.b.inputs, strict=False):
            values.add(one, two, "structure")
    sides = (ModelSide(models[0], pair.a, shapes[0]), ModelSide(models[1], pair.b, shapes[1]))
    match_graphs(values, *sides, changed=True)
    for node in pair.a.nodes:
        twin = values.equal.get(node) or _twin(node, values, pair.b)
        if twin is not None and (node.operator == twin.operator or _reads_same(matching, node, twin)):
            matching.pair(node, twin)
    _pair_others(matching, pair)
    for node in pair.a.nodes:
        if node.bodies and (twin := matching.forth.get(node)) is not None:
            shared = [name for name in node.bodies if name in twin.bodies]
            yield from (GraphPair(node.bodies[name], twin.bodies[name], (node, twin)) for name in shared)


def _twin(node: Node, values: Matching, scope: Scope) -> Node | None:
    """Return the node that computes the first output of another one that matches."""
    for value in node.outputs:
        other = values.forth.get(value) if value is not None else None
        if other is not None and other.producer is not None and other.producer.scope is scope:
            return other.producer
    return None


def _reads_same(matching: NodeMatching, one: Node, two: Node) -> bool:
    return len(one.inputs) == len(two.inputs) and all(map(matching.agree, one.inputs, two.inputs))


def _pair_others(matching: NodeMatching, pair: GraphPair) -> None:
    """Match nodes that no value tells of: constants of one name and operator, then what computes the same."""
    mine = [node for node in pair.a.nodes if node not in matching.forth]
    by_name = {(node.operator, _name(node)): node for node in pair.b.nodes if _is_untold(node)}
    for node in mine:
        if _is_untold(node) and (twin := by_name.get((node.operator, _name(node)))) is not None:
            matching.pair(node, twin)
    numbers = matching.values.numbers.nodes
    by_number: dict[int, list[Node]] = {}
    for node in pair.b.nodes:
        if node not in matching.back:
            by_number.setdefault(numbers[node], []).append(node)
    for node in mine:
        twins = by_number.get(numbers[node])
        if node not in matching.forth and twins:
            matching.pair(node, twins.pop(0))


def _is_untold(node: Node) -> bool:
    """Whether a node gives constants alone, or nothing."""
    return all(known(value) is not None or value.producer is not node for value in node.outputs if value is not None)


def _name(node: Node) -> str:
    return next((value.name for value in node.outputs if value is not None), node.proto.name)
