from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphkit import progress as limits
from graphkit.analysis.report import ReportOptions, report
from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.runtime.external_tools import optimized

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
RealModel = Callable[[str], Model]


def test_the_default_passes_run() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Identity(x)  y = Relu(a) }"
    after = optimized(Model.from_proto(onnx.parser.parse_model(HEAD + text)))
    assert [node.op_type for node in all_nodes(after.scopes)] == ["Relu"]


def test_the_model_itself_stays_as_it_is(real_model: RealModel) -> None:
    model = real_model("bert-fill-mask/model")
    before = model.proto.SerializeToString(deterministic=True)
    optimized(model)
    assert model.proto.SerializeToString(deterministic=True) == before


def test_weights_are_not_needed(real_model: RealModel) -> None:
    after = optimized(real_model("opus-mt-en-fr/encoder_model"))
    assert 0 < len(list(all_nodes(after.scopes))) < 792


def test_what_onnxoptimizer_throws_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + "g (float[N] x) => (float[N] y) { y = Relu(q) }"), path)
    with pytest.raises(ModelError) as caught:
        optimized(load(path))
    assert str(caught.value) == f"{path}: onnxoptimizer fails: Input q is undefined! - report without --optimize"


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_a_model_that_ends_onnxoptimizer_ends_only_that() -> None:
    nobody = "g (float[N] x) => (float[N] y, float[N] nobody_defines_it) { y = Relu(x) }"
    model = Model.from_proto(onnx.parser.parse_model(HEAD + nobody))
    with pytest.raises(ModelError, match=r"onnxoptimizer fails: it ends the process with SIG[A-Z]+.* - report without"):
        report(model, ReportOptions(optimize=True))


def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.001)
    with pytest.raises(ModelError, match=r"onnxoptimizer fails: it does not finish in 0\.00\d+ s"):
        optimized(Model.from_proto(onnx.parser.parse_model(HEAD + "g (float[N] x) => (float[N] y) { y = Relu(x) }")))
