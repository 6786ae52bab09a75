"""Shuffled and renamed copies of random models have no difference; a single edit is told, and where it is."""

from __future__ import annotations

import random

import numpy as np
import onnx
from builders import proto_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from properties import examples

from graphkit.model import Model
from graphkit.model_diff.model_diff import ModelDiff, diff

UNARY = ("Relu", "Tanh", "Neg", "Identity", "LeakyRelu")
BINARY = ("Add", "Mul", "Sub", "MatMul")
DIMS = [4, 4]


def random_proto(seed: int) -> onnx.ModelProto:
    """Return a model of a few nodes over two inputs and a few weights, with branches and dead ends."""
    choose = random.Random(seed)
    values = np.random.default_rng(seed)
    weights = {f"w{n}": values.standard_normal(DIMS).astype(np.float32) for n in range(3)}
    weights["same"] = weights["w0"]  # another weight of equal bytes
    proto = proto_of("(float[4, 4] x, float[4, 4] z, bool c) => (float[4, 4] y) { y = Identity (x) }", 20)
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    known = ["x", "z"]
    for number in range(choose.randint(3, 12)):
        name = f"v{number}"
        if choose.random() < 0.15:
            branches = {
                f"{kind}_branch": helper.make_graph(
                    [
                        helper.make_node(choose.choice(UNARY), [choose.choice(known)], [f"{name}_{kind}_i"]),
                        helper.make_node(choose.choice(UNARY), [f"{name}_{kind}_i"], [f"{name}_{kind}"]),
                    ],
                    kind,
                    [],
                    [helper.make_tensor_value_info(f"{name}_{kind}", 1, DIMS)],
                )
                for kind in ("then", "else")
            }
            node = helper.make_node("If", ["c"], [name], name=f"n{number}", **branches)
        elif choose.random() < 0.5:
            node = helper.make_node(choose.choice(UNARY), [choose.choice(known)], [name], name=f"n{number}")
        else:
            read = [choose.choice(known), choose.choice([*known, *weights])]
            node = helper.make_node(choose.choice(BINARY), read, [name], name=f"n{number}")
        proto.graph.node.append(node)
        known.append(name)
    outputs = dict.fromkeys([known[-1], choose.choice(known[2:])])
    proto.graph.output.extend(helper.make_tensor_value_info(name, 1, DIMS) for name in outputs)
    return proto


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a graph and of its bodies."""
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.node, *(node for body in bodies for node in nodes_of(body))]


def renamed(proto: onnx.ModelProto, choose: random.Random, *, permuted: bool) -> None:
    """Give other names to all values but inputs and outputs: fresh ones, or each that of another one."""
    graph = proto.graph
    kept = {value.name for value in (*graph.input, *graph.output)}
    every = [name for node in nodes_of(graph) for name in node.output] + [tensor.name for tensor in graph.initializer]
    inner = [name for name in dict.fromkeys(every) if name not in kept]
    names = choose.sample(inner, len(inner)) if permuted else [f"fresh{n}" for n in range(len(inner))]
    new = dict(zip(inner, names, strict=True))
    for node in nodes_of(graph):
        node.name = new.get(node.name, f"node {choose.random()}")
        for field in (node.input, node.output):
            field[:] = [new.get(name, name) for name in field]
        for attribute in node.attribute:
            for output in attribute.g.output:
                output.name = new.get(output.name, output.name)
    for tensor in graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)


def shuffled(graph: onnx.GraphProto, choose: random.Random) -> None:
    """Put nodes and initializers into another order, in which each node still stands after those that it reads."""
    left, done = list(graph.node), {value.name for value in graph.input} | {t.name for t in graph.initializer}
    order = []
    while left:
        ready = [node for node in left if reads(node) <= done]
        node = choose.choice(ready)
        left.remove(node)
        order.append(node)
        done.update(node.output)
    tensors = choose.sample(list(graph.initializer), len(graph.initializer))
    del graph.node[:], graph.initializer[:]
    graph.node.extend(order)
    graph.initializer.extend(tensors)


def reads(node: onnx.NodeProto) -> set[str]:
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inside = {name for body in bodies for inner in body.node for name in inner.input}
    return {*node.input, *(inside - {name for body in bodies for inner in body.node for name in inner.output})}


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> ModelDiff:
    return diff(Model.from_proto(a), Model.from_proto(b))


@examples(12, 200)
@given(st.integers(0, 1 << 32), st.booleans())
def test_shuffled_and_renamed_copies_have_no_difference(seed: int, permuted: bool) -> None:
    proto, choose = random_proto(seed), random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    shuffled(copy.graph, choose)
    renamed(copy, choose, permuted=permuted)
    for found in (compared(proto, copy), compared(copy, proto)):
        assert found.differing == ()


def edit(proto: onnx.ModelProto, choose: random.Random) -> str:
    """Change one thing, and return a word that the diff must have: the path of the node, or the name of the weight."""
    graph = proto.graph
    number = choose.randrange(len(graph.node))
    node = graph.node[number]
    kind = choose.choice(("operator", "attribute", "remove", "add", "weight", "branch"))
    if kind == "branch" and node.op_type == "If":
        inner = choose.choice([attribute.g for attribute in node.attribute]).node[1]
        inner.op_type = choose.choice([operator for operator in UNARY if operator != inner.op_type])
        return f"{node.name}/"
    if kind == "weight":
        read = {name for each in nodes_of(graph) for name in each.input}
        tensor = choose.choice(graph.initializer)
        array = numpy_helper.to_array(tensor).copy()
        array[choose.randrange(4), choose.randrange(4)] += 1
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(array, name))
        return f"'{name}'" if name in read else name
    if kind == "remove" and node.op_type != "If":
        replaced, name = node.output[0], node.name
        source = node.input[0]
        readers = {each.op_type for each in nodes_of(graph) if replaced in each.input}
        if replaced in {value.name for value in graph.output} or node.op_type in readers:
            kind = "operator"  # of two such nodes, either may be the one that is gone
        else:
            for each in nodes_of(graph):
                each.input[:] = [source if read == replaced else read for read in each.input]
            del graph.node[number]
            return name
    if kind == "add":
        source = node.output[0]
        graph.node.insert(number + 1, helper.make_node("Sign", [source], ["made"], name="made"))
        if choose.random() < 0.7:
            for each in graph.node[number + 2 :]:
                each.input[:] = ["made" if read == source else read for read in each.input]
        return "made"
    if kind == "attribute":
        node.attribute.append(helper.make_attribute("more", choose.random()))
        return node.name
    operators = UNARY if len(node.input) == 1 and node.op_type != "If" else BINARY
    if node.op_type == "If":
        node.attribute.append(helper.make_attribute("more", 1))
    else:
        node.op_type = choose.choice([operator for operator in operators if operator != node.op_type])
    return node.name


def words(found: ModelDiff) -> list[str]:
    """Return the nodes and weights that a diff names."""
    nodes = [*found.nodes.removed, *found.nodes.added, *found.nodes.changed]
    weights = [name for weight in found.weights for name in (weight.name, weight.other)]
    return [*(each.node for each in nodes), *weights, *(f"'{name}'" for name in weights)]


@examples(12, 300)
@given(st.integers(0, 1 << 32))
def test_a_single_edit_is_told_where_it_is(seed: int) -> None:
    proto, choose = random_proto(seed), random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    shuffled(copy.graph, choose)
    expected = edit(copy, choose)
    for found in (compared(proto, copy), compared(copy, proto)):
        assert found.differing != ()
        assert any(word == expected or word.startswith(expected) for word in words(found)), (expected, words(found))
        assert len({word.strip("'") for word in words(found)}) <= 3, words(found)
