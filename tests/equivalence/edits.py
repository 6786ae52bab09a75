"""Single edits of a model, drawn by a seed: most of them make another model of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

__all__ = ["edited"]

SWAPS = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "Tanh", "Sigmoid", "Erf", "Neg", "Abs", "Sqrt", "Exp", "Identity"),
    ("Softmax", "LogSoftmax"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ("And", "Or", "Xor"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    ("Cos", "Sin"),
    ("ArgMax", "ArgMin"),
    ("Floor", "Ceil", "Round"),
)
DTYPES = {
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
    TensorProto.INT8,
    TensorProto.UINT8,
}


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def swap_operator(graph: GraphProto, rng: random.Random) -> str | None:
    found = [(node, row) for node in graph.node for row in SWAPS if node.op_type in row]
    if not found:
        return None
    node, row = rng.choice(found)
    before = node.op_type
    node.op_type = rng.choice([each for each in row if each != before])
    return f"{before} -> {node.op_type} at {node.name}"


def change_attribute(graph: GraphProto, rng: random.Random) -> str | None:
    kinds = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT)
    found = [(node, a) for node in graph.node for a in node.attribute if a.type in kinds]
    if not found:
        return None
    node, attribute = rng.choice(found)
    if attribute.type == AttributeProto.INT:
        attribute.i += rng.choice((-1, 1))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = attribute.f * 1.5 + 1e-3
    elif attribute.ints:
        numbers = list(attribute.ints)
        if rng.random() < 0.5 and len(numbers) > 1:
            one, other = rng.sample(range(len(numbers)), 2)
            numbers[one], numbers[other] = numbers[other], numbers[one]
        else:
            numbers[rng.randrange(len(numbers))] += rng.choice((-1, 1))
        attribute.ints[:] = numbers
    return f"{attribute.name} of {node.name} ({node.op_type})"


def tensors(graph: GraphProto) -> list[TensorProto]:
    found = [each for each in graph.initializer if each.data_type in DTYPES]
    values = [a.t for node in graph.node for a in node.attribute if node.op_type == "Constant" and a.name == "value"]
    return found + [each for each in values if each.data_type in DTYPES]


def change_constant(graph: GraphProto, rng: random.Random, most: int = 16, least: int = 1) -> str | None:
    found = [each for each in tensors(graph) if least <= np.prod(list(each.dims), dtype=np.int64) <= most]
    found = [each for each in found if each.data_location != TensorProto.EXTERNAL]
    if not found:
        return None
    tensor = rng.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    at = rng.randrange(array.size)
    flat = array.reshape(-1)
    before = flat[at]
    flat[at] = not before if array.dtype == bool else before + array.dtype.type(rng.choice((-1, 1)) % 256 or 1)
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return f"{name}[{at}] {before} -> {flat[at]}"


def change_weight(graph: GraphProto, rng: random.Random) -> str | None:
    return change_constant(graph, rng, most=1 << 24, least=17)


def swap_operands(graph: GraphProto, rng: random.Random) -> str | None:
    found = [node for node in graph.node if len(set(node.input)) > 1]
    if not found:
        return None
    node = rng.choice(found)
    one, other = rng.sample(range(len(node.input)), 2)
    node.input[one], node.input[other] = node.input[other], node.input[one]
    return f"inputs {one} and {other} of {node.name} ({node.op_type})"


def rewire(graph: GraphProto, rng: random.Random) -> str | None:
    if len(graph.node) < 2:
        return None
    index = rng.randrange(1, len(graph.node))
    node = graph.node[index]
    before = [name for each in graph.node[max(0, index - 40) : index] for name in each.output if name]
    before += [value.name for value in graph.input]
    if not node.input or not before:
        return None
    at = rng.randrange(len(node.input))
    name = rng.choice(before)
    old = node.input[at]
    node.input[at] = name
    return f"input {at} of {node.name} ({node.op_type}): {old} -> {name}"


def bypass(graph: GraphProto, rng: random.Random) -> str | None:
    found = [node for node in graph.node if node.input and node.output and node.input[0] and not node.attribute[:0]]
    if not found:
        return None
    node = rng.choice(found)
    text = f"{node.name} ({node.op_type}) left out"
    kept = NodeProto(op_type="Identity", name=node.name, input=[node.input[0]], output=[node.output[0]])
    node.CopyFrom(kept)
    return text


def declare(graph: GraphProto, rng: random.Random) -> str | None:
    values = [*graph.input, *graph.output]
    found = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    if not found:
        return None
    dim = rng.choice(found)
    text = f"{dim.dim_param or dim.dim_value}"
    if dim.HasField("dim_value"):
        dim.dim_value += 1
    else:
        dim.dim_value = 3
    return f"a declared dim {text} -> {dim.dim_value}"


def swap_edges(graph: GraphProto, rng: random.Random) -> str | None:
    """Let two nodes of one operator read each other's input."""
    by_op: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        by_op.setdefault(node.op_type, []).append(node)
    found = [nodes for nodes in by_op.values() if len(nodes) > 1 and nodes[0].input]
    if not found:
        return None
    nodes = rng.choice(found)
    one, other = rng.sample(nodes, 2)
    at = rng.randrange(min(len(one.input), len(other.input)) or 1)
    if at >= len(one.input) or at >= len(other.input):
        return None
    one.input[at] = other.input[at]
    return f"input {at} of {one.name} is that of {other.name} ({one.op_type})"


