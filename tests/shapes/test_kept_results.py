"""What is kept of a rule's results changes nothing: nodes are inferred as if each were the first of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest import mock

import onnx
import pytest
from graphs import model
from node_cases import NodeCase, node_cases, symbolic

from graphkit.model import Model
from graphkit.shapes import Shapes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from, infer_roughly
from graphkit.symbolic.algebra import upper


def copies(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model with a node three times, on copies of the inputs: as it is, once more, with its first output."""
    result = onnx.ModelProto(ir_version=10)
    result.opset_import.extend(
        [*(each for each in proto.opset_import if each.domain), onnx.helper.make_opsetid("", opset)]
    )
    result.graph.input.extend(proto.graph.input)
    result.graph.initializer.extend(proto.graph.initializer)
    given = {each.name for each in (*proto.graph.input, *proto.graph.initializer)}
    (node,) = proto.graph.node
    for copy in ("first", "second", "third"):
        for name in sorted(given):
            result.graph.node.add(op_type="Identity", input=[name], output=[f"{copy}_{name}"])
        added = result.graph.node.add()
        added.CopyFrom(node)
        added.name = copy
        names = [name and f"{copy}_{name}" for name in node.input]
        outputs = [name and f"{copy}_{name}" for name in node.output]
        added.input[:], added.output[:] = names, outputs[:1] if copy == "third" else outputs
    return result


def models(most: int) -> Iterator[Model]:
    """Yield them for so many cases of each operator at most."""
    count = Counter[str]()
    for case in node_cases():
        nodes = case.model.graph.node
        if len(nodes) == 1 and not any(each.HasField("g") for each in nodes[0].attribute):
            count[nodes[0].op_type] += 1
            if count[nodes[0].op_type] <= most:
                yield from map(Model.from_proto, variants(case))


def variants(case: NodeCase) -> Iterator[onnx.ModelProto]:
    """Yield the case with sizes, in an older version, with symbols, one that does not fit, and one unknown."""
    yield copies(case.model, 20)
    yield copies(case.model, 11)
    with_symbols, _ = symbolic(case.model, case.inputs)
    yield copies(with_symbols, 20)
    if with_symbols.graph.input:
        first = with_symbols.graph.input[0].type.tensor_type
        del first.shape.dim[:1]
        yield copies(with_symbols, 20)
        first.ClearField("shape")
        yield copies(with_symbols, 20)


def told(shapes: Shapes) -> list[str]:
    """Return all that an inference says."""
    tensors = {value.name: tensor for value, tensor in shapes.table.items()}
    facts = [f"{name}: {each.dtype} {each.dims} {each.data} {each.reason}" for name, each in tensors.items()]
    noted = shapes.findings, shapes.equalities, shapes.inequalities, shapes.broadcasts, shapes.limits, shapes.wraps
    lists = [f"{each} {getattr(each, 'scope', '')} {getattr(each, 'node', '')}" for listed in noted for each in listed]
    needed = [f"{node.label}: {each}" for listed in shapes.preconditions for node, each in listed]
    return [*facts, str(shapes.reasons), *lists, *needed]


@pytest.mark.parametrize("most", [3, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_node_is_inferred_as_if_no_node_like_it_had_been(most: int) -> None:
    every = list(models(most))
    kept = [told(infer_roughly(each, Inputs(each))) for each in every]
    with mock.patch("graphkit.shapes.infer.result_key", return_value=None):
        for model, said in zip(every, kept, strict=True):
            assert said == told(infer_roughly(model, Inputs(model)))


def test_an_inference_is_shared_by_inputs_with_the_same_largest_number_alone() -> None:
    negated = model("g (int64[1] n) => (int64[1] y) { y = Neg (n) }")
    found = [infer_from(negated, Inputs(negated, largest=most))["y"].data[0] for most in (9, 99, 9)]
    assert [upper(each) for each in found] == [10, 100, 10]


def test_an_inference_is_shared_by_inputs_whose_symbols_have_the_same_bounds_alone() -> None:
    first, second = (model(f"g (float[{dim}] x) => (float[n] y) {{ y = Neg (x) }}") for dim in ("n", "past_n"))
    given = Inputs(first)
    alone = given.state()
    assert alone == Inputs(first).state()
    given.take_sizes_of(Inputs(second))
    assert given.state() != alone
