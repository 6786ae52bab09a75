from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import onnxoptimizer
import pytest

from graphkit.analysis.optimize import optimized
from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load

RealModel = Callable[[str], Model]


def test_the_default_passes_run() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { a = Identity(x)  y = Relu(a) }'
    after = optimized(Model.from_proto(onnx.parser.parse_model(text)))
    assert [node.op_type for node in all_nodes(after.scopes)] == ["Relu"]


def test_the_model_itself_stays_as_it_is(real_model: RealModel) -> None:
    model = real_model("bert-fill-mask/model")
    before = model.proto.SerializeToString(deterministic=True)
    optimized(model)
    assert model.proto.SerializeToString(deterministic=True) == before


def test_weights_are_not_needed(real_model: RealModel) -> None:
    after = optimized(real_model("opus-mt-en-fr/encoder_model"))
    assert 0 < len(list(all_nodes(after.scopes))) < 792


def refuse(proto: onnx.ModelProto) -> onnx.ModelProto:
    raise RuntimeError(f"Assertion failed:\n  no pass for {proto.graph.name}")


def test_what_onnxoptimizer_throws_names_the_file(
    model_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_file("search/loop-greedy")
    model = load(path)
    monkeypatch.setattr(onnxoptimizer, "optimize", refuse)
    with pytest.raises(ModelError) as caught:
        optimized(model)
    assert str(caught.value) == (
        f"{path}: onnxoptimizer fails: Assertion failed: no pass for {model.proto.graph.name}"
        " - report without --optimize"
    )
