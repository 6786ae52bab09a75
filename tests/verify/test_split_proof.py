from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from real_models import params

from graphkit.errors import UsageError
from graphkit.examples import resolve
from graphkit.model import Model, load
from graphkit.options import SplitProofOptions
from graphkit.passes.control_flow.merged_decoders import split_merged
from graphkit.runtime.session import RunError, Session
from graphkit.save import save_models
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify import split_verifier
from graphkit.verify.comparator import compare_outputs
from graphkit.verify.input_generator import InputGenerator
from graphkit.verify.split_verifier import verify_split
from graphkit.workflows.split_decoder_file import split_file

ModelFile = Callable[[str], Path]


def pair(model: Model, folder: Path, weights: str = "shared") -> tuple[Model, Model]:
    made = split_merged(model)
    paths = folder / "first.onnx", folder / "later.onnx"
    save_models({paths[0]: made.first, paths[1]: made.with_past}, weights=weights)  # type: ignore[arg-type]
    return load(paths[0]), load(paths[1])


@pytest.fixture(scope="module", params=params(["whisper-tiny", "gpt2-tiny"], slow=["gpt2-tiny"]))
def split(
    request: pytest.FixtureRequest, model_file: ModelFile, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Model, Model]:
    """Return a merged decoder, and the pair made of it."""
    merged = load(model_file(f"{request.param}/decoder_model_merged"))
    return merged, *pair(merged, tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
def test_real_splits_are_proven_to_the_last_bit(split: tuple[Model, Model, Model]) -> None:
    proof = verify_split(*split)
    assert proof.passed
    assert [branch.largest for branch in proof.branches] == [(0.0, 0.0)] * 2
    assert (proof.loop.absolute, proof.loop.steps) == (0.0, 8)
    assert not any(branch.skipped for branch in proof.branches)
    for branch in proof.branches:
        assert branch.equivalence.is_exact
        assert len(branch.equivalence.proven) == len(branch.outputs)


@pytest.mark.slow
def test_each_model_of_a_split_has_its_headline(tmp_path: Path) -> None:
    merged = load("example:merged-decoder")
    first, later = pair(merged, tmp_path, "inline")
    proof = verify_split(merged, first, later)
    assert [len(branch.runs) for branch in proof.branches] == [1, 1]
    assert proof.proven() == (
        "first.onnx: proven bit for bit at every size (5 of 5 outputs), and run once. "
        "later.onnx: proven bit for bit at every size (3 of 3 outputs), and run once. "
        "The two decode 8 greedy steps as the merged decoder does."
    )
    text = proof.to_text()
    assert "By normal forms of later.onnx, at every legal size and for every input" in text


@pytest.mark.slow
def test_a_loop_that_starts_shorter_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = split_verifier.decode

    def fail_once(*_: object, **_more: object) -> object:
        monkeypatch.setattr(split_verifier, "decode", decode)
        raise RunError("onnxruntime fails: no such position.")

    monkeypatch.setattr(split_verifier, "decode", fail_once)
    monkeypatch.setattr(split_verifier, "_prompt_lengths", lambda *_: [2000, 3])
    merged = load("example:merged-decoder")
    proof = verify_split(merged, *pair(merged, tmp_path, "inline"), SplitProofOptions(steps=2))
    assert proof.passed
    note = "The merged decoder does not run from a prompt of 2,000 tokens, so that the loop starts with 3: onnxruntime"
    assert proof.loop.note == f"{note} fails: no such position."


@pytest.mark.slow
def test_what_normal_forms_do_not_show_of_a_split_is_tested(tmp_path: Path) -> None:
    merged = load("example:merged-decoder")
    first, later = pair(merged, tmp_path, "inline")
    assert later.path is not None
    proto = onnx.load(later.path)
    logits = next(node for node in proto.graph.node if "logits" in node.output)
    logits.output[0] = "same"  # chosen where no number is less than itself, which no axiom knows
    proto.graph.node.append(helper.make_node("Less", ["same", "same"], ["never"]))
    proto.graph.node.append(helper.make_node("Neg", ["same"], ["negative"]))
    proto.graph.node.append(helper.make_node("Where", ["never", "negative", "same"], ["logits"]))
    onnx.save(proto, later.path)
    proof = verify_split(merged, first, load(later.path))
    assert proof.passed
    assert list(proof.branches[1].equivalence.unproven) == ["logits"]
    assert [len(branch.runs) > 7 for branch in proof.branches] == [False, True]
    headlines = proof.proven().split(". ")
    assert headlines[0].startswith("first.onnx: proven bit for bit at every size (5 of 5 outputs), and run ")
    assert headlines[1].startswith("later.onnx: tested in ")
    assert headlines[1].endswith(" runs: 3 outputs equal to the last bit")
    assert headlines[2] == "Proven bit for bit at every size: 2 of 3 outputs"
    assert "Not proven at every size: 'logits' of later.onnx: " in proof.to_text()


def test_results_pass_the_full_check_of_onnx(split: tuple[Model, Model, Model]) -> None:
    for model in split[1:]:
        onnx.checker.check_model(str(model.path), full_check=True)


@pytest.mark.parametrize(
    ("merged", "truths"),
    [
        ("example:merged-decoder", ("merged-decoder/decoder_model", "merged-decoder/decoder_with_past_model")),
        pytest.param(
            "nllb-tiny/decoder_model_merged_quantized",
            ("nllb-tiny/decoder_model_quantized", "nllb-tiny/decoder_with_past_model_quantized"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_results_give_what_the_models_give_that_were_merged(
    merged: str, truths: tuple[str, str], model_file: ModelFile, tmp_path: Path
) -> None:
    model = load(merged if merged.startswith("example:") else model_file(merged))
    for result, truth in zip(pair(model, tmp_path, "inline"), truths, strict=True):
        feed = InputGenerator(result).make(Sizes(batch=2, sequence=1, past=3, encoder=5))
        assert result.path is not None
        onnx.checker.check_model(str(result.path), full_check=True)
        expected, actual = (Session(path, threads=1).run(feed) for path in (model_file(truth), result.path))
        assert list(actual) == list(expected)
        assert all(difference.within(0.0) for difference in compare_outputs(expected, actual))


def test_a_changed_weight_is_found_and_the_first_output_named(tmp_path: Path) -> None:
    merged = load("example:merged-decoder")
    first, _ = pair(merged, tmp_path, "inline")
    assert first.path is not None
    proto = onnx.load(first.path)
    bias = next(t for t in proto.graph.initializer if t.name == "final_logits_bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.5), bias.name))
    onnx.save(proto, first.path)
    proof = verify_split(merged, load(first.path), load(tmp_path / "later.onnx"), SplitProofOptions(steps=2))
    assert not proof.passed
    failures = proof.branches[0].failures
    first_of_all = r"(\d+) of \1 runs differ, the first at batch_size=1, decoder_sequence_length=7, .*: logits "
    assert re.match(first_of_all, failures[0])
    assert failures[1].startswith("weight 'final_logits_bias' (float32[1, 64]) differs from the merged decoder's")
    assert not proof.branches[1].failures
    assert proof.loop.failure.startswith("logits of step 1: differ by")
    assert "differs" in proof.to_text()


@pytest.mark.slow
def test_a_tolerance_allows_small_differences(tmp_path: Path) -> None:
    merged = load("example:merged-decoder")
    first, later = pair(merged, tmp_path, "inline")
    assert first.path is not None
    proto = onnx.load(first.path)
    bias = next(t for t in proto.graph.initializer if t.name == "final_logits_bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1e-6), bias.name))
    onnx.save(proto, first.path)
    assert not verify_split(merged, load(first.path), later).passed
    assert verify_split(merged, load(first.path), later, SplitProofOptions(tolerance=1e-4)).passed


def test_the_original_must_be_a_merged_decoder() -> None:
    model = load("example:causal-attention")
    with pytest.raises(UsageError, match="is not a merged decoder - give the model that was split first"):
        verify_split(model, model, model)


@pytest.mark.slow
def test_a_flag_with_a_default_is_split_and_proven(tmp_path: Path) -> None:
    merged = onnx.load(resolve("example:merged-decoder"))
    merged.graph.initializer.append(numpy_helper.from_array(np.array([True]), "use_cache_branch"))
    onnx.save(merged, tmp_path / "merged.onnx")
    report = split_file(str(tmp_path / "merged.onnx"), str(tmp_path / "split"))
    assert report.proof is not None
    assert report.proof.passed
    assert "use_cache_branch" not in {port.label for port in report.first.inputs}
