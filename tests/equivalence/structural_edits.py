"""Edits of a model that its outputs need not show: nodes that nothing reads, versions, outputs and conditions."""

from __future__ import annotations

import random
from collections.abc import Callable

from edits import graphs
from onnx import GraphProto, ModelProto, NodeProto, helper

__all__ = ["structurally_edited"]

OPERATORS = (
    "Abs", "Add", "And", "ArgMax", "Asin", "Cast", "Clip", "Concat", "ConstantOfShape", "Conv", "Cos", "Div", "Equal",
    "Erf", "Exp", "Expand", "Flatten", "Gather", "Gemm", "Greater", "Identity", "LayerNormalization", "Less", "Log",
    "MatMul", "Max", "Mod", "Mul", "Neg", "Not", "Pow", "Range", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Shape",
    "Sigmoid", "Size", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze",
    "Where",
)  # fmt: skip
COUNTS = {"Add": 2, "And": 2, "Clip": 3, "Concat": 2, "Conv": 2, "Div": 2, "Equal": 2, "Expand": 2, "Gather": 2,
          "Gemm": 3, "Greater": 2, "LayerNormalization": 2, "Less": 2, "MatMul": 2, "Max": 2, "Mod": 2, "Mul": 2,
          "Pow": 2, "Range": 3, "ReduceSum": 2, "Reshape": 2, "Slice": 3, "Split": 2, "Squeeze": 2, "Sub": 2, "Tile": 2,
          "Unsqueeze": 2, "Where": 3}  # fmt: skip
ATTRIBUTES = {"Cast": "to", "Concat": "axis", "Gather": "axis", "Softmax": "axis", "Flatten": "axis", "Mod": "fmod"}


def add_node(graph: GraphProto, rng: random.Random) -> str | None:
    """Add a node that nothing reads, on values that are there."""
    index = rng.randrange(len(graph.node) + 1)
    values = [name for node in graph.node[max(0, index - 30) : index] for name in node.output if name]
    values += [each.name for each in (*graph.input, *graph.initializer)]
    if not values:
        return None
    op = rng.choice(OPERATORS)
    inputs = [rng.choice(values)] * COUNTS.get(op, 1)
    if rng.random() < 0.7:
        inputs = [rng.choice(values) for _ in inputs]
    made = NodeProto(op_type=op, name="edit", input=inputs, output=["edit.made"])
    if op in ATTRIBUTES:
        made.attribute.append(helper.make_attribute(ATTRIBUTES[op], rng.choice((-1, 0, 1, 2, 7))))
    nodes = [*graph.node[:index], made, *graph.node[index:]]
    copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return f"{op} of {', '.join(inputs)}"


def copy_node(graph: GraphProto, rng: random.Random) -> str | None:
    """Add a copy of a node that nothing reads, with another value for one of its inputs."""
    found = [
        index
        for index, node in enumerate(graph.node)
        if node.input and not any(a.HasField("g") for a in node.attribute)
    ]
    if not found:
        return None
    index = rng.choice(found)
    made = NodeProto.FromString(graph.node[index].SerializeToString())
    made.name = "edit"
    made.output[:] = [name and f"edit.{name}" for name in made.output]
    values = [name for node in graph.node[max(0, index - 30) : index] for name in node.output if name]
    values += [each.name for each in (*graph.input, *graph.initializer)]
    made.input[rng.randrange(len(made.input))] = rng.choice(values)
    nodes = [*graph.node[: index + 1], made, *graph.node[index + 1 :]]
    copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return f"{made.op_type} of {', '.join(made.input)}, beside {graph.node[index].name}"


def change_version(proto: ModelProto, rng: random.Random) -> str:
    entry = rng.choice(proto.opset_import)
    before = entry.version
    entry.version = max(0, before + rng.choice((-8, -5, -3, -2, -1, 1, 2, 3, 5, 9, 90)))
    return f"operator set '{entry.domain}' {before} -> {entry.version}"


def change_outputs(graph: GraphProto, rng: random.Random) -> str | None:
    """Give a node an output more, or one less."""
    if not graph.node:
        return None
    node = rng.choice(graph.node)
    if rng.random() < 0.5:
        node.output.append("edit.made")
        return f"{node.name} ({node.op_type}) has an output more"
    if len(node.output) < 2:
        return None
    name = node.output.pop()
    return f"{node.name} ({node.op_type}) has no '{name}'"


def change_branch(graph: GraphProto, rng: random.Random) -> str | None:
    """Give a body an output more, or one less, or an If another condition."""
    found = [node for node in graph.node if any(each.HasField("g") for each in node.attribute)]
    if not found:
        return None
    node = rng.choice(found)
    body = rng.choice([each.g for each in node.attribute if each.HasField("g")])
    what = rng.choice(("more", "less", "condition"))
    if what == "condition":
        before = [name for each in graph.node for name in each.output if each is not node and name]
        node.input[0] = rng.choice([*before[:50], *(each.name for each in graph.input)])
    elif what == "more":
        body.output.add().CopyFrom(rng.choice(body.output))
    else:
        del body.output[-1]
    return f"{what} of {node.name} ({node.op_type})"


EDITS: tuple[Callable[[GraphProto, random.Random], str | None], ...] = (
    add_node, add_node, add_node, copy_node, copy_node, change_outputs, change_branch,
)  # fmt: skip


def structurally_edited(proto: ModelProto, seed: int) -> tuple[ModelProto, str] | None:
    """Return a model with one edit, and what it is; None where nothing of the kind can be edited."""
    rng = random.Random(seed)
    copy = ModelProto()
    copy.CopyFrom(proto)
    if not rng.randrange(len(EDITS) + 1):
        what: str | None = change_version(copy, rng)
    else:
        what = rng.choice(EDITS)(rng.choice(list(graphs(copy.graph))), rng)
    return None if what is None or copy.SerializeToString() == proto.SerializeToString() else (copy, what)
