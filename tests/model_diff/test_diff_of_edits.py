"""The diff of a real model and a copy with one seeded edit names that edit, and nothing else differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphkit.model import load
from graphkit.model_diff.model_diff import ModelDiff, diff

MODELS = (
    *("patchtst/model", "marian-tiny/encoder_model", "t5-tiny/decoder_model_merged", "vit-qdq/model"),
    *("llama-int4/model", "qwen2-tiny/model", "whisper-tiny/decoder_model_merged", "gpt2-tiny/decoder_model_merged"),
    *("table-transformer/model", "nllb-tiny/decoder_model_quantized"),
)
NUMBERS = (AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.INTS)
SIZES = ("to", "allowzero", "keepdims", "start", "end")  # attributes of which another number is none, or nothing
OTHERS = {"Add": "Sub", "Mul": "Div", "Tanh": "Sigmoid", "Erf": "Tanh", "Relu": "Tanh", "Neg": "Abs", "Div": "Mul"}
Edit = Callable[[random.Random, ModelProto], list[str]]


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def nodes(proto: ModelProto) -> list[NodeProto]:
    return [node for graph in graphs(proto.graph) for node in graph.node]


def change_attribute(rng: random.Random, proto: ModelProto) -> list[str]:
    found = [
        (node, attribute)
        for node in nodes(proto)
        for attribute in node.attribute
        if node.op_type != "Constant" and attribute.type in NUMBERS and attribute.name not in SIZES
    ]
    node, attribute = rng.choice(found)
    if attribute.type == AttributeProto.FLOAT:
        attribute.f *= 2
    elif attribute.type == AttributeProto.INT:
        attribute.i += 1 if attribute.i >= 0 else -1
    else:
        attribute.ints[:] = [number + 1 for number in attribute.ints]
    return [f"changed {node.name}: {attribute.name}"]


def change_operator(rng: random.Random, proto: ModelProto) -> list[str]:
    node = rng.choice([node for node in nodes(proto) if node.op_type in OTHERS])
    node.op_type = OTHERS[node.op_type]
    return [f"changed {node.name}: operator"]


def change_weight(rng: random.Random, proto: ModelProto) -> list[str]:
    tensor = rng.choice([tensor for tensor in proto.graph.initializer if tensor.raw_data])
    data = bytearray(tensor.raw_data)
    data[rng.randrange(len(data))] ^= 1
    tensor.raw_data = bytes(data)
    return [f"weight {tensor.name}: values"]


def change_dtype(rng: random.Random, proto: ModelProto) -> list[str]:
    floats = [tensor for tensor in proto.graph.initializer if tensor.data_type == TensorProto.FLOAT and tensor.raw_data]
    tensor = rng.choice(floats)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return [f"weight {tensor.name}: dtype"]


def read_another(rng: random.Random, proto: ModelProto) -> list[str]:
    graph = rng.choice([graph for graph in graphs(proto.graph) if len(graph.node) > 9])
    while True:
        place = rng.randrange(5, len(graph.node))
        node = graph.node[place]
        before = [other.output[0] for other in graph.node[:place] if other.op_type not in ("Constant", "Identity")][-6:]
        index = rng.randrange(len(node.input)) if node.input else 0
        if before and node.input and node.input[index] in before and before != [node.input[index]] * len(before):
            node.input[index] = rng.choice([name for name in before if name != node.input[index]])
            return [f"changed {node.name}: input {index}"]


def swap_inputs(rng: random.Random, proto: ModelProto) -> list[str]:
    found = [node for node in nodes(proto) if node.op_type in (*OTHERS, "MatMul") and len(set(node.input)) == 2]
    node = rng.choice(found)
    node.input[:] = node.input[::-1]
    return [f"changed {node.name}: order of inputs"]


def insert_node(rng: random.Random, proto: ModelProto) -> list[str]:
    graph = rng.choice([graph for graph in graphs(proto.graph) if len(graph.node) > 9])
    place = rng.choice([place for place, node in enumerate(graph.node) if node.op_type in ("Add", "MatMul", "Mul")])
    name = graph.node[place].output[0]
    new = helper.make_node("Softsign", [name], ["inserted"], name="new")
    _read_instead(graph.node[place + 1 :], name, "inserted")
    order = [*graph.node[: place + 1], new, *graph.node[place + 1 :]]
    del graph.node[:]
    graph.node.extend(order)
    return ["added new"]


def remove_node(rng: random.Random, proto: ModelProto) -> list[str]:
    found = [
        (graph, node)
        for graph in graphs(proto.graph)
        for node in graph.node
        if node.op_type in (*OTHERS, "Softmax", "Cast") and node.output[0] not in {info.name for info in graph.output}
    ]
    graph, node = rng.choice(found)
    graph.node.remove(node)
    _read_instead([node for inner in graphs(graph) for node in inner.node], node.output[0], node.input[0])
    return [f"removed {node.name}"]


def add_weight(_: random.Random, proto: ModelProto) -> list[str]:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "new"))
    return ["weight new: added"]


def change_notes(_: random.Random, proto: ModelProto) -> list[str]:
    proto.metadata_props.add(key="note", value="text")
    return ["metadata metadata 'note'"]


def freeze_dim(rng: random.Random, proto: ModelProto) -> list[str]:
    dims = [(info, dim) for info in proto.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param]
    info, dim = rng.choice(dims)
    dim.dim_value = 3
    return [f"interface input '{info.name}'"]


def _read_instead(readers: list[NodeProto], old: str, new: str) -> None:
    for node in readers:
        node.input[:] = [new if name == old else name for name in node.input]


EDITS: tuple[Edit, ...] = (
    *(change_attribute, change_operator, change_weight, change_dtype, read_another, swap_inputs),
    *(insert_node, remove_node, add_weight, change_notes, freeze_dim),
)


def told(found: ModelDiff) -> set[str]:
    """Return what differs, without shapes and findings, which follow, and constants that go with nodes."""
    lines = [f"{name} {change.what}" for name in ("interface", "opsets", "metadata") for change in getattr(found, name)]
    lines += [f"removed {node.node.rpartition('branch/')[2]}" for node in found.nodes.removed]
    lines += [f"added {node.node.rpartition('branch/')[2]}" for node in found.nodes.added]
    lines += [f"changed {n.node.rpartition('branch/')[2]}: {c.what}" for n in found.nodes.changed for c in n.changes]
    lines += [f"weight {each.name or each.other}: {each.kind}" for each in found.weights if not each.with_nodes]
    return set(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
def test_a_seeded_edit_of_a_real_model_is_named_and_nothing_else(seed: int, model_file: Callable[[str], Path]) -> None:
    rng, model = random.Random(seed), load(model_file(MODELS[seed % len(MODELS)]))
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    expected = EDITS[seed % len(EDITS)](rng, proto)
    assert told(diff(model, model.with_proto(proto))) == set(expected)
