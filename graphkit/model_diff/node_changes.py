"""Nodes that were added, removed or changed, and the values that their readers read instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from graphkit.graph.declared_types import attribute_text, tensor_text, values_text
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Value, as_text
from graphkit.matching.value_matching import is_counted, source_of
from graphkit.matching.value_numbering import ValueNumbers, default_of
from graphkit.model_diff.changes import Change, ChangedNode, LoneNode, MovedNode, NameChange, NodeChanges
from graphkit.model_diff.node_matching import GraphPair, NodeMatching

__all__ = ["ReadConstants", "attribute_changes", "node_changes"]

ReadConstants = dict[tuple[Value, Value], None]  # constants of A and of B that nodes read at the same place


class _Reading:
    """What readers read in both models: collects what is read instead of values that are gone, and constants."""

    def __init__(self, matching: NodeMatching) -> None:
        self.matching = matching
        self.after: dict[Node, dict[str, None]] = {}  # what is read in B instead of results of nodes of A alone
        self.before: dict[Node, dict[str, None]] = {}  # the other way
        self.constants: ReadConstants = {}

    def differs(self, value_a: Value | None, value_b: Value | None) -> bool:
        """Whether one place reads something else, which no node that is gone, or new, and no constant explains."""
        if (
            value_a is not None
            and value_b is not None
            and source_of(value_a).is_constant
            and source_of(value_b).is_constant
        ):
            is_other = self.is_other_constant(source_of(value_a), source_of(value_b))
            if not is_other:
                self.constants[value_a, value_b] = None
            return is_other
        if self.matching.agree(value_a, value_b):
            return False
        gone = value_a.producer if value_a is not None and value_a.producer not in self.matching.forth else None
        made = value_b.producer if value_b is not None and value_b.producer not in self.matching.back else None
        if gone is not None and value_b is not None:
            self.after.setdefault(gone, {})[value_b.name] = None
        if made is not None and value_a is not None:
            self.before.setdefault(made, {})[value_a.name] = None
        return (gone is None and made is None) or value_a is None or value_b is None

    def is_other_constant(self, value_a: Value, value_b: Value) -> bool:
        """Whether a node reads another constant than before, where one of the two is in both models."""
        if value_a.name == value_b.name or self.matching.agree(value_a, value_b):
            return False
        before, after = value_a.scope.find(value_b.name), value_b.scope.find(value_a.name)
        return (before is not None and self.matching.agree(before, value_b)) or (
            after is not None and self.matching.agree(value_a, after)
        )


def node_changes(matching: NodeMatching) -> tuple[NodeChanges, ReadConstants]:
    """Return the nodes that differ, and the constants that nodes read at the same places."""
    reading = _Reading(matching)
    changed: list[ChangedNode] = []
    owners: dict[Node, list[Change]] = {}
    for pair in matching.graphs:
        outputs = list(_output_changes(pair, reading))
        if pair.owners is not None:
            owners.setdefault(pair.owners[0], []).extend(outputs)
    for node, twin in matching.forth.items():
        changes = (*_node_differences(node, twin, reading), *owners.get(node, ()))
        if changes:
            changed.append(ChangedNode(node.path, twin.path, node.operator, module_of(node), changes))
    mine, theirs = matching.alone
    removed, added = _lone_nodes(mine, reading.after), _lone_nodes(theirs, reading.before)
    return NodeChanges(removed, added, tuple(changed), tuple(_moved_nodes(matching))), reading.constants


def _lone_nodes(nodes: Sequence[Node], instead: dict[Node, dict[str, None]]) -> tuple[LoneNode, ...]:
    alone = set(nodes)
    return tuple(
        LoneNode(
            node.path, node.operator, module_of(node), tuple(instead.get(node, ())), within=_owner_among(alone, node)
        )
        for node in nodes
        if not node.is_op("Constant")  # a constant, which weights tell of
    )


def _owner_among(nodes: Collection[Node], node: Node) -> str:
    """Return the path of the one of some nodes in whose body another one is, the innermost, "" for none."""
    owner = node.scope.owner
    while owner is not None and owner not in nodes:
        owner = owner.scope.owner
    return owner.path if owner is not None else ""


def _moved_nodes(matching: NodeMatching) -> Iterator[MovedNode]:
    """Yield the nodes that are in graphs that do not match."""
    graphs = {pair.a: pair.b for pair in matching.graphs}
    for node, twin in matching.forth.items():
        if graphs.get(node.scope) is not twin.scope and not node.is_op("Constant"):
            graph, other_graph = node.scope.path, twin.scope.path
            yield MovedNode(node.path, twin.path, node.operator, module_of(node), graph, other_graph)


def _node_differences(node_a: Node, node_b: Node, reading: _Reading) -> Iterator[Change]:
    """Yield how two nodes that are the same differ."""
    if node_a.operator != node_b.operator:
        yield Change("operator", node_a.operator, node_b.operator)
    if node_a.proto.overload != node_b.proto.overload:
        yield Change("overload", str(node_a.proto.overload), str(node_b.proto.overload))
    if not node_a.is_op("Constant"):
        yield from attribute_changes(node_a, node_b, reading.matching.values.numbers)
    yield from _input_changes(node_a, node_b, reading)
    present = [{index for index, value in enumerate(node.outputs) if value is not None} for node in (node_a, node_b)]
    for index in sorted(present[0] ^ present[1]):
        texts = [
            _name_of_value(node.outputs[index]) if index in has else None
            for node, has in zip((node_a, node_b), present, strict=True)
        ]
        yield NameChange(f"output {index}", *texts)


def _input_changes(node_a: Node, node_b: Node, reading: _Reading) -> Iterator[Change]:
    """Yield the inputs that are others; of those that only change places, the order."""
    pairs = list(zip_longest(node_a.inputs, node_b.inputs))
    places = [index for index, (x, y) in enumerate(pairs) if reading.differs(x, y)]
    order = [next((to for to in places if reading.matching.agree(pairs[at][0], pairs[to][1])), None) for at in places]
    if places and len({*order, None}) > len(places):
        yield Change("order of inputs", *(", ".join(map(str, indices)) for indices in (places, order)))
        return
    for index in places:
        yield NameChange(f"input {index}", *map(_name_of_value, pairs[index]))


def _name_of_value(value: Value | None) -> str | None:
    """Return the name of a value; of a small constant whose name an exporter counted, its values."""
    if value is None:
        return None
    tensor = value.constant if value.kind == "node" and is_counted(value.name) else None
    return tensor_text(tensor) if tensor is not None and values_text(tensor) else value.name


def _output_changes(pair: GraphPair, reading: _Reading) -> Iterator[Change]:
    """Yield the outputs of a graph that are other values; of a body, how many inputs it takes, too."""
    label = pair.a.path.rpartition("/")[2]
    of_label = f" of {label}" if label else ""
    ends: Sequence[tuple[str, Value | None, Value | None]]
    if pair.a.path:
        if len(pair.a.inputs) != len(pair.b.inputs):
            yield Change(f"inputs of {label}", str(len(pair.a.inputs)), str(len(pair.b.inputs)))
        ends = [(str(index), *both) for index, both in enumerate(zip_longest(pair.a.outputs, pair.b.outputs))]
    else:
        ends = [
            (f"'{value_a.name}'", value_a, value_b) for value_a, value_b in reading.matching.interface.outputs.pairs
        ]
    for name, value_a, value_b in ends:
        if reading.differs(value_a, value_b):
            yield NameChange(f"output {name}{of_label}", _source_text(value_a), _source_text(value_b))


def _source_text(value: Value | None) -> str | None:
    if value is None:
        return None
    return f"{value.producer.operator} '{value.producer.label}'" if value.producer is not None else f"'{value.name}'"


def attribute_changes(node_a: Node, node_b: Node, numbers: ValueNumbers) -> Iterator[Change]:
    """Yield the attributes in which two nodes differ, without their bodies; graphs that one of them lacks are told."""
    first, second = numbers.attributes[node_a], numbers.attributes[node_b]
    for name in sorted({*first, *second}, key=str):
        if first.get(name) != second.get(name):
            yield Change(as_text(name), _text(node_a, name), _text(node_b, name))
    for name in sorted(node_a.bodies.keys() ^ node_b.bodies.keys(), key=str):
        texts = ["a graph" if name in node.bodies else None for node in (node_a, node_b)]
        yield Change(as_text(name), *texts)


def _text(node: Node, name: str) -> str | None:
    attribute = node.attributes.get(name)
    if attribute is not None:
        return attribute_text(attribute)
    default = default_of(node, name)
    return f"{attribute_text(default)} (default)" if default is not None else None
