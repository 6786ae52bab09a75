"""Random chains of operators on shapes and data: folded, they give what onnxruntime gives for the original."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from chains import Chain, sizes_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from properties import examples
from sessions import session_of

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.runtime.onnxruntime_loader import runtime_version
from graphkit.shapes import Expr, Shapes, infer, is_known

Make = Callable[[Chain, int], Model]
OTHER_DIMS = [{"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 0}, {"batch": 4, "seq": 8, "past": 1}]


def outputs(chain: Chain, seed: int) -> list[str]:
    """Return the last tensor and some others, so that most tensors are none."""
    names = [name for node in chain.nodes for name in node.output]
    return list(dict.fromkeys([*random.Random(seed).sample(names, min(2, len(names))), names[-1]]))


def plain(chain: Chain, seed: int) -> Model:
    proto = chain.model()
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs(chain, seed))
    return Model.from_proto(proto)


def renamed(nodes: list[onnx.NodeProto], prefix: str) -> list[onnx.NodeProto]:
    """Return copies whose tensors have other names."""
    names = {name for node in nodes for name in node.output}
    result = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [prefix + name if name in names else name for name in node.input]
        copy.output[:] = [prefix + name for name in node.output]
        result.append(copy)
    return result


def nested(chain: Chain, seed: int) -> Model:
    """Return a model whose last nodes stand in both branches of an If, and in a Loop."""
    cut = random.Random(seed).randint(0, len(chain.nodes) - 1)
    first, rest = chain.nodes[:cut], chain.nodes[cut:]
    last = rest[-1].output[0]
    array = chain.values[last]
    branches = []
    for name in ("then_", "else_", "body_"):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        branches.append(
            helper.make_graph(
                renamed(rest, name), name, [], [helper.make_tensor_value_info(name + last, dtype, [None] * array.ndim)]
            )
        )
    then, other, body = branches
    for position, (name, dtype) in enumerate((("turn", onnx.TensorProto.INT64), ("go", onnx.TensorProto.BOOL))):
        body.input.insert(position, helper.make_tensor_value_info(name, dtype, []))
    body.output.insert(0, helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []))
    body.node.append(helper.make_node("Identity", ["go"], ["on"]))
    nodes = [
        *first,
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["two", "flag"], ["z"], body=body),
    ]
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph(
        nodes,
        "nested",
        [*chain.inputs, flag],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")],
        [numpy_helper.from_array(np.array(2), "two")],
    )
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def is_legal(shapes: Shapes, dims: dict[str, int]) -> bool:
    """Whether the model may be run at these dims; onnxruntime joins and pools what does not fit, with any result."""
    equal = [(e.left, e.right) for e in shapes.equalities] + list(joined(shapes))
    known = [(left, right) for left, right in equal if is_known(left) and is_known(right)]
    needs = [r.left.evaluate(dims) >= int(r.right) for r in shapes.inequalities if is_known(r.left)]
    is_equal = all(left.evaluate(dims) == right.evaluate(dims) for left, right in known)
    return all(needs) and is_equal and not expands_nothing(shapes, dims)


def expands_nothing(shapes: Shapes, dims: dict[str, int]) -> bool:
    """Whether an Expand has no elements to repeat: onnxruntime gives memory as it found it where its shape says 1."""
    data = [node.inputs[0] for node in all_nodes(shapes.model.scopes) if node.is_op("Expand")]
    found = [dim for value in data if value is not None for dim in shapes[value].dims or () if is_known(dim)]
    return any(dim.evaluate(dims) == 0 for dim in found)


def joined(shapes: Shapes) -> Iterator[tuple[Expr, Expr]]:
    """Yield the dims that a Concat does not join: it runs where one input is empty and they differ."""
    for node in all_nodes(shapes.model.scopes):
        if node.is_op("Concat"):
            first, *others = (shapes[value].dims or () for value in node.inputs if value is not None)
            axis = node.attributes["axis"].i % max(len(first), 1)
            for other in others:
                pairs = enumerate(zip(first, other, strict=True))
                yield from (pair for index, pair in pairs if index != axis)


def loads(model: Model) -> bool:
    """Whether onnxruntime's own inference agrees with itself: of a pool with ceil_mode it does not, at fixed dims."""
    try:
        session_of(model)
    except Exception as error:
        if "onnxruntime" not in type(error).__module__:
            raise
        return False
    return True


def check(model: Model, assignments: list[dict[str, int]], frozen: dict[str, int]) -> None:
    shapes, assignments = infer(model), [sizes_of(model, dims) for dims in assignments]
    if not is_legal(shapes, assignments[0]):
        return
    result = fold(model, dims=frozen).model
    assert fold(result).changes == ()
    if not loads(FreezeDims(tuple(frozen.items())).run(model).model):
        return
    before, after = session_of(model), session_of(result)
    for dims in assignments:
        feeds = {"flag": np.array(True)} if "flag" in model.graph.values else {}
        for value in model.graph.inputs:
            if value.name not in feeds:
                size = [dim.evaluate(dims) for dim in shapes[value].dims or ()]
                feeds[value.name] = np.arange(np.prod(size), dtype=np.float32).reshape(size)
        if not is_legal(shapes, dims):
            continue
        try:
            expected = before.run(None, feeds)
        except Exception as error:
            if "onnxruntime" not in type(error).__module__:
                raise
            continue
        for one, two in zip(expected, after.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, two, err_msg=str(dims), strict=True)


DEFINED = pytest.mark.skipif(
    runtime_version() < (1, 31), reason="onnxruntime 1.23 gives memory as it found it for some empty tensors"
)


@DEFINED
@examples(12, 40)
@given(st.integers(0, 10**9), st.sampled_from([plain, nested]))
def test_random_chains_give_the_same(seed: int, make: Make) -> None:
    chain = Chain(seed)
    if chain.nodes:
        check(make(chain, seed), [chain.assignment, *OTHER_DIMS], {})


@DEFINED
@examples(20, 30)
@given(st.integers(0, 10**9), st.sets(st.sampled_from(["batch", "seq", "past"]), min_size=1))
def test_random_chains_give_the_same_frozen(seed: int, names: set[str]) -> None:
    chain = Chain(seed)
    if chain.nodes:
        frozen = {name: chain.assignment[name] for name in sorted(names)}
        check(plain(chain, seed), [{**dims, **frozen} for dims in [chain.assignment, *OTHER_DIMS]], frozen)


@pytest.mark.parametrize("make", [plain, nested])
def test_random_chains_are_folded_at_all(make: Make) -> None:
    chains = [(seed, Chain(seed)) for seed in range(12)]
    models = [make(chain, seed) for seed, chain in chains if len(chain.nodes) > 5]
    assert any(len(fold(model).model.graph.nodes) < len(model.graph.nodes) for model in models)
