"""`fold --fuse` on files: weights written anew, their size, the proof and its tolerance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fusing import operators, random_model
from onnx import numpy_helper

from graphkit.errors import OutputError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.options import FoldingOptions, RewriteProofOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.save import Placement, save_models
from graphkit.shapes import DimSpec
from graphkit.verify import verify_rewrite
from graphkit.workflows.fold_file import FoldOptions, fold_file

TEXT = """
g (float[N, 3, 16, 16] x) => (float[N, 10] y) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1)
    b = BatchNormalization (a, scale, bias, mean, var)
    c = Relu (b)
    d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (c, w2, b2)
    e = Mul (d, m)
    f = Add (e, n)
    h = GlobalAveragePool (f)
    i = Flatten (h)
    j = MatMul (i, w3)
    y = Add (j, b3)
}
"""
DIMS = {
    "w1": (32, 3, 3, 3), "scale": (32,), "bias": (32,), "mean": (32,), "var": (32,),
    "w2": (48, 32, 3, 3), "b2": (48,), "m": (1, 48, 1, 1), "n": (48, 1, 1), "w3": (48, 10), "b3": (10,),
}  # fmt: skip
FUSED = ["Conv", "Relu", "Conv", "GlobalAveragePool", "Flatten", "Gemm"]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Write a small network of convolutions with normalizations."""
    path = tmp_path / "m.onnx"
    onnx.save(random_model(TEXT, **DIMS).proto, path)
    return path


@pytest.mark.cases("inline")
@pytest.mark.parametrize("weights", ["shared", "inline"])
def test_a_fused_model_is_no_larger_and_within_the_tolerance(network: Path, weights: Placement) -> None:
    out = network.with_name("out.onnx")
    report = fold_file(network, out, FoldOptions(weights=weights, fuse=True))
    proof = report.proof
    assert proof is not None
    assert proof.passed
    assert (proof.tolerance, proof.of_magnitude) == (1e-5, True)
    assert operators(load(out)) == FUSED
    tensors = [numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer]
    before = [numpy_helper.to_array(tensor) for tensor in onnx.load(network).graph.initializer]
    assert sum(tensor.nbytes for tensor in tensors) <= sum(tensor.nbytes for tensor in before)
    text = " ".join(str(block) for block in report.blocks())
    assert "tolerance 1e-05 of the largest magnitude" in text


def test_without_asking_nothing_is_fused(network: Path) -> None:
    assert operators(fold(load(network)).model) == operators(load(network))


def test_the_proof_finds_a_weight_that_is_off(network: Path) -> None:
    model = fold(load(network), options=FoldingOptions(fuse=True)).model
    wrong = network.with_name("wrong.onnx")
    proto = model.restore()
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "b3")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * np.float32(1.1), bias.name))
    onnx.save(proto, wrong)
    assert not verify_rewrite(network, wrong, options=RewriteProofOptions(tolerance=1e-5, of_magnitude=True)).passed


def test_a_small_output_is_held_to_its_own_magnitude() -> None:
    text = "g (float[N, 4] x) => (y) { a = Mul (x, c) y = MatMul (a, w) }"
    models = [random_model(text, c=(), w=(4, 3)), random_model(text, c=(), w=(4, 3))]
    for model, number in zip(models, (1e-7, 1.00005e-7), strict=True):
        model.proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(number), "c"))
    assert verify_rewrite(*models, options=RewriteProofOptions(tolerance=1e-5)).passed
    assert not verify_rewrite(*models, options=RewriteProofOptions(tolerance=1e-5, of_magnitude=True)).passed


def test_a_fused_model_in_memory_is_run_as_it_is(network: Path) -> None:
    model = load(network)
    fused = fold(model, options=FoldingOptions(fuse=True)).model
    assert any(fused.is_made(tensor) for tensor in fused.proto.graph.initializer)
    assert verify_rewrite(model, fused, options=RewriteProofOptions(tolerance=1e-5, of_magnitude=True)).passed
    without_file = fold(Model.from_proto(onnx.load(network)), options=FoldingOptions(fuse=True)).model
    assert verify_rewrite(network, without_file, options=RewriteProofOptions(tolerance=1e-5, of_magnitude=True)).passed


def test_weights_are_whole_after_the_model_they_were_made_for_is_gone(network: Path) -> None:
    fused = fold(fold(load(network), options=FoldingOptions(fuse=True)).model).model
    full = fused.restore()
    assert all(tensor.data_location != onnx.TensorProto.EXTERNAL for tensor in full.graph.initializer)
    onnx.checker.check_model(full, full_check=True)


def test_new_weights_cannot_stay_in_place(network: Path) -> None:
    fused = fold(load(network), options=FoldingOptions(fuse=True)).model
    out = network.with_name("out.onnx")
    with pytest.raises(OutputError, match=r"'w1_fused' is a new weight, .* use --weights shared"):
        save_models({out: fused}, weights="in-place")
    assert not out.exists()


def test_a_file_cannot_claim_weights_of_another_model(network: Path) -> None:
    model = load(network)
    made = model.make_tensor("t", onnx.TensorProto.FLOAT, [1], [b"\0\0\0\0"])
    assert not load(network).is_made(made)


@pytest.mark.slow
def test_a_real_export_keeps_no_frozen_normalization(model_file: Callable[[str], Path], tmp_path: Path) -> None:
    source, out = model_file("table-transformer/model"), tmp_path / "out.onnx"
    sizes = {"batch_size": 1, "height": 64, "width": 64}
    report = fold_file(source, out, FoldOptions(spec=DimSpec.of(sizes), fuse=True))
    assert report.proof is not None
    assert report.proof.passed, report.findings()
    folded = fold(load(source), dims=sizes, options=FoldingOptions(keep_fusions=False)).model
    before, after = (Counter(node.op_type for node in all_nodes(model.scopes)) for model in (folded, load(out)))
    counted = ("Conv", "Mul", "Add", "MatMul", "Split")
    assert [before[name] for name in counted] == [18, 20, 46, 19, 0]
    assert [after[name] for name in counted] == [18, 2, 27, 17, 2]
