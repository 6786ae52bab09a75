"""A part of a model that computes one of its values, in whatever body that is: the export's own word for it."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from graphkit.graph.types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.model import Model

__all__ = ["part_of"]


def part_of(model: Model, values: Collection[Value]) -> tuple[Model, list[Value]] | None:
    """Return a model that gives some values of one scope, and its inputs; None where a node with bodies is in it.

    Dims of inputs are free: a lookup takes any number of ids.
    """
    nodes, read = dict[Node, None](), dict[Value, None]()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value in read:
            continue
        read[value] = None
        node = value.producer
        if node is not None and node not in nodes:
            if node.bodies:
                return None
            nodes[node] = None
            todo += [each for each in node.inputs if each is not None]
    whole = model.proto
    proto = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
    proto.graph.name = whole.graph.name
    ordered = sorted(nodes, key=lambda node: (node.scope.depth, node.index))
    proto.graph.node.extend(node.proto for node in ordered)
    inputs = [value for value in read if value.producer is None and value.tensor is None and value.sparse is None]
    for value in read:
        if value.producer is None and value.tensor is not None:
            proto.graph.initializer.append(value.tensor)
        elif value.producer is None and value.sparse is not None:
            proto.graph.sparse_initializer.append(value.sparse)
    for value in inputs:
        declared = declared_type(value)
        if declared is None:
            return None
        shape = None if declared.dims is None else [f"{value.name}_{axis}" for axis in range(len(declared.dims))]
        proto.graph.input.append(onnx.helper.make_tensor_value_info(value.name, declared.dtype, shape))
    proto.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in values)
    return model.with_proto(proto), inputs
