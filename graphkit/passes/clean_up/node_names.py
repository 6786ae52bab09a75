"""Give nodes names of their own: onnxruntime loads no graph in which two have one name."""

from __future__ import annotations

from graphkit.graph.names import free_name, names_in
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.rewrite import copy_proto

__all__ = ["with_unique_node_names"]


def with_unique_node_names(model: Model) -> tuple[Model, int]:
    """Return a model in which no two nodes of a graph have one name, and how many got another one."""
    seen, repeated = set[tuple[str, str]](), list[int]()
    for number, node in enumerate(all_nodes(model.scopes)):
        place = node.scope.path, node.proto.name
        if node.proto.name and place in seen:
            repeated.append(number)
        seen.add(place)
    if not repeated:
        return model, 0
    copy, taken = model.with_proto(copy_proto(model)), names_in(model.scopes)
    nodes = list(all_nodes(copy.scopes))
    for number in repeated:
        nodes[number].proto.name = free_name(nodes[number].proto.name, taken)
        taken.add(nodes[number].proto.name)
    return copy.with_proto(copy.proto), len(repeated)