def cut(graph: GraphProto, rng: random.Random) -> str | None:
    """Let a node read all but the first elements of what it read, along one axis."""
    found = [(node, at) for node in graph.node for at in range(len(node.input)) if node.input[at]]
    if not found or any(each.name == "edit.start" for each in graph.initializer):
        return None
    node, at = rng.choice(found)
    axis = rng.randrange(-2, 2)
    numbers = {"edit.start": rng.choice((0, 1)), "edit.end": rng.choice((-1, 1 << 31)), "edit.axis": axis}
    graph.initializer.extend(numpy_helper.from_array(np.array([each]), name) for name, each in numbers.items())
    insert(graph, node, at, NodeProto(op_type="Slice", input=["", *numbers]))
    return f"a Slice before input {at} of {node.name} ({node.op_type})"


def move(graph: GraphProto, rng: random.Random) -> str | None:
    """Let a node read what it read transposed, as one list, or through an operator that keeps dims."""
    found = [(node, at) for node in graph.node for at in range(len(node.input)) if node.input[at]]
    if not found:
        return None
    node, at = rng.choice(found)
    made = NodeProto(op_type=rng.choice(("Transpose", "Neg", "Abs", "Relu", "Flatten", "Not", "Floor")), input=[""])
    insert(graph, node, at, made)
    return f"{made.op_type} before input {at} of {node.name} ({node.op_type})"


def insert(graph: GraphProto, node: NodeProto, at: int, made: NodeProto) -> None:
    made.input[0], made.name = node.input[at], "edit"
    made.output.append("edit.made")
    node.input[at] = "edit.made"
    index = next(index for index, each in enumerate(graph.node) if each is node or each == node)
    nodes = [*graph.node[:index], made, *graph.node[index:]]
    copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def turn(graph: GraphProto, rng: random.Random) -> str | None:
    """Change how a Transpose permutes, along which axis a node works, or what a Cast gives."""
    found = [(node, a) for node in graph.node for a in node.attribute if a.name in ("perm", "axis", "axes", "to")]
    if not found:
        return None
    node, attribute = rng.choice(found)
    if attribute.name == "to":
        attribute.i = rng.choice([each for each in (1, 6, 7, 9, 10, 11) if each != attribute.i])
    elif attribute.name == "axis":
        attribute.i = rng.choice([each for each in (-2, -1, 0, 1, 2) if each != attribute.i])
    else:
        numbers = list(attribute.ints)
        rng.shuffle(numbers)
        attribute.ints[:] = numbers
    return f"{attribute.name} of {node.name} ({node.op_type})"


def leave_out(graph: GraphProto, rng: random.Random) -> str | None:
    """Leave out an attribute, or the last input, so that its default holds."""
    node = rng.choice(graph.node) if graph.node else None
    if node is None:
        return None
    if node.attribute and rng.random() < 0.5:
        index = rng.randrange(len(node.attribute))
        name = node.attribute[index].name
        del node.attribute[index]
        return f"{name} of {node.name} ({node.op_type}) left out"
    if len(node.input) < 2:
        return None
    del node.input[-1]
    return f"the last input of {node.name} ({node.op_type}) left out"


def reshape_weight(graph: GraphProto, rng: random.Random) -> str | None:
    """Turn the dims of a tensor around, its bytes as they are."""
    found = [each for each in tensors(graph) if len(each.dims) > 1]
    if not found:
        return None
    tensor = rng.choice(found)
    before = list(tensor.dims)
    tensor.dims[:] = before[::-1]
    return f"dims of {tensor.name} {before} -> {list(tensor.dims)}"


def exchange(graph: GraphProto, rng: random.Random) -> str | None:
    """Exchange the names of two outputs of the graph, or the branches of an If."""
    branches = [node for node in graph.node if node.op_type == "If" and len(node.attribute) == 2]
    if branches and rng.random() < 0.5:
        node = rng.choice(branches)
        names = [each.name for each in node.attribute]
        for each, name in zip(node.attribute, names[::-1], strict=True):
            each.name = name
        return f"branches of {node.name}"
    if len(graph.output) < 2:
        return None
    one, other = rng.sample(range(len(graph.output)), 2)
    names = [graph.output[one].name, graph.output[other].name]
    swapped = dict(zip(names, names[::-1], strict=True))
    for node in graph.node:
        node.input[:] = [swapped.get(each, each) for each in node.input]
        node.output[:] = [swapped.get(each, each) for each in node.output]
    return f"outputs {names[0]} and {names[1]}"


def fill(graph: GraphProto, rng: random.Random) -> str | None:
    """Make a small tensor 0, 1, -0 or -1 throughout."""
    found = [each for each in tensors(graph) if 0 < np.prod(list(each.dims), dtype=np.int64) <= 1 << 12]
    found = [each for each in found if each.data_location != TensorProto.EXTERNAL]
    if not found:
        return None
    tensor, number = rng.choice(found), rng.choice((0.0, 1.0, -0.0, -1.0))
    array = np.full(tuple(tensor.dims), number)
    kind = numpy_helper.to_array(tensor).dtype
    tensor.CopyFrom(
        numpy_helper.from_array(
            array.astype(np.int64).astype(kind) if kind.kind in "iu" else array.astype(kind), tensor.name
        )
    )
    return f"{tensor.name} is {number} throughout"


EDITS: tuple[Callable[[GraphProto, random.Random], str | None], ...] = (
    swap_operator, change_attribute, change_attribute, change_constant, change_constant, change_weight, swap_operands,
    rewire, rewire, bypass, declare, swap_edges, swap_edges, cut, move, turn, turn, leave_out, reshape_weight, exchange,
    fill,
)  # fmt: skip


def edited(proto: ModelProto, seed: int) -> tuple[ModelProto, str] | None:
    """Return a model with one edit, and what it is; None where nothing of the kind can be edited."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = rng.choice(list(graphs(copy.graph)))
    what = rng.choice(EDITS)(graph, rng)
    return None if what is None or copy.SerializeToString() == proto.SerializeToString() else (copy, what)
