"""Models in memory do where a path does: an ONNX proto, a model of onnx_ir, a program of torch.onnx."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from doc_blocks import ROOT, blocks

import graphkit
from graphkit.errors import ModelError, UsageError

EXAMPLE = "example:merged-decoder"


@pytest.fixture
def proto() -> onnx.ModelProto:
    proto = graphkit.load(EXAMPLE).to_proto()
    proto.metadata_props.add(key="made", value="here")
    return proto


def as_proto(proto: onnx.ModelProto) -> object:
    return proto


def as_ir(proto: onnx.ModelProto) -> object:
    return pytest.importorskip("onnx_ir").from_proto(proto)


class ONNXProgram:
    """The parts that `torch.onnx.ONNXProgram` has: its model is one of onnx_ir."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model, self.model_proto = as_ir(proto), proto


ONNXProgram.__module__ = "torch.onnx"
KINDS = pytest.mark.parametrize("make", [as_proto, as_ir, ONNXProgram], ids=["onnx", "onnx_ir", "torch"])
Make = Callable[[onnx.ModelProto], object]


@pytest.mark.cases("interface-onnx", "origins-torch", "kv_cache-onnx_ir")
@KINDS
@pytest.mark.parametrize(
    "function", [graphkit.interface, graphkit.kv_cache, graphkit.origins], ids=lambda function: function.__name__
)
def test_a_model_in_memory_is_explained_as_its_file(
    make: Make, function: Callable[[object], object], proto: onnx.ModelProto
) -> None:
    assert str(function(make(proto))) == str(function(EXAMPLE)).replace("merged-decoder.onnx", proto.graph.name)


@pytest.mark.parametrize("length", [1, 127, 128, 16383, 16384])
def test_a_large_weight_of_another_size_is_an_error(length: int) -> None:
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, dims=[length], raw_data=bytes(length))
    graph = onnx.helper.make_graph([], "g", [], [], [weight])
    assert graphkit.load(onnx.helper.make_model(graph), threshold=1).tensors
    graph.initializer[0].dims[0] = length + 1
    with pytest.raises(ModelError, match=rf"tensor 'w': {length:,} bytes of data, but .* need {length + 1:,}"):
        graphkit.load(onnx.helper.make_model(graph), threshold=1)


@KINDS
def test_a_model_in_memory_comes_back_as_it_was(make: Make, proto: onnx.ModelProto) -> None:
    before = proto.SerializeToString(deterministic=True)
    given = make(proto)
    back = graphkit.load(given).to_proto()
    assert proto.SerializeToString(deterministic=True) == before  # nothing is changed
    assert [*back.metadata_props] == [*proto.metadata_props]
    assert [entry.version for entry in back.opset_import] == [18]
    assert {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in back.graph.initializer} == {
        t.name: onnx.numpy_helper.to_array(t).tobytes() for t in proto.graph.initializer
    }
    assert [node.op_type for node in back.graph.node] == [node.op_type for node in proto.graph.node]
    if make is as_proto:
        assert back == proto


@pytest.mark.cases("onnx_ir")
@pytest.mark.parametrize(
    "make",
    [as_proto, as_ir, pytest.param(ONNXProgram, marks=pytest.mark.slow)],  # which is one of onnx_ir, wrapped
    ids=["onnx", "onnx_ir", "torch"],
)
def test_a_rewrite_of_a_model_in_memory_is_that_of_its_file(make: Make, tmp_path: Path) -> None:
    proto = graphkit.load("example:encoder").to_proto()
    model = graphkit.fold(make(proto)).model
    assert graphkit.verify_rewrite("example:encoder", model).passed
    model.save(tmp_path / "folded.onnx", "shared")
    assert graphkit.verify_rewrite(make(proto), tmp_path / "folded.onnx").passed
    assert (tmp_path / "folded.onnx_data").exists()


@pytest.mark.slow
def test_a_split_of_a_model_in_memory_is_proven(proto: onnx.ModelProto) -> None:
    split = graphkit.split_merged(as_ir(proto))
    assert graphkit.verify_split(as_ir(proto), split.first, split.with_past).passed


