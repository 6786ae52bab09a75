"""Changes that make a model wrong, odd or hostile, each in one place, all drawn from a seed.

A mutator takes a random generator and a model, and changes the model; one that finds nothing to change leaves it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

__all__ = ["MUTATORS", "mutate"]

INTEGERS = (-1, 0, 1, 2, 3, 7, 64, 1025, -2, -(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 1 << 31, 1 << 20, -7)
FLOATS = (0.0, -1.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38, 2.0**63)
NAMES = (
    "", " ", "x", "batch", "seq", "past", "{}", "{x}", "{0}", "{:>3000000000}", "%s%n", "\x1b[31mred\x1b[0m", "\x07",
    "a\nb", "\r", "\u202etxet", "\x9b31m", "<script>alert(1)</script>", "`|*_[x](y)", '"); import os; ("', "${x}",
    "'", "\\", "/", "../x", "?0.x", "é", "\U0001f600", "n" * 5000, "\x00", "a::b", "a,b", "a=b", "[bold]",
    "constructor", "__proto__", "1", "None",
)  # fmt: skip
DIMS = (
    "batch", "seq", "past", "N", "past + seq", "batch*seq", "2*seq", "seq//2", "seq//0", "max(seq, past)", "-seq",
    "9" * 400, "((((seq))))", "(" * 300, "seq*seq*seq*seq*seq", "min(" * 50, "1", "?", "{}", "{seq}", "\x1b[2J",
    "s\nt", "a b", "n" * 5000, "",
)  # fmt: skip
OPERATORS = tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}))
Mutator = Callable[[random.Random, onnx.ModelProto], None]
Holder = onnx.GraphProto | onnx.FunctionProto


def mutate(rng: random.Random, base: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with one to six changes."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        rng.choice(MUTATORS)(rng, model)
    return model


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the main graph and all bodies."""
    found, pending = [model.graph], [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        for node in pending.pop():
            for attribute in node.attribute:
                for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    found.append(body)
                    pending.append(body.node)
    return found


def holders(model: onnx.ModelProto) -> list[Holder]:
    """Return all that has nodes."""
    return [holder for holder in [*graphs(model), *model.functions] if holder.node]


def some_node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return a node of any graph."""
    found = holders(model)
    return rng.choice(rng.choice(found).node) if found else None


def infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return all declared types."""
    return [info for graph in graphs(model) for info in (*graph.input, *graph.output, *graph.value_info)]


def tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return initializers and values of attributes."""
    found = [tensor for graph in graphs(model) for tensor in graph.initializer]
    nodes = [node for holder in holders(model) for node in holder.node]
    return found + [a.t for node in nodes for a in node.attribute if a.HasField("t")]


def value_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of values anywhere in a model."""
    names = [name for holder in holders(model) for node in holder.node for name in (*node.input, *node.output)]
    return sorted({*names, *(info.name for info in model.graph.input)}) or ["x"]


def pick(rng: random.Random, items: Sequence[Any]) -> Any:
    """Return one, None where there is none."""
    return rng.choice(items) if items else None


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


# Nodes


def drop_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Drop a node, whose outputs are then undefined."""
    if (holder := pick(rng, holders(model))) is not None:
        del holder.node[rng.randrange(len(holder.node))]


def repeat_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a node stand twice."""
    if (holder := pick(rng, holders(model))) is not None:
        copy = onnx.NodeProto()
        copy.CopyFrom(rng.choice(holder.node))
        holder.node.insert(rng.randrange(len(holder.node) + 1), copy)


def swap_nodes(rng: random.Random, model: onnx.ModelProto) -> None:
    """Swap two nodes."""
    if (holder := pick(rng, holders(model))) is not None:
        first, second = rng.choice(holder.node), rng.choice(holder.node)
        copy = onnx.NodeProto()
        copy.CopyFrom(first)
        first.CopyFrom(second)
        second.CopyFrom(copy)


def change_operator(rng: random.Random, model: onnx.ModelProto) -> None:
    """Make another operator, or one of another domain, of a node."""
    if (node := some_node(rng, model)) is None:
        return
    if rng.random() < 0.2:
        node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "local", rng.choice(NAMES)))
    else:
        node.op_type = rng.choice((rng.choice(OPERATORS), rng.choice(OPERATORS), rng.choice(NAMES)))


def rename_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give a node another name, or the documentation or the model hostile text."""
    if (node := some_node(rng, model)) is not None:
        node.name = rng.choice(NAMES)
        node.doc_string = model.producer_name = model.graph.name = rng.choice(NAMES)
        model.metadata_props.add(key=rng.choice(NAMES), value=rng.choice(NAMES))


def rewire_input(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a node read another value: a cycle, a value of another graph, nothing, or an unknown name."""
    node = some_node(rng, model)
    if node is not None and node.input:
        wanted = (*value_names(model), *node.output, rng.choice(NAMES))
        node.input[rng.randrange(len(node.input))] = rng.choice(wanted)


