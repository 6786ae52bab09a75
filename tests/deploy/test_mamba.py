"""A real state-space model, step by step: bundled and lowered, it gives the tokens that PyTorch gives."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

import graphkit
from graphkit.deploy.lower import lower_folder
from graphkit.deploy.make_bundle import bundle_folder
from graphkit.hosts import Host

MAMBA = Path(__file__).parent / "mamba"
KNOWN = json.loads((MAMBA / "tokens.json").read_text())
EXPORTERS = ("script", "dynamo")


@pytest.fixture(params=EXPORTERS)
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "export").mkdir()
    model = lzma.decompress((MAMBA / f"{request.param}.onnx.xz").read_bytes())
    (tmp_path / "export" / "model.onnx").write_bytes(model)
    return tmp_path / "export"


@pytest.mark.cases("script")
def test_a_bundle_gives_the_tokens_of_pytorch(export: Path, tmp_path: Path) -> None:
    report = bundle_folder(export, tmp_path / "out")
    assert report.proof is not None
    assert report.proof.findings() == ()
    bundle = graphkit.Bundle(tmp_path / "out")
    assert {state.name for state in bundle.contract.states} == {
        f"{kind}_states.{layer}" for kind in ("conv", "ssm") for layer in (0, 1)
    }
    assert all(len({*tokens}) > 4 for tokens in KNOWN["tokens"])
    for prompt, tokens in zip(KNOWN["prompts"], KNOWN["tokens"], strict=True):
        assert bundle.generate([prompt], max_new_tokens=len(tokens)) == [tokens]


@pytest.mark.cases("dynamo")
def test_a_lowered_step_gives_the_tokens_of_pytorch(export: Path, tmp_path: Path) -> None:
    report = lower_folder(export, tmp_path / "out")
    assert report.proof is not None
    assert report.proof.findings() == ()
    host = Host(tmp_path / "out")
    for prompt, tokens in zip(KNOWN["prompts"], KNOWN["tokens"], strict=True):
        assert host.generate([], prompt, len(tokens)) == tokens
