"""Changes of declared types, attributes and constants."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper
from parts import DIMS, FLOATS, INTEGERS, NAMES, graphs, infos, pick, some_node, tensors, value_names

# Declared types


def change_dim(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give a declared dim another number or symbol."""
    dims = [dim for info in infos(model) for dim in info.type.tensor_type.shape.dim]
    if (dim := pick(rng, dims)) is None:
        return
    if rng.random() < 0.5:
        dim.dim_value = rng.choice(INTEGERS)
    else:
        dim.dim_param = rng.choice(DIMS)


def change_rank(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a dim, drop one, or forget the rank."""
    if (info := pick(rng, infos(model))) is None or not info.type.HasField("tensor_type"):
        return
    shape = info.type.tensor_type.shape
    action = rng.randrange(4)
    if action == 0:
        shape.dim.add().dim_param = rng.choice(DIMS)
    elif action == 1 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif action == 2:
        info.type.tensor_type.ClearField("shape")
    else:
        for _ in range(rng.choice((3, 40))):
            shape.dim.add().dim_value = rng.choice(INTEGERS)


def change_type(rng: random.Random, model: onnx.ModelProto) -> None:
    """Declare another dtype, or another kind of type."""
    if (info := pick(rng, infos(model))) is None:
        return
    kinds: list[Callable[[], object]] = [
        lambda: setattr(info.type.tensor_type, "elem_type", rng.choice([*range(26), 99, -1])),
        lambda: info.type.sequence_type.elem_type.tensor_type.SetInParent(),
        lambda: info.type.optional_type.elem_type.tensor_type.SetInParent(),
        lambda: info.type.sparse_tensor_type.SetInParent(),
        lambda: info.type.map_type.SetInParent(),
        lambda: info.ClearField("type"),
    ]
    rng.choice([kinds[0], *kinds])()


# Attributes


def change_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give an attribute another value of its kind."""
    node = some_node(rng, model)
    if node is None or (attribute := pick(rng, node.attribute)) is None:
        return
    if attribute.HasField("i"):
        attribute.i = rng.choice(INTEGERS)
    elif attribute.ints:
        change_list(rng, attribute.ints, INTEGERS)
    elif attribute.HasField("f"):
        attribute.f = rng.choice(FLOATS[:6])
    elif attribute.floats:
        change_list(rng, attribute.floats, FLOATS[:6])
    elif attribute.HasField("s"):
        attribute.s = rng.choice(
            (*(name.encode() for name in NAMES), b"\xff\xfe", b"SAME_UPPER", b"linear", b"->", b"i,j")
        )
    elif attribute.HasField("t"):
        change_tensor_fields(rng, attribute.t)


def change_list(rng: random.Random, numbers: Any, choices: Sequence[Any]) -> None:
    """Change, add or drop a number."""
    action = rng.randrange(4)
    if action == 0:
        numbers.append(rng.choice(choices))
    elif action == 1:
        del numbers[rng.randrange(len(numbers))]
    else:
        numbers[rng.randrange(len(numbers))] = rng.choice(choices)


def new_attribute(rng: random.Random, name: str) -> AttributeProto:
    """Return an attribute of a random kind."""
    kinds: list[Any] = [1, -1, 1 << 62, 1.5, "text", [1, 2], [1.5], ["a", "b"], [-1, 1 << 62]]
    kinds.append(helper.make_tensor("t", TensorProto.INT64, [2], [1, -5]))
    kinds.append(helper.make_graph([], "empty", [], []))
    attribute = helper.make_attribute(name, rng.choice(kinds))
    action = rng.randrange(8)
    if action == 0:
        attribute.ref_attr_name = rng.choice(("by", name, "missing"))
    elif action == 1:
        attribute.type = rng.choice((0, 1, 2, 4, 5, 7))
    return attribute


def change_kind(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give an attribute a value of another kind."""
    node = some_node(rng, model)
    if node is None or not node.attribute:
        return
    index = rng.randrange(len(node.attribute))
    node.attribute[index].CopyFrom(new_attribute(rng, node.attribute[index].name))


def drop_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Drop an attribute."""
    node = some_node(rng, model)
    if node is not None and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def add_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add an attribute, known to the operator or not, or one a second time."""
    node = some_node(rng, model)
    if node is None:
        return
    known = list(onnx.defs.get_schema(node.op_type).attributes) if onnx.defs.has(node.op_type) else []
    node.attribute.append(new_attribute(rng, rng.choice([*known, "axis", "to", "value", "axes", rng.choice(NAMES)])))


# Constants


def change_tensor(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change an initializer or the value of a Constant."""
    if (tensor := pick(rng, tensors(model))) is not None:
        change_tensor_fields(rng, tensor)


def change_tensor_fields(rng: random.Random, tensor: onnx.TensorProto) -> None:
    """Change dims, dtype, or content, so that they may not fit."""
    action = rng.randrange(7)
    if action == 0:
        tensor.dims.append(rng.choice(INTEGERS))
    elif action == 1 and tensor.dims:
        change_list(rng, tensor.dims, INTEGERS)
    elif action == 2:
        tensor.data_type = rng.choice([*range(26), 99])
    elif action == 3:
        tensor.raw_data = rng.randbytes(rng.choice((0, 1, 8, 16, 3)))
    elif action == 4:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(("data.bin", *NAMES)))
    elif action == 5:
        for field in ("raw_data", "int64_data", "float_data", "int32_data"):
            tensor.ClearField(field)
    else:
        sizes = [rng.choice(INTEGERS) for _ in range(rng.randrange(5))]
        name = tensor.name
        tensor.CopyFrom(helper.make_tensor(name, TensorProto.INT64, [len(sizes)], sizes))


def change_initializers(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add an initializer of a name that is in use, drop one, or let one stand twice."""
    graph = rng.choice(graphs(model))
    action = rng.randrange(4)
    if action == 0 and graph.initializer:
        del graph.initializer[rng.randrange(len(graph.initializer))]
    elif action == 1 and graph.initializer:
        graph.initializer.add().CopyFrom(rng.choice(graph.initializer))
    elif action == 2:
        name = rng.choice([*(info.name for info in graph.input), *value_names(model)])
        dtype, data = rng.choice(
            ((TensorProto.INT64, [1, 2]), (TensorProto.BOOL, [True, False]), (TensorProto.FLOAT, [0, 1]))
        )
        graph.initializer.append(helper.make_tensor(name, dtype, [2], data))
    else:
        sparse = graph.sparse_initializer.add(dims=[rng.choice(INTEGERS), 3])
        sparse.values.CopyFrom(helper.make_tensor(rng.choice(value_names(model)), TensorProto.FLOAT, [1], [2.0]))
        sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [rng.choice(INTEGERS)]))
