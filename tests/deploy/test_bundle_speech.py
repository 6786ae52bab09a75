"""Bundles of sound: the mask of the encoder, in frames, is that of the decoder too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from speech import FEATURES, normalized_over_windows_of, speech

from graphkit.contract.bundle_contract import LegalSize
from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.hosts.bundle_host import Bundle
from graphkit.model import load
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.oracle import Oracle

OPTIONS = BundleOptions(max_cache=6, max_source=9, batch=2)
FIRST = "decoder_model.onnx", "decoder_with_past_model.onnx"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The export, and a bundle of it without a proof."""
    folder = tmp_path_factory.mktemp("speech")
    source = speech(folder / "export")
    bundle_folder(source, folder / "bundle", BundleOptions(max_cache=6, max_source=9, batch=2, verify=False))
    return source, folder / "bundle"


def originals(source: Path) -> Originals:
    first, step = (load(source / name) for name in FIRST)
    return Originals(load(source / "encoder_model.onnx"), first, step)


def test_a_bundle_of_sound_is_proven(tmp_path: Path) -> None:
    report = bundle_folder(speech(tmp_path / "export"), tmp_path / "bundle", OPTIONS)
    assert report.findings() == ()
    assert report.proof is not None
    assert {run.padded for run in report.proof.runs} == {True, False}


def test_the_mask_is_kept_in_frames(folders: tuple[Path, Path]) -> None:
    contract = json.loads((folders[1] / "bundle.json").read_text())
    shapes = {state["name"]: state["shape"] for state in contract["states"]}
    assert shapes["encoder_attention_mask"] == [2, 9]
    assert shapes["past_key_values.0.encoder.key"] == [2, 2, 5, 4]
    encode, step = (next(m for m in contract["methods"] if m["name"] == name) for name in ("encode", "step"))
    fed = {port["name"]: port["shape"] for port in encode["inputs"] if port["source"]["kind"] == "user"}
    assert fed == {"input_features": ["batch", "source", FEATURES], "attention_mask": ["batch", "source"]}
    assert next(p["shape"] for p in step["inputs"] if p["name"] == "encoder_attention_mask") == ["batch", "source"]


def test_a_padded_batch_gives_what_the_export_gives(folders: tuple[Path, Path]) -> None:
    """The runtime of the export passes the mask of frames to the decoder, as the oracle does here by hand."""
    rng = np.random.default_rng(0)
    features = rng.normal(0, 1, (2, 9, FEATURES)).astype(np.float32)
    mask = np.ones((2, 9), np.int64)
    mask[1, 5:] = 0
    oracle, bundle = Oracle(originals(folders[0])), Bundle(folders[1])
    inputs = {"input_features": features, "attention_mask": mask}
    tokens = np.array([[3], [4]])
    expected = oracle.start(tokens, np.ones_like(tokens), inputs)
    actual = bundle.encode(tokens, input_features=features, attention_mask=mask)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(bundle.step(tokens + 1), oracle.step(tokens + 1), atol=1e-5)
    whole = oracle.start(tokens, np.ones_like(tokens), {**inputs, "attention_mask": np.ones_like(mask)})
    assert np.abs(whole - expected)[1].max() > 0.01
    assert np.abs(whole - expected)[0].max() == 0


def test_a_mask_as_long_as_the_states_fails_the_proof(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """The decoder of `encode` gets ones for the states, and so does the state, as if all of a sound counted."""
    source, bundle = folders
    for path in bundle.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model = onnx.load(tmp_path / "encode.onnx")
    ones = helper.make_node("Max", ["attention_mask", "unit_mask"], ["all_ones"])
    for node in model.graph.node:
        if any(node.output[0].startswith(name) for name in ("every_other", "encoder_attention_mask")):
            node.input[0] = "all_ones"
    model.graph.node.insert(0, ones)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1), np.int64), "unit_mask"))
    onnx.save(model, tmp_path / "encode.onnx")
    proof = verify_bundle(originals(source), tmp_path, exact=False)
    assert not proof.passed
    assert all(run.padded for run in proof.runs if run.failure)