def test_functions_and_tensors_of_nodes_are_kept() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]> g (float[n] x) => (float[n] y) {
        c = Constant <value = float[400] {1}> () z = local.twice (x) y = Add (z, w)
    }
    <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Add (a, a) }"""
    proto = onnx.parser.parse_model(text.replace("c = Constant <value = float[400] {1}> () ", "").replace(", w", ", z"))
    weight = onnx.numpy_helper.from_array(np.arange(400, dtype=np.float32))
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=weight))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, [400]))
    model = graphkit.load(proto)
    assert model.proto.ByteSize() < 1600 < proto.ByteSize()
    assert model.to_proto() == proto
    onnx_ir = pytest.importorskip("onnx_ir")
    back = onnx_ir.to_proto(graphkit.load(onnx_ir.from_proto(proto)).to_ir())
    assert [function.name for function in back.functions] == ["twice"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(back.graph.node[0].attribute[0].t), np.arange(400))


def test_weights_of_onnx_ir_are_never_copied(proto: onnx.ModelProto) -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    reads: list[str] = []

    def counted(tensor: object) -> object:
        def read() -> object:
            reads.append(tensor.name)
            return tensor

        return onnx_ir.LazyTensor(read, tensor.dtype, tensor.shape, name=tensor.name)

    given = onnx_ir.from_proto(proto)
    large = {name: value for name, value in given.graph.initializers.items() if value.const_value.nbytes >= 1024}
    for value in large.values():
        value.const_value = counted(value.const_value)
    model = graphkit.load(given)
    assert model.to_ir().graph.initializers.keys() == given.graph.initializers.keys()
    assert reads == []
    model = graphkit.fold(model).model
    back = model.to_ir()
    held = [value.const_value for name, value in back.graph.initializers.items() if name in large]
    assert held
    assert all(tensor is given.graph.initializers[tensor.name].const_value for tensor in held)
    assert {t.name for t in model.to_proto().graph.initializer} == set(back.graph.initializers)


@pytest.mark.slow
def test_external_data_of_a_proto_lies_in_the_folder_that_is_told(proto: onnx.ModelProto, tmp_path: Path) -> None:
    saved = graphkit.load(EXAMPLE).to_proto()
    onnx.save(saved, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    model = graphkit.load(light, folder=tmp_path)
    assert graphkit.verify_rewrite(EXAMPLE, graphkit.fold(model).model).passed
    for tensor, original in zip(model.to_proto().graph.initializer, proto.graph.initializer, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), onnx.numpy_helper.to_array(original))
    onnx_ir = pytest.importorskip("onnx_ir")
    assert graphkit.verify_rewrite(EXAMPLE, onnx_ir.load(tmp_path / "m.onnx")).passed
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match="its data file is missing"):
        graphkit.verify_rewrite(EXAMPLE, graphkit.load(light, folder=tmp_path))


@pytest.mark.parametrize("thing", [3, ["a.onnx"], None, SimpleNamespace(model=1)])
def test_anything_else_is_no_model(thing: object) -> None:
    with pytest.raises(UsageError, match="is no model - give a path"):
        graphkit.load(thing)


def test_a_proto_needs_no_onnx_ir() -> None:
    """Nothing of onnx_ir is imported for objects of another kind."""
    code = """
import sys, graphkit
proto = graphkit.load("example:causal-attention").to_proto()
graphkit.fold(proto).model.to_proto()
assert not {"onnx_ir", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def page_block(word: str) -> str:
    """Return the block of the library's page that has a word in it."""
    found = blocks((ROOT / "docs/reference/library.md").read_text(encoding="utf-8"))
    (block,) = (block.text for block in found if word in block.text)
    return block


@pytest.mark.slow
def test_the_post_pass_after_torch_is_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 256)

        def forward(self, x: object) -> object:
            return self.layer(x).reshape(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)

    x = torch.randn(3, 5, 64)
    module, dims = Scores().eval(), ({0: "batch", 1: "sequence"},)
    exec(page_block("dynamo=True"), {"module": module, "inputs": (x,), "dims": dims})
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "model.onnx")
    for size in (x, torch.randn(2, 7, 64)):
        expected = module(size).detach().numpy()
        np.testing.assert_allclose(session.run(None, {"x": size.numpy()})[0], expected, atol=1e-5)


@pytest.mark.slow
def test_the_post_pass_after_transformers_is_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers.exporters")
    import torch
    from transformers import BertConfig, BertModel

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99)
    model = BertModel(config).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    exec(page_block("OnnxExporter"), {"model": model, "inputs": inputs})
    (file,) = (tmp_path / "exported").glob("*.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(file)
    names = [entry.name for entry in session.get_inputs()]
    outputs = session.run(None, {name: inputs[name].numpy() for name in names})
    np.testing.assert_allclose(outputs[0], model(**inputs)[0].detach().numpy(), atol=1e-4)
