"""Ties of 8-bit rounding: copies of a statically quantised model whose data lies a little higher or lower.

An element half way between two steps rounds to either, as the last digit of a float32 sum has it, and onnxruntime adds
up in another order where it fuses other nodes. What such an element does to the outputs is what the original itself
does when the data of all QuantizeLinear nodes moves by far less than a step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphkit.graph.names import free_name, names_in
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto

__all__ = ["moved_copies"]

STEPS = 2e-4  # of a quantiser: a few units in the last place of a float32 sum of data as large as 127 steps


def moved_copies(model: Model) -> tuple[Model, ...]:
    """Return copies with all data in front of QuantizeLinear higher, and lower; none for a model without such nodes."""
    return tuple(copy for steps in (STEPS, -STEPS) if (copy := _moved(model, steps)) is not None)


def _moved(model: Model, steps: float) -> Model | None:
    proto, taken = copy_proto(model), names_in(model.scopes)
    scalars = {tensor.name for tensor in proto.graph.initializer if _is_scale(tensor)}
    nodes = list[onnx.NodeProto]()
    for node in proto.graph.node:
        is_moved = node.op_type == "QuantizeLinear" and not node.domain and node.input[1] in scalars
        nodes += _moved_node(node, steps, taken) if is_moved else [node]
    if len(nodes) == len(proto.graph.node):
        return None
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return model.with_proto(proto)


def _is_scale(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.FLOAT and all(dim == 1 for dim in tensor.dims)


def _moved_node(node: onnx.NodeProto, steps: float, taken: set[str]) -> Iterator[onnx.NodeProto]:
    """Yield a QuantizeLinear whose data is moved by so many of its steps, behind the nodes that move it."""
    names = list[str]()
    for part in ("steps", "distance", "moved"):
        names.append(free_name(f"{node.output[0]}_{part}", taken))
        taken.add(names[-1])
    count, distance, moved = names
    yield helper.make_node("Constant", [], [count], value=numpy_helper.from_array(np.float32(steps)))
    yield helper.make_node("Mul", [node.input[1], count], [distance])
    yield helper.make_node("Add", [node.input[0], distance], [moved])
    quantised = onnx.NodeProto()
    quantised.CopyFrom(node)
    quantised.input[0] = moved
    yield quantised