def test_a_decoder_that_needs_a_mask_as_long_as_the_states_is_declined(tmp_path: Path) -> None:
    changes = {"half_mask = Slice (every_other, zero, states, one)": "half_mask = Identity (encoder_attention_mask)"}
    source = speech(tmp_path / "export", changes)
    with pytest.raises(UsageError) as caught:
        bundle_folder(source, tmp_path / "bundle", OPTIONS)
    assert str(caught.value).startswith(
        "decoder_model.onnx: its 'encoder_attention_mask' must be as long as the output of encoder_model.onnx, whose "
        "own mask is longer ("
    )


@pytest.mark.slow
def test_a_source_at_which_the_export_does_not_run_is_one_clear_error(tmp_path: Path) -> None:
    """Its windows of 4 states need 7 frames: the proof keeps to such, the contract says so, and so does the host."""
    source, folder = speech(tmp_path / "export", normalized_over_windows_of(4)), tmp_path / "bundle"
    assert bundle_folder(source, folder, replace(OPTIONS, batch=1)).findings() == ()
    contract = json.loads((folder / "bundle.json").read_text())
    assert contract["legal"] == {
        "source": {
            "step": 1,
            "least": 7,
            "most": None,
            "less": 0,
            "more": 0,
            "shortest": 1,
            "short": 0,
            "words": "7 or more",
        }
    }
    assert contract["loop"][-1] == "Give sizes at which the export runs: source is 7 or more."
    bundle, sound = Bundle(folder), np.zeros((1, 9, FEATURES), np.float32)
    bundle.encode(3, input_features=sound[:, :7])
    with pytest.raises(UsageError, match=r"^'input_features' has 6 for source, at which .* run: source is 7 or more$"):
        bundle.encode(3, input_features=sound[:, :6])
    assert bundle.length == 1  # the state is as before
    (folder / "bundle.json").write_text(json.dumps({name: part for name, part in contract.items() if name != "legal"}))
    assert read_bundle(folder / "bundle.json", altered=True).legal == {}  # as bundles say that were written before


@pytest.mark.parametrize("batch", [1, 2])
def test_a_longest_source_that_is_too_short_is_refused_with_one_that_is_not(batch: int, tmp_path: Path) -> None:
    source = speech(tmp_path / "export", normalized_over_windows_of(4))
    reason = r"^encoder_model.onnx does not run with a source of 6, nor of less: .* - legal lengths: 7 or more; "
    with pytest.raises(UsageError, match=f"{reason}give --max-source 7 or more$"):
        bundle_folder(source, tmp_path / "bundle", BundleOptions(max_source=6, batch=batch))
    assert not (tmp_path / "bundle").exists()


def test_legal_sizes_are_multiples_and_what_is_near_them() -> None:
    legal = LegalSize(8, 16, 32, 1, 2, 1, 0, "multiples of 8 from 16 to 32, or up to 1 less or 2 more")
    assert [size for size in range(1, 50) if legal.allows(size)] == [15, 16, 17, 18, 23, 24, 25, 26, 31, 32, 33, 34]


def test_legal_sizes_are_multiples_and_those_within_one() -> None:
    legal = LegalSize(8, 8, None, 0, 0, 4, 8, "multiples of 8 from 8, or any from 4 to 8")
    assert [size for size in range(1, 30) if legal.allows(size)] == [4, 5, 6, 7, 8, 16, 24]
    assert [legal.nearest(size) for size in (1, 5, 8, 9, 23, 24)] == [4, 5, 8, 8, 16, 24]


def test_the_nearest_of_multiples_is_below_or_the_least() -> None:
    legal = LegalSize(8, 16, 32, 1, 2, 1, 0, "multiples of 8 from 16 to 32, or up to 1 less or 2 more")
    assert [legal.nearest(size) for size in (0, 15, 18, 20, 25)] == [15, 15, 18, 16, 25]
