"""What onnxruntime needs of a graph: nodes with names of their own, outputs that it does not round."""

from __future__ import annotations

from onnx import helper

from graphkit.graph.names import free_name, names_in
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.rewrite import copy_proto

__all__ = ["is_rounded_behind", "keep_outputs_float", "with_unique_node_names"]


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


MOVING = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")  # which it moves a QuantizeLinear past


def keep_outputs_float(model: Model) -> tuple[Model, int]:
    """Return a model whose outputs onnxruntime leaves as they are, and how many got an Identity of their own for that.

    A graph output that one node moves, on its way to a QuantizeLinear, is itself rounded and clipped to 8 bits at
    onnxruntime's default level (seen in 1.32), unless it has a second reader, such as the Shape that a fold takes away.
    An Identity that gives the output is one.
    """
    rounded = [value.name for value in model.graph.outputs if is_rounded_behind(value)]
    if not rounded:
        return model, 0
    proto = copy_proto(model)
    taken = names_in(model.scopes)
    for name in rounded:
        source = free_name(f"{name}_float", taken)
        taken.add(source)
        for node in proto.graph.node:
            node.input[:] = [source if read == name else read for read in node.input]
            node.output[:] = [source if made == name else made for made in node.output]
        proto.graph.node.append(helper.make_node("Identity", [source], [name]))
    return model.with_proto(proto), len(rounded)


def is_rounded_behind(value: Value) -> bool:
    """Whether the only reader of a value, besides an Identity, moves it on its way to a QuantizeLinear."""
    if value.producer is None or value.producer.is_op("DequantizeLinear"):
        return False
    node = _only_data_reader(value)
    if node is None or not node.is_op(*MOVING):
        return False
    while node is not None and node.is_op(*MOVING):
        out = node.outputs[0]
        node = None if out is None else _only_data_reader(out)
    return node is not None and node.is_op("QuantizeLinear")


def _only_data_reader(value: Value) -> Node | None:
    """Return the only node that reads a value as its data, None where there are others."""
    readers = [node for node, _ in value.consumers if not node.is_op("Identity")]
    return readers[0] if len(readers) == 1 and readers[0].input(0) is value else None
