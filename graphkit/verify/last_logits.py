"""Let an export give the logits of its last tokens alone, so that an oracle can run long prompts.

The logits of 2,047 tokens of Gemma 3 270M fill 2.1 GB. What rewrites models has a pass for the same; this is no part of
it, and shares nothing with it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit.graph.names import names_in
from graphkit.graph.types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.model import Model

__all__ = ["with_last_logits"]

TOKENS, TO_THE_END = 1, 2**63 - 1
ALONE = ("Tanh", "Identity", "Cast")  # operators of one input, which treat each number alone
BESIDE = ("Add", "Sub", "Mul", "Div")  # with constants that are the same for each token
NAME = "oracle/last"


def with_last_logits(model: Model, count: int) -> Model | None:
    """Return a model that gives the logits of so many of the last tokens, of all where there are fewer.

    None where it is not plain that the logits of a token follow from its own hidden state: they are to be
    [batch, tokens, vocabulary], and come from a product with a matrix.
    """
    logits = model.roles.logits
    nodes = [] if logits is None else _head(logits)
    if logits is None or not nodes or any(name.startswith(NAME) for name in names_in(model.scopes)):
        return None
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph, product = proto.graph, nodes[-1]
    for name, number in (("from", -count), ("to", TO_THE_END), ("axis", TOKENS)):
        graph.initializer.append(numpy_helper.from_array(_one(number), f"{NAME}_{name}"))
    hidden = product.proto.input[0]
    ends = [f"{NAME}_{name}" for name in ("from", "to", "axis")]
    graph.node[product.index].input[0] = f"{NAME}_hidden"
    graph.node.insert(product.index, helper.make_node("Slice", [hidden, *ends], [f"{NAME}_hidden"], NAME))
    _forget_lengths(graph, {name for node in nodes for name in node.proto.output})
    return model.with_proto(proto)


def _head(logits: Value) -> list[Node]:
    """Return the nodes from the logits back to the product that makes them of the hidden state; none if unknown."""
    declared, found = declared_type(logits), list[Node]()
    outputs = {value.name for value in logits.scope.outputs}
    if declared is None or declared.rank != 3:
        return []
    value: Value | None = logits
    while value is not None and value.producer is not None and len(value.producer.outputs) == 1:
        node = value.producer
        others = [read for read in node.inputs[1:] if read is not None]
        if len(value.consumers) != (value is not logits) or (value is not logits and value.name in outputs):
            return []
        found.append(node)
        if node.is_op("MatMul"):
            return found if _is_matrix(node.input(1)) else []
        if not node.is_op(*ALONE) and not (node.is_op(*BESIDE) and all(map(_is_alike, others))):
            return []
        value = node.input(0)
    return []


def _is_matrix(value: Value | None) -> bool:
    """Whether a value is a constant of two dims, transposed or not."""
    if value is not None and value.producer is not None and value.producer.is_op("Transpose"):
        value = value.producer.input(0)
    return value is not None and value.constant is not None and len(value.constant.dims) == 2


def _is_alike(value: Value) -> bool:
    """Whether a value is a constant that broadcasts over tokens."""
    dims = None if value.constant is None else list(value.constant.dims)
    return dims is not None and all(dim == 1 for dim in dims[:-1]) and len(dims) <= 3


def _one(number: int) -> np.ndarray:
    return np.array([number], np.int64)


def _forget_lengths(graph: onnx.GraphProto, names: set[str]) -> None:
    """Take back how many tokens values are declared to have."""
    for info in (*graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.name in names and len(dims) > TOKENS:
            dims[TOKENS].Clear()
