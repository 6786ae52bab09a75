from __future__ import annotations

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from devices import EMPTY, needs_empty, needs_webgpu
from small_models import model

from graphkit.cli import app
from graphkit.errors import ModelError, UsageError
from graphkit.model import Model
from graphkit.options import CompareOptions, RewriteProofOptions
from graphkit.runtime.providers import Provider
from graphkit.verify.comparator import FLOAT16_TOLERANCE, FLOAT32_TOLERANCE, level_tolerance
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.workflows.compare_models import compare_models

LAYERS = """
g (float[batch, 4] x) => (float[batch, 4] y) {
  first = MatMul (x, w)
  positive = Sigmoid (first)
  second = MatMul (positive, w)
  moved = Sub (second, far)
  y = MatMul (moved, w)
}
"""
WEIGHT = np.linspace(-1, 1, 16).reshape(4, 4)
LOGARITHM = LAYERS.replace("Sub (second, far)", "Log (second)")  # of numbers below 0


def layers(text: str = LAYERS) -> Model:
    return model(text, w=WEIGHT, far=3.0) if "far" in text else model(text, w=WEIGHT)


@needs_empty
def test_nothing_is_tested_where_no_node_runs_on_the_device() -> None:
    proof = verify_rewrite(layers(), layers(), options=RewriteProofOptions(provider=EMPTY, runs=2))
    assert not proof.passed
    assert proof.failures == (f"no node runs on {EMPTY}, so nothing was tested there",)
    assert (proof.provider, proof.placed) == (EMPTY, {"cpu": 5})


@needs_empty
def test_nothing_is_tested_where_onnxruntime_folds_all_nodes() -> None:
    constant = model("g (float[4, 4] x) => (float[4, 4] y) { y = Add (w, w) }", w=WEIGHT)
    proof = verify_rewrite(constant, constant, options=RewriteProofOptions(provider=EMPTY, runs=2))
    assert proof.failures == (f"no node runs on {EMPTY}, so nothing was tested there",)


@needs_empty
@pytest.mark.parametrize("side", "AB")
def test_a_comparison_fails_where_no_node_of_a_side_runs_on_its_device(side: str) -> None:
    with pytest.raises(ModelError, match=f"no node runs on {EMPTY}, so nothing was tested there"):
        compare_models(layers(), layers(), options=CompareOptions(providers=(f"{side}={EMPTY}",)))


@needs_empty
def test_what_runs_on_a_device_is_never_said_to_be_proven() -> None:
    same = layers()
    assert verify_rewrite(same, same).proven().startswith("Proven bit for bit")
    proof = verify_rewrite(same, same, options=RewriteProofOptions(provider=EMPTY, runs=2))
    assert proof.proven().startswith("Tested in ")
    assert not proof.equivalence.proven
    assert proof.of_magnitude


def test_the_tolerance_is_that_of_the_device_and_of_the_dtypes() -> None:
    plain = layers()
    assert level_tolerance(plain, Provider("webgpu")) == FLOAT32_TOLERANCE
    assert level_tolerance(plain, Provider("qnn")) == FLOAT16_TOLERANCE
    half = onnx.ModelProto()
    half.CopyFrom(plain.proto)
    half.graph.initializer[0].data_type = onnx.TensorProto.FLOAT16
    half.graph.initializer[0].raw_data = WEIGHT.astype(np.float16).tobytes()
    assert level_tolerance(Model.from_proto(half), Provider("webgpu")) == FLOAT16_TOLERANCE


def test_providers_that_cannot_be_are_one_error_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="there is no provider 'gpu'"):
        verify_rewrite(layers(), layers(), options=RewriteProofOptions(provider="gpu"))
    with pytest.raises(UsageError, match="there is no provider 'gpu'"):
        compare_models(layers(), layers(), options=CompareOptions(providers=("A=gpu",)))


@needs_empty
def test_a_split_is_not_proven_on_a_device() -> None:
    ran = CliRunner().invoke(app, ["verify", *["example:causal-attention"] * 3, "--provider", EMPTY])
    assert "--provider is for two models or a folder" in str(ran.exception)


@needs_empty
def test_a_comparison_names_the_provider_of_each_side_and_the_nodes_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.workflows.compare_models.placement_fault", lambda *_: "")
    result = compare_models(layers(), layers(), options=CompareOptions(providers=(EMPTY,)))
    assert result.passed
    assert result.b.endswith(f" on {EMPTY}")
    assert not result.a.endswith(EMPTY)
    assert any(note.startswith("Nodes of B that ran, in all steps: 5 on cpu") for note in result.notes)
    both = compare_models(layers(), layers(), options=CompareOptions(providers=(f"A={EMPTY}", "B=cpu")))
    assert both.a.endswith(f" on {EMPTY}")
    assert not both.b.endswith("cpu")


@needs_webgpu
def test_a_model_on_webgpu_is_tested_against_the_cpu_with_its_nodes_there() -> None:
    proof = verify_rewrite(layers(), layers(), options=RewriteProofOptions(provider="webgpu"))
    assert proof.passed, proof.failures
    assert "equal within 0.0001 of the largest magnitude on webgpu" in proof.proven()
    assert proof.placed == {"webgpu": 5}


@needs_webgpu
def test_the_node_that_webgpu_computes_otherwise_is_where_a_comparison_parts() -> None:
    """Its Log of a negative number is that of the magnitude."""
    same = layers(LOGARITHM)
    result = compare_models(same, same, options=CompareOptions(providers=("B=webgpu",)))
    assert not result.passed
    assert [(divergence.tensor, divergence.operator) for divergence in result.divergences] == [("moved", "Log")]
    assert not verify_rewrite(same, same, options=RewriteProofOptions(provider="webgpu", runs=2)).passed
