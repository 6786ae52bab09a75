"""Changes of nodes, of what they read and make, of names, bodies, functions and versions; and graphs that grow."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto, helper
from parts import NAMES, OPERATORS, graphs, holders, infos, pick, some_node, value_names

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
