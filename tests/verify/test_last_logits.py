"""An oracle may give the logits of its last tokens alone: they are those of the export, or it is left as it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from bundles import SLOTS, decoder
from onnx import helper, numpy_helper
from sessions import run

from graphkit.contract.contract_files import read_bundle
from graphkit.equivalence.originals import Originals
from graphkit.model import Model
from graphkit.verify import bundle_prompts
from graphkit.verify.bundle_prompts import make_prompts, record_originals
from graphkit.verify.comparator import distance_of_spread
from graphkit.verify.oracle import LAST, with_logits_choice

Change = Callable[[onnx.GraphProto], None]
RANDOM = np.random.default_rng(0)


def float_constant(graph: onnx.GraphProto, name: str, *shape: int) -> None:
    array = RANDOM.standard_normal(shape).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(array, name))


def head(*operators: tuple[str, tuple[int, ...]]) -> Change:
    """Return what puts operators behind the logits, with a constant each where it has dims."""

    def change(graph: onnx.GraphProto) -> None:
        product = next(node for node in graph.node if "logits" in node.output)
        product.output[0] = before = "head_product"
        for number, (operator, shape) in enumerate(operators):
            after = "logits" if number == len(operators) - 1 else f"after_{number}"
            float_constant(graph, f"constant_{number}", *shape)
            inputs = [before, *([f"constant_{number}"] if operator not in ("Tanh", "Softmax") else [])]
            graph.node.append(helper.make_node(operator, inputs, [after]))
            before = after

    return change


def unchanged(graph: onnx.GraphProto) -> None:
    del graph


def transposed(graph: onnx.GraphProto) -> None:
    product = next(node for node in graph.node if "logits" in node.output)
    weight = next(tensor for tensor in graph.initializer if tensor.name == product.input[1])
    turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weight).T), "weight_turned")
    graph.initializer.append(turned)
    graph.node.insert(0, helper.make_node("Transpose", ["weight_turned"], ["turned_back"], perm=[1, 0]))
    product.input[1] = "turned_back"


def read_beside(graph: onnx.GraphProto) -> None:
    head(("Tanh", ()))(graph)
    graph.node.append(helper.make_node("Shape", ["head_product"], ["beside"]))
    graph.output.append(helper.make_tensor_value_info("beside", onnx.TensorProto.INT64, [3]))


def matrix_of_tokens(graph: onnx.GraphProto) -> None:
    product = next(node for node in graph.node if "logits" in node.output)
    graph.node.insert(0, helper.make_node("Identity", [product.input[1]], ["matrix"]))
    product.input[1] = "matrix"


def feeds(tokens: int) -> dict[str, np.ndarray]:
    past = np.zeros((2, 2, 0, 4), np.float32)
    return {
        "input_ids": RANDOM.integers(0, 11, (2, tokens)),
        "attention_mask": np.ones((2, tokens), np.int64),
        "position_ids": np.tile(np.arange(tokens), (2, 1)),
        "past_key_values.0.key": past,
        "past_key_values.0.value": past,
    }


def changed(change: Change) -> Model:
    proto = decoder("causal")
    change(proto.graph)
    onnx.checker.check_model(proto)
    return Model.from_proto(proto)


KNOWN = {
    "product": unchanged,
    "tied": transposed,
    "bias": head(("Add", (11,))),
    "capped": head(("Mul", ()), ("Tanh", ()), ("Mul", (1,)), ("Sub", (1, 1, 11))),
}
UNKNOWN = {
    "a number for each row": head(("Add", (2, 1, 11))),
    "Softmax": head(("Softmax", ())),
    "read beside": read_beside,
    "no constant": matrix_of_tokens,
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
@pytest.mark.parametrize("tokens", [1, 3, 6])
def test_the_last_logits_are_those_of_the_export(name: str, tokens: int) -> None:
    model = changed({**KNOWN, **UNKNOWN}[name])
    choosing = with_logits_choice(model)
    assert choosing is not None
    onnx.checker.check_model(choosing.proto)
    feed = feeds(tokens)
    expected = run(model, feed)
    for count in (1, 3, tokens):
        actual = run(choosing, {**feed, LAST: np.array([-count])})
        np.testing.assert_allclose(actual[0], expected[0][:, -count:], rtol=1e-5, atol=1e-6)
        assert all(np.array_equal(one, other) for one, other in zip(expected[1:], actual[1:], strict=True))


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_logits_that_are_not_needed_are_computed_only_where_tokens_may_depend_on_each_other(name: str) -> None:
    choosing = with_logits_choice(changed({**KNOWN, **UNKNOWN}[name]))
    assert choosing is not None
    product = next(node for node in choosing.proto.graph.node if "head" in node.input or "weight_turned" in node.input)
    (sliced,) = (node for node in choosing.proto.graph.node if LAST in node.input)
    nodes = list(choosing.proto.graph.node)
    assert (nodes.index(sliced) < nodes.index(product) or product.op_type == "Transpose") == (name in KNOWN)


def test_a_number_for_each_token_goes_to_its_token() -> None:
    model = changed(head(("Add", (6, 11))))
    choosing, feed = with_logits_choice(model), feeds(6)
    assert choosing is not None
    actual = run(choosing, {**feed, LAST: np.array([-2])})
    np.testing.assert_array_equal(actual[0], run(model, feed)[0][:, -2:])


def test_logits_of_two_dims_are_left_as_they_are() -> None:
    model = changed(unchanged)
    output = next(value for value in model.proto.graph.output if value.name == "logits")
    del output.type.tensor_type.shape.dim[0]
    assert with_logits_choice(model) is None


def test_long_prompts_run_on_an_export_that_is_cut(
    bundle_of: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_prompts, "COMPARED", 2 * 11 * 4)  # the logits of two tokens
    model = Model.from_proto(decoder("causal"))
    contract = read_bundle(bundle_of("causal") / "bundle.json")  # type: ignore[operator]
    made = make_prompts(contract, Originals(None, model, model), 0)
    assert {prompt.tokens.size for prompt in made if not prompt.all_logits} >= {SLOTS - 1}
    cut = record_originals(Originals(None, model, model), made, optimize=False)
    whole = [record_originals(Originals(None, model, model), [prompt], optimize=False).logits[0] for prompt in made]
    for prompt, expected, actual in zip(made, whole, cut.logits, strict=True):
        assert actual[0].shape[1] == (prompt.tokens.shape[1] if prompt.all_logits else 1)
        assert max(map(distance_of_spread, expected, actual)) < 1e-6
