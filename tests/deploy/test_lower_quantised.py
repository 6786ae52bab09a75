"""Quantised exports, lowered as they are or with their products computed with floats."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quantised import quantised
from real_models import MODELS
from rewriting import model_of

from graphkit.contract.host_contract import Method
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.lowering_checks import check_ranges, check_scales, check_vectors
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import UsageError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.verify.lowering_case import IsolatedMethods
from graphkit.verify.rounding import IN_FLOATS

OPTIONS = LowerOptions(src_len=8)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    (folder / "float").mkdir()
    content = lzma.decompress((MODELS / "bert-fill-mask/model.onnx.xz").read_bytes())
    (folder / "float/model.onnx").write_bytes(content)
    for kind in ("dynamic uint8", "qdq"):
        quantised(kind, folder / "float", folder / kind)
    return folder


def test_ranges_that_count_padding_are_declined_by_name(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        lower_folder(bert / "dynamic uint8", tmp_path / "out", OPTIONS)
    assert str(error.value) == (
        "model.onnx: '/bert/embeddings/LayerNorm/Add_1_output_0_QuantizeLinear' (DynamicQuantizeLinear) takes its "
        "range from all positions of a run: padding and the number of tokens in a run change results - compute "
        "quantised products with floats: --dequantize"
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def four_bits(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(lzma.decompress((MODELS / "llama-int4/model.onnx.xz").read_bytes()))
    return folder


def test_a_bundle_of_activations_in_8_bits_is_compared_in_floats(four_bits: Path, tmp_path: Path) -> None:
    report = bundle_folder(four_bits, tmp_path / "out", BundleOptions(max_cache=24))
    assert report.proof is not None
    assert report.proof.passed
    assert max(run.logits for run in report.proof.runs) < 1e-5
    assert IN_FLOATS in report.proof.notes


def test_activations_that_are_rounded_to_8_bits_are_compared_in_floats(four_bits: Path, tmp_path: Path) -> None:
    report = lower_folder(four_bits, tmp_path / "out", LowerOptions(max_cache_len=16))
    assert report.proof is not None
    assert report.proof.passed
    assert max(run.logits for run in report.proof.runs) < 1e-5
    assert IN_FLOATS in report.proof.proven()


def test_activations_in_8_bits_that_give_nan_fail(
    four_bits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = IsolatedMethods.__call__

    def run_badly(methods: IsolatedMethods, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = run(methods, method, feed)  # without models in their place files run as they are
        return outputs if methods.models else {name: array * np.float32(np.nan) for name, array in outputs.items()}

    monkeypatch.setattr(IsolatedMethods, "__call__", run_badly)
    report = lower_folder(four_bits, tmp_path / "out", LowerOptions(max_cache_len=16))
    assert report.proof is not None
    assert report.proof.causes == ("With activations in 8 bits, as its products ask for, it gives NaN.",)
    assert not report.proof.passed


@pytest.mark.slow
def test_dequantize_lowers_and_measures(bert: Path, tmp_path: Path) -> None:
    report = lower_folder(bert / "dynamic uint8", tmp_path, replace(OPTIONS, dequantize=True))
    assert report.proof is not None
    assert report.proof.passed
    said, _, found = report.notes[-1].partition("Without it, what runs once differs by up to ")
    assert said == (
        "Products of quantised numbers are computed with floats, which no longer rounds their data. The proof is "
        "against the export with that change. "
    )
    assert 1e-4 < float(found.rstrip(".")) < 0.1
    operators = {node.op_type for node in all_nodes(load(tmp_path / "encoder.onnx").scopes)}
    assert "MatMul" in operators
    assert not any("Integer" in each or "Dynamic" in each for each in operators)


@pytest.mark.slow
def test_static_quantisation_lowers_as_it_is(bert: Path, tmp_path: Path) -> None:
    report = lower_folder(bert / "qdq", tmp_path, OPTIONS)
    assert report.proof is not None
    assert report.proof.passed
    assert "QuantizeLinear" in {node.op_type for node in all_nodes(load(tmp_path / "encoder.onnx").scopes)}


def test_nothing_that_is_quantised_is_told(bert: Path, tmp_path: Path) -> None:
    report = lower_folder(bert / "float", tmp_path, replace(OPTIONS, dequantize=True, verify=False))
    assert report.notes[-1] == "Nothing is quantised that could be computed with floats: --dequantize changed nothing."


def test_the_way_out_of_what_dequantize_leaves_is_the_export_before() -> None:
    model = model_of("g (float[L, 4] x) => (q, s, z) { q, s, z = DynamicQuantizeLinear (x) }")
    with pytest.raises(
        UsageError, match=r"in a run change results - lower the export as it was before it was quantised$"
    ):
        check_ranges(model)


def rounding(scale: float, name: str = "s") -> Model:
    return model_of(
        f"g (float[L, 4] x) => (y) {{ q = QuantizeLinear (x, {name}) y = Neg (x) }}", **{name: np.float32(scale)}
    )


def test_two_decoders_that_round_otherwise_are_declined() -> None:
    check_scales(rounding(0.5), rounding(0.5))
    check_scales(rounding(0.5), rounding(0.25, "other"))
    with pytest.raises(UsageError) as error:
        check_scales(rounding(0.5), rounding(0.25))
    assert str(error.value) == (
        "g: 's', the scale of a QuantizeLinear, is 0.25, and 0.5 in g: the lowered step, which runs the first token "
        "too, would round it otherwise - compute quantised products with floats: --dequantize"
    )


def biased(bias: object, name: str = "bias", output: str = "y") -> Model:
    return model_of(
        f"g (float[L, 2] x) => ({output}) {{ {output} = Add (x, {name}) }}", **{name: np.array(bias, np.float32)}
    )


def test_two_decoders_of_other_biases_are_declined() -> None:
    check_vectors(biased([1, np.nan]), biased([1, np.nan]))
    check_vectors(biased([1, 2]), biased([3, 4], "other"))
    check_vectors(biased([1, 2]), biased([3, 4], output="z"))  # a name that says nothing, such as onnx::Add_12
    check_vectors(biased([1, 2]), biased([3]))
    check_vectors(biased([1, 2]), biased([1, 2.00005]))  # which the proof compares
    two = "g (float[L, 2] x) => (y) { z = Add (x, bias) y = Mul (z, scale) }"
    first, step = (
        model_of(two, bias=np.array(bias, np.float32), scale=np.array(scale, np.float32))
        for bias, scale in (([1, 2], [3, 4]), ([1, 2.0625], [3, 4.001]))
    )
    with pytest.raises(UsageError) as error:
        check_vectors(first, step)
    assert str(error.value) == (
        "g: 'bias' is up to 6.2e-02 off what it is in g (and 1 more): the lowered step, which runs the first token "
        "too, would compute with other numbers - lower the export as it was before it was quantised"
    )
