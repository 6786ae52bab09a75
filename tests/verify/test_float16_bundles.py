"""A bundle of a float16 T5, whose attention amplifies roundings: a right one passes, and each wrong one is caught."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import bundle_faults as bad
import numpy as np
import pytest
from bundle_faults import Edit, Inject, graph
from onnx import TensorProto
from quantised import MERGED, quantised
from real_models import unpacked
from rewriting import model_of

import graphkit
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError
from graphkit.runtime.isolation import shared_isolation
from graphkit.verify import bundle_state_checks, bundle_verifier, comparator
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.deployment_proofs import BundleProof
from graphkit.verify.rounding import in_float32

TOLERANCE = 1e-2
KEY = "past_key_values.0.decoder.key"
Bundled = tuple[Originals, Path]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundled]:
    """Return the export and its bundle, unproven."""
    source = unpacked("t5-tiny", tmp_path_factory.mktemp("t5"))
    graphkit.split_file(source / MERGED, source, graphkit.SplitOptions(verify=False, weights="inline"))
    (source / MERGED).unlink()
    half = quantised("float16", source, source / "float16")
    options = graphkit.BundleOptions(batch=3, max_cache=16, max_source=16, verify=False)
    graphkit.bundle_folder(half, source / "bundle", options)
    with shared_isolation():
        yield find_pipeline(half).originals, source / "bundle"


def proof_of(bundled: Bundled) -> BundleProof:
    return verify_bundle(*bundled, exact=False)


@pytest.mark.slow
def test_a_right_bundle_passes_in_float32_where_rounding_decides(bundled: Bundled) -> None:
    proof = proof_of(bundled)
    assert proof.passed
    wide, halves = ([run for run in proof.runs if run.is_wide is flag] for flag in (True, False))
    assert {run.optimized for run in wide} == {run.optimized for run in halves} == {False, True}
    assert max(run.logits for run in wide) < 4e-6  # of all prompts, not only of those that float16 moves
    assert any(run.logits > TOLERANCE for run in halves)
    assert any(note.startswith("Of the logits of the export itself float16 puts some ") for note in proof.notes)
    assert "That is in float32" in " ".join(proof.to_text().split())


@pytest.mark.slow
def test_it_fails_without_the_comparison_in_float32(bundled: Bundled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_verifier, "widen_bundle", lambda *_: None)
    assert "differ by 1.3e-02" in proof_of(bundled).findings()[0]


def test_an_export_that_overflows_excuses_no_difference() -> None:
    assert bundle_verifier.half_tolerance(1e-2, 1e-3) == 1e-2
    assert bundle_verifier.half_tolerance(1e-2, 1e-1) > 1e-1
    assert bundle_verifier.half_tolerance(1e-2, np.inf) == bundle_verifier.half_tolerance(1e-2, np.nan) == 1e-2


def half(edit: Edit, number: float) -> str:
    return edit.constant(number, np.float16)


def scaled(edit: Edit, name: str = "logits", by: float = 1.001) -> None:
    edit.after(name, lambda old: [edit.node("Mul", old, half(edit, by))])


def coarse(edit: Edit) -> None:
    """Round logits to quarters: float16 knows no others from 256 on. Layout keeps the sum from staying float32."""

    def make(old: str) -> Iterator[object]:
        axis = edit.constant([0])
        high = edit.node("Add", old, half(edit, 500))
        more = edit.node("Unsqueeze", high.output[0], axis)
        less = edit.node("Squeeze", more.output[0], axis)
        yield from (high, more, less, edit.node("Sub", less.output[0], half(edit, 500)))

    edit.after("logits", make)  # type: ignore[arg-type]


def scores(edit: Edit, op_type: str, number: float, at: int) -> None:
    """Put an operator before a Softmax."""
    node = edit.all("Softmax")[at]
    edit.before(node, 0, edit.node(op_type, node.input[0], half(edit, number)))


def everywhere(change: Callable[[Edit], None]) -> Inject:
    def inject(folder: Path) -> None:
        for file in ("encode.onnx", "step.onnx"):
            graph(file, change)(folder)

    return inject


FAULTS: dict[str, Inject] = {
    "slots one further on": graph("step.onnx", bad.further),
    "rows are not reordered": graph("reorder.onnx", partial(bad.not_reordered, state=KEY)),
    "a source mask of ones": graph("step.onnx", partial(bad.ones, name="encoder_attention_mask")),
    "scores 1 % off": everywhere(partial(scores, op_type="Mul", number=1.01, at=1)),
    "scores are cut": everywhere(partial(scores, op_type="Min", number=2, at=1)),
    "padding is hidden by little": everywhere(partial(scores, op_type="Max", number=-4, at=1)),
    "logits 0.1 % off": everywhere(scaled),
    "logits rounded to quarters": everywhere(coarse),
}


def injected(bundled: Bundled, fault: str, output: Path) -> Bundled:
    shutil.copytree(bundled[1], output)
    FAULTS[fault](output)
    return bundled[0], output


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_bundle_is_caught(fault: str, bundled: Bundled, tmp_path: Path) -> None:
    proof = proof_of(injected(bundled, fault, tmp_path / "out"))
    assert [run for run in proof.runs if run.failure] or proof.checks["rows that are reordered"]


@pytest.mark.slow
def test_a_small_fault_is_seen_in_float32_alone(
    bundled: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = injected(bundled, "logits 0.1 % off", tmp_path / "out")
    monkeypatch.setattr(comparator, "FLOAT32_TOLERANCE", 1e-2)
    assert not [run for run in proof_of(wrong).runs if run.failure]


@pytest.mark.slow
def test_a_bundle_that_rounds_more_than_its_export_is_seen_in_float16_alone(
    bundled: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = injected(bundled, "logits rounded to quarters", tmp_path / "out")
    monkeypatch.setattr(bundle_verifier, "FACTORS", {True: 100})
    assert not [run for run in proof_of(wrong).runs if run.failure]


def test_models_of_a_chain_round_nothing_between_them() -> None:
    text = "g (float16[n] x, int64[n] i) => (float16[n] y) { y = Mul (x, w) }"
    model, names = in_float32(model_of(text, w=np.float16(3)), wide_inputs=True)
    assert names == {}
    types = [info.type.tensor_type.elem_type for info in model.proto.graph.input]
    assert types == [TensorProto.FLOAT, TensorProto.INT64]


@pytest.mark.slow
def test_a_model_that_cannot_be_converted_explains_nothing(bundled: Bundled, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ModelError("it is not converted")

    monkeypatch.setattr(bundle_state_checks, "in_float32", refuse)
    assert not proof_of(bundled).passed
