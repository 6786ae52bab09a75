"""Decoder-only exports in two files, one for the prompt and one for a token at a time: tokens are those of PyTorch."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.hosts.bundle_host import Bundle
from graphkit.hosts.numpy_host import Host
from graphkit.verify.bundle_verifier import verify_bundle

PAIR = Path(__file__).parent / "pair"
CASES = json.loads((PAIR / "tokens.json").read_text())
SLOTS = 32


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    for path in PAIR.glob("*.xz"):
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


@pytest.mark.slow
def test_a_bundle_gives_the_tokens_of_pytorch(export: Path, tmp_path: Path) -> None:
    report = bundle_folder(export, tmp_path / "out", BundleOptions(max_cache=SLOTS))
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert report.proof.passed
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} >= {"prefill.onnx", "step.onnx"}
    for case in CASES:
        bundle, tokens = Bundle(tmp_path / "out"), list[int]()
        ids = np.array([case["prompt"]])
        logits = bundle.run("prefill", input_ids=ids, attention_mask=np.ones_like(ids))["logits"]
        for _ in case["tokens"]:
            tokens.append(int(logits[0, -1].argmax()))
            ids = np.array([tokens[-1:]])
            logits = bundle.run("step", input_ids=ids, attention_mask=np.ones_like(ids))["logits"]
        assert tokens == case["tokens"]


@pytest.mark.slow
def test_lowered_models_give_the_tokens_of_pytorch(export: Path, tmp_path: Path) -> None:
    report = lower_folder(export, tmp_path / "out", LowerOptions(max_cache_len=SLOTS))
    assert report.proof is not None
    assert report.proof.passed
    for case in CASES:
        host, tokens = Host(tmp_path / "out"), list[int]()
        host.start([])
        for token in case["prompt"]:
            logits = host.step([token])
        for _ in case["tokens"]:
            tokens.append(int(np.asarray(logits).reshape(-1).argmax()))
            logits = host.step(tokens[-1:])
        assert tokens == case["tokens"]


@pytest.mark.slow
def test_a_wrong_method_is_caught(export: Path, tmp_path: Path) -> None:
    """A scale of a layer norm, in one of the two models alone."""
    bundle_folder(export, tmp_path / "out", BundleOptions(max_cache=SLOTS, verify=False))
    originals = find_pipeline(export).originals
    for file in ("prefill.onnx", "step.onnx"):
        folder = Path(shutil.copytree(tmp_path / "out", tmp_path / file))
        proto = onnx.load(folder / file, load_external_data=True)
        tensor = next(each for each in proto.graph.initializer if list(each.dims) == [16])
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.1) + np.float32(0.1), tensor.name)
        )
        onnx.save(proto, folder / file)
        assert not verify_bundle(originals, folder, exact=False).passed


@pytest.mark.slow
def test_without_a_model_for_the_prompt_steps_read_it(export: Path, tmp_path: Path) -> None:
    bundle_folder(export, tmp_path / "pair", BundleOptions(max_cache=SLOTS, verify=False))
    (export / "decoder_model.onnx").unlink()
    report = bundle_folder(export, tmp_path / "alone", BundleOptions(max_cache=SLOTS))
    assert report.proof is not None
    assert report.proof.passed
    pair, alone = (Bundle(tmp_path / name, unchecked=True) for name in ("pair", "alone"))
    assert alone.generate([[3, 1, 2]], max_new_tokens=3) == pair.generate([[3, 1, 2]], max_new_tokens=3)
