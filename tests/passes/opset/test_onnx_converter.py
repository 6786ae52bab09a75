from __future__ import annotations

import numpy as np
import onnx
import pytest
from converting import convert_here
from onnx import TensorProto, helper
from rewriting import assert_same, feeds_of, lines, model_of

import graphkit.passes.opset.convert_opset
from graphkit.model import Model
from graphkit.passes.opset.convert_opset import ConvertOpset, converted_by_onnx
from graphkit.rewrite.base import MatchFailure
from graphkit.runtime.external_tools import ToolError

MEANS = """
agraph (float[N, 4] x) => (float[N] y) {
    [first] h = Exp (x)
    [mean] y = ReduceMean <keepdims = 0> (h, axes)
}"""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphkit.passes.opset.convert_opset, "convert_bytes", convert_here)


def means() -> Model:
    return model_of(MEANS, opset=18, axes=[1])


def test_an_older_version_gives_the_same_and_keeps_what_it_does_not_change() -> None:
    model = means()
    proto = model.proto
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.doc_string, proto.graph.input[0].doc_string = "means", "the numbers"
    for node in proto.graph.node:
        node.doc_string = f"of {node.name}"
        node.metadata_props.add(key="layer", value=node.name)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 4]))
    proto.graph.quantization_annotation.add(tensor_name="h")
    before = Model.from_proto(proto)
    made = converted_by_onnx(before, 17)
    assert_same(before, made, [feeds_of(before, {"N": size}) for size in (1, 3)])
    onnx.checker.check_model(made.proto, full_check=True)
    assert lines(made) == ["[first] h = Exp (x)", "[mean] y = ReduceMean <keepdims: int = 0, axes: ints = [1]> (h)"]
    now = made.proto
    assert now.graph.node[0] == proto.graph.node[0]
    assert (now.graph.node[1].doc_string, now.graph.node[1].metadata_props[0].value) == ("of mean", "mean")
    assert now.metadata_props == proto.metadata_props
    for field in ("doc_string", "input", "output", "value_info", "quantization_annotation"):
        assert getattr(now.graph, field) == getattr(proto.graph, field)
    assert made.graph.opset() == 17
    assert not now.graph.initializer  # the axes are an attribute now


def test_weights_stay_where_they_are() -> None:
    text = MEANS.replace("Exp (x)", "Mul (x, w)").replace("N, 4", "N, 32")
    model = model_of(text, opset=18, axes=[1])
    ones = model.make_tensor("w", TensorProto.FLOAT, [32], [np.ones(32, "<f4").tobytes()])
    model.proto.graph.initializer.append(ones)
    whole = model.with_proto(model.proto)
    (tensor,) = converted_by_onnx(whole, 17).proto.graph.initializer
    assert tensor == ones
    assert tensor.external_data


def test_an_operator_that_the_table_lacks_is_converted() -> None:
    model = model_of("agraph (float[2, N, 1] x) => (float[2, N, 2] y) { y = DFT <axis = 1> (x) }", opset=17)
    assert ConvertOpset(20).run(model).declined
    made = converted_by_onnx(model, 20)
    assert made.graph.opset() == 20
    assert made.proto.ir_version >= 9


BRANCH = """
agraph (float[N] x, bool c) => (float[N] y) {
    y = If (c) <
        then_branch = g1 () => (float[N] s) { s = Neg (x) },
        else_branch = g2 () => (float[N] t) { t = Exp (x) }
    >
}"""


def test_what_it_would_leave_or_drop_is_refused() -> None:
    with pytest.raises(MatchFailure, match="it leaves the bodies of If, Loop and Scan as they are"):
        converted_by_onnx(model_of(BRANCH), 16)
    called = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    called.proto.functions.add(name="f", domain="local")
    with pytest.raises(MatchFailure, match="it leaves functions as they are: run inline-functions first"):
        converted_by_onnx(Model.from_proto(called.proto), 16)
    trained = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    trained.proto.training_info.add()
    with pytest.raises(MatchFailure, match="it drops sparse initializers and graphs for training"):
        converted_by_onnx(Model.from_proto(trained.proto), 16)


def test_what_onnx_says_is_the_reason() -> None:
    model = model_of(
        "agraph (float[N, 4] x) => (float[N, 4] y) { y = LayerNormalization (x, s) }", s=np.float32([1] * 4)
    )
    with pytest.raises(MatchFailure) as error:
        converted_by_onnx(model, 16)
    assert str(error.value) == "No Previous Version of LayerNormalization exists"


def test_a_crash_of_the_converter_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> bytes:
        raise ToolError("it was ended by SIGSEGV")

    monkeypatch.setattr(graphkit.passes.opset.convert_opset, "convert_bytes", crash)
    with pytest.raises(MatchFailure, match="it was ended by SIGSEGV"):
        converted_by_onnx(means(), 17)
