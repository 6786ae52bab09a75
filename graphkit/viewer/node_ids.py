"""The id of each node in Model Explorer: its path; in a second model, that of the node of the first that it matches.

Model Explorer synchronises two graphs by equal ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphkit.graph.view import Node, Scope, Value, all_scopes
from graphkit.model import Model
from graphkit.model_diff.node_matching import NodeMatching

__all__ = ["NodeIds", "Thing", "matched_ids", "node_ids"]

Output = tuple[Scope, int]  # an output of a graph or a function, by its index
Thing = Node | Value | Output  # a value is an input
RESERVED = "__proto__"  # which JavaScript does not keep as the key of an object
GROUP = "___group___"  # with which the ids of groups end


@dataclass
class NodeIds:
    """The ids of all nodes of a model, of its inputs and outputs.

    Attributes:
        of: The id of each.
        things: What has an id.
        numbers: The last number that was given to things of one wish.
    """

    of: dict[Thing, str] = field(default_factory=dict)
    things: dict[str, Thing] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, thing: Thing, wish: str, taken: NodeIds | None = None) -> None:
        """Give a thing an id that no other one has, here and in `taken`: its wish, or that with a number."""
        wish = f"{wish}_" if wish == RESERVED or wish.endswith(GROUP) else wish
        free, number = wish, 1
        while free in self.things or (taken is not None and free in taken.things):
            number = self.numbers.get(wish, number) + 1
            self.numbers[wish] = number
            free = f"{wish}#{number}"
        self.of[thing], self.things[free] = free, thing


def node_ids(model: Model) -> NodeIds:
    """Return an id for each node, input and output of a model."""
    ids = NodeIds()
    for thing, wish in _named_things(model):
        ids.add(thing, wish)
    return ids


def matched_ids(model: Model, matching: NodeMatching, first: NodeIds) -> NodeIds:
    """Return the ids of a second model: those of the first where the two match, others elsewhere."""
    ids = NodeIds()
    others = []
    for thing, wish in _named_things(model):
        twin = _find_twin(thing, wish, matching, first)
        if twin is None or first.of[twin] in ids.things:
            others.append((thing, wish))
        else:
            ids.add(thing, first.of[twin])
    for thing, wish in others:
        ids.add(thing, wish, first)
    return ids


def _find_twin(thing: Thing, wish: str, matching: NodeMatching, first: NodeIds) -> Thing | None:
    """Return what a thing of the second model is in the first one: inputs and outputs of graphs go by their names."""
    if isinstance(thing, Node):
        return matching.back.get(thing)
    if isinstance(thing, Value) and (thing in matching.values.back or thing.scope.parent is not None):
        twin = matching.values.back.get(thing)
        return twin if twin in first.of else None
    named = first.things.get(wish)
    return None if isinstance(named, Node) else named


def _named_things(model: Model) -> Iterator[tuple[Thing, str]]:
    for scope in all_scopes(model.scopes):
        before = f"{scope.path}/" if scope.path else ""
        yield from ((node, node.path) for node in scope.nodes)
        yield from ((value, f"{before}input {value.name}") for value in scope.inputs if not value.is_constant)
        if scope.parent is None:
            yield from (((scope, at), f"{before}output {value.name}") for at, value in enumerate(scope.outputs))