def rewire_output(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a node define another name, such as one that is defined."""
    node = some_node(rng, model)
    if node is not None and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice((*value_names(model), rng.choice(NAMES)))


def change_arity(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add or drop inputs or outputs of a node."""
    if (node := some_node(rng, model)) is None:
        return
    names = rng.choice((node.input, node.output))
    action = rng.randrange(4)
    if action == 0:
        del names[:]
    elif action == 1 and names:
        del names[rng.randrange(len(names))]
    elif action == 2:
        names.append(rng.choice(("", rng.choice(value_names(model)))))
    else:
        names.extend(f"extra{number}" for number in range(rng.choice((1, 3, 300))))


def add_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a node of any operator that reads what there is."""
    if (holder := pick(rng, holders(model))) is None:
        return
    names = value_names(model)
    read = [rng.choice(names) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5)))]
    made = [f"made{len(holder.node)}_{number}" for number in range(rng.choice((0, 1, 1, 2)))]
    node = helper.make_node(rng.choice(OPERATORS), read, made)
    holder.node.insert(rng.choice((len(holder.node), rng.randrange(len(holder.node) + 1))), node)
    if made and isinstance(holder, onnx.GraphProto) and rng.random() < 0.5:
        holder.output.add().name = made[0]


# Sizes


def grow_chain(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a chain of one operator on shapes, which makes numbers or expressions large."""
    graph = model.graph
    name, ranks = rng.choice(value_names(model)), rng.choice((rng.choice(value_names(model)), ""))
    if rng.random() < 0.7:
        graph.node.add(op_type="Shape", input=[name], output=["grown"])
        name = "grown"
        if ranks:
            graph.node.add(op_type="Shape", input=[ranks], output=["grown_too"])
            ranks = "grown_too"
    op = rng.choice(
        ("Mul", "Add", "Sub", "Div", "Mod", "Max", "Min", "Concat", "Tile", "Expand", "Pow", "Reshape", "Pad")
    )
    for number in range(rng.choice((3, 40, 200))):
        other = rng.choice((name, ranks or name))
        node = graph.node.add(op_type=op, input=[name, other], output=[f"grown{number}"])
        if op == "Concat":
            node.attribute.append(helper.make_attribute("axis", 0))
        name = f"grown{number}"
    graph.output.add().name = name
    if rng.random() < 0.5:
        graph.node.add(
            op_type=rng.choice(("ConstantOfShape", "Range", "Gather", "Expand")), input=[name] * 2, output=["end"]
        )


def grow_inputs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add many inputs with symbols of their own to one node, or to a chain."""
    count, graph, dims = rng.choice((20, 200)), model.graph, rng.choice((1, 3))
    names = [f"wide{number}" for number in range(count)]
    for name in names:
        graph.input.append(helper.make_tensor_value_info(name, 1, [f"{name}_{axis}" for axis in range(dims)]))
    if rng.random() < 0.5:
        graph.node.add(op_type=rng.choice(("Sum", "Max", "Concat", "Mean")), input=names, output=["joined"])
        graph.node[-1].attribute.append(helper.make_attribute("axis", 0))
    else:
        op, last = rng.choice(("Add", "Mul", "MatMul", "Concat", "Where")), names[0]
        for number, name in enumerate(names[1:]):
            node = graph.node.add(op_type=op, input=[last, name], output=[f"linked{number}"])
            if op == "Concat":
                node.attribute.append(helper.make_attribute("axis", 0))
            last = f"linked{number}"
        graph.node.add(op_type="Identity", input=[last], output=["joined"])
    graph.output.add().name = "joined"


def grow_constant(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a node whose result is as large as constants say."""
    sizes = [
        rng.choice((1, 3, 0, 1 << 10, 1 << 20, 1 << 31, 1 << 62, -1, -(1 << 40))) for _ in range(rng.randrange(1, 4))
    ]
    graph = model.graph
    graph.initializer.append(helper.make_tensor("sizes", TensorProto.INT64, [len(sizes)], sizes))
    graph.initializer.append(helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
    scalars = [
        helper.make_tensor(f"number{i}", TensorProto.INT64, [], [size]) for i, size in enumerate((sizes * 3)[:3])
    ]
    graph.initializer.extend(scalars)
    op = rng.choice(
        ("ConstantOfShape", "Expand", "Tile", "Pad", "Range", "Split", "OneHot", "EyeLike", "Reshape", "Slice", "TopK")
    )
    read = {
        "ConstantOfShape": ["sizes"],
        "Range": ["number0", "number1", "number2"],
        "OneHot": ["sizes", "number0", "sizes"],
    }
    outputs = [f"large{number}" for number in range(len(sizes))] if op == "Split" else ["large"]
    graph.node.add(op_type=op, input=read.get(op, [rng.choice(("one", "sizes")), "sizes", "sizes"]), output=outputs)
    graph.output.add().name = outputs[0]


# Names


def rename_value(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give a value another name wherever it stands."""
    old, new = rng.choice(value_names(model)), rng.choice((*NAMES, rng.choice(value_names(model))))
    for holder in holders(model):
        for node in holder.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
    for named in (*infos(model), *(tensor for graph in graphs(model) for tensor in graph.initializer)):
        if named.name == old:
            named.name = new


def rename_info(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give an input, an output or a declared type another name."""
    if (info := pick(rng, infos(model))) is not None:
        info.name = rng.choice((*NAMES, *value_names(model)))


def copy_info(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let an input or output stand twice, or as something else."""
    graph = rng.choice(graphs(model))
    if (info := pick(rng, [*graph.input, *graph.output, *graph.value_info])) is not None:
        rng.choice((graph.input, graph.output, graph.value_info)).add().CopyFrom(info)


def drop_info(rng: random.Random, model: onnx.ModelProto) -> None:
    """Drop inputs, outputs or declared types."""
    graph = rng.choice(graphs(model))
    found = rng.choice((graph.input, graph.output, graph.value_info))
    if found and rng.random() < 0.8:
        del found[rng.randrange(len(found))]
    else:
        del found[:]


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


# Bodies, functions, versions


def change_body(rng: random.Random, model: onnx.ModelProto) -> None:
    """Put a graph in the place of another, or into itself; or drop what is in it."""
    found = graphs(model)
    target, source = rng.choice(found), rng.choice(found)
    if rng.random() < 0.3:
        rng.choice((lambda: target.ClearField("node"), lambda: target.ClearField("output"), lambda: target.Clear()))()
        return
    copy = onnx.GraphProto()
    copy.CopyFrom(source)
    if target is model.graph or rng.random() < 0.3:
        node = model.graph.node.add(op_type=rng.choice(("If", "Loop", "Scan", "Abs", "SequenceMap")))
        node.input.extend(rng.choice(value_names(model)) for _ in range(rng.randrange(4)))
        node.output.append(f"nested{len(model.graph.node)}")
        for name in ("then_branch", "else_branch", "body"):
            node.attribute.append(helper.make_attribute(name, copy))
    else:
        target.CopyFrom(copy)


def change_function(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a function that is an operator, calls itself, or names what is not there."""
    called = some_node(rng, model)
    name = rng.choice(("twice", "Identity", rng.choice(NAMES), called.op_type if called is not None else "f"))
    domain = rng.choice(("local", "", called.domain if called is not None else ""))
    inner = helper.make_node(rng.choice((name, "Abs", "twice")), ["a"], ["b"], domain=rng.choice((domain, "")))
    opsets = [helper.make_opsetid(rng.choice(("", "local")), rng.choice((1, 18, 99)))]
    attributes = rng.choice(([], ["by"], ["by", "by"]))
    made = helper.make_function(
        domain, name, ["a"], rng.choice((["b"], ["a"], ["missing"], [])), [inner], opsets, attributes
    )
    model.functions.append(made)
    model.graph.node.add(op_type=name, domain=domain, input=[rng.choice(value_names(model))], output=["called"])


def change_version(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change, drop or repeat a version."""
    action = rng.randrange(5)
    if action == 0:
        model.ir_version = rng.choice((0, 1, 3, 4, 10, 11, 99, -1, 1 << 62))
    elif action == 1:
        del model.opset_import[:]
    elif action == 2:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx", *NAMES)), version=rng.choice((1, 7, 12, 99, -1)))
    else:
        for entry in model.opset_import:
            entry.version = rng.choice((1, 5, 7, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 23, 24, 99, 0, -5, 1 << 62))


MUTATORS: tuple[Mutator, ...] = (
    change_dim, change_rank, change_type, change_attribute, change_kind, drop_attribute, add_attribute, drop_node,
    repeat_node, swap_nodes, change_operator, rename_node, rewire_input, rewire_output, change_arity, add_node,
    grow_chain, grow_inputs, grow_constant, rename_value, rename_info, copy_info, drop_info, change_tensor,
    change_initializers, change_body, change_function, change_version,
)  # fmt: skip
