"""The proof of a lowered folder and of a bundle, at any time: as they are, changed, quantised since, recorded."""

from __future__ import annotations

import json
import math
import shutil
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import OPTIONS, decoder, made, saved
from onnx import numpy_helper
from real_models import unpacked

import graphkit
from graphkit.cli import app
from graphkit.contract import read_contract
from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.verify_folder import FolderOptions, verify_folder
from graphkit.deploy.write_proven import proof_record, record_contract
from graphkit.equivalence.stages import StageProof, prove_stages
from graphkit.errors import ModelError, UnprovenWarning, UsageError
from graphkit.hosts import Host
from graphkit.verify.deployment_proofs import LoweringProof, SourceRun


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    made(saved(decoder("causal"), folder / "bundled"), folder / "bundled.out", replace(OPTIONS, batch=1))
    return folder


@pytest.fixture
def lowered(lowered_decoder: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    export, out = lowered_decoder
    return export, Path(shutil.copytree(out, tmp_path / "out"))


@pytest.fixture
def bundled(sources: Path, tmp_path: Path) -> tuple[Path, Path]:
    return sources / "bundled", Path(shutil.copytree(sources / "bundled.out", tmp_path / "out"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def quantise(path: Path, step: float) -> None:
    """Round each weight to multiples of a step."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            array = (np.round(numpy_helper.to_array(tensor) / step) * step).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)


@pytest.mark.slow
def test_a_lowered_folder_is_proven_again_and_nothing_is_written(lowered: tuple[Path, Path]) -> None:
    before = content(lowered[1])
    proof = verify_folder(*lowered)
    assert proof.passed
    assert proof.tolerance == read_contract(lowered[1] / "contract.json").proof.tolerance
    assert content(lowered[1]) == before


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5, and what was made of it, whose cross-attention cache is proven throughout."""
    folder = tmp_path_factory.mktemp("translation")
    options = LowerOptions(src_len=6, max_cache_len=5)
    lower_folder(unpacked("t5-tiny", folder / "export"), folder / "out", options)
    return folder


def with_another_end(folder: Path) -> None:
    """Change the last row of a table, which no run may read."""
    path = folder / "encoder.inputs_embeds.bin"
    path.write_bytes(path.read_bytes()[:-4] + np.float32(0.125).tobytes())


@pytest.mark.slow
def test_a_recorded_proof_of_a_lowering_has_its_stages(translation: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(translation / "out", tmp_path / "out"))
    proven = read_contract(out / "contract.json").proof.proven
    assert set(proven) == {"cross_kv"}
    proof = verify_folder(translation / "export", out, FolderOptions(record=True))
    assert {stage.model for stage in proof.stages} == {"encoder", "cross_kv", "step"}
    assert read_contract(out / "contract.json").proof.proven == proven


@pytest.mark.parametrize("tolerance", [math.inf, math.nan])
def test_a_record_of_any_tolerance_can_be_read(tolerance: float, lowered: tuple[Path, Path]) -> None:
    contract = read_contract(lowered[1] / "contract.json")
    record = proof_record(LoweringProof(tolerance=tolerance, runs=(SourceRun(length=2),)))
    record_contract(lowered[1], contract, contract.files, record)
    assert read_contract(lowered[1] / "contract.json").proof.tolerance == sys.float_info.max


@pytest.mark.parametrize("cause", ["", "a scale is applied twice"])
def test_a_failed_proof_records_nothing_as_proven(cause: str) -> None:
    stage = StageProof("step", "folded", ("logits",), {"logits": "bit for bit"}, "")
    proof = LoweringProof(
        tolerance=1e-4, runs=(SourceRun(length=2),), causes=(cause,) if cause else (), stages=(stage,)
    )
    assert proof_record(proof).proven == ({} if cause else {"step": {"logits": "bit for bit"}})


@pytest.mark.slow
def test_a_changed_folder_has_no_proven_outputs(translation: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(translation / "out", tmp_path / "out"))
    with_another_end(out)
    proof = verify_folder(translation / "export", out, FolderOptions(record=True))
    assert proof.stages == ()
    assert any("gives another encoder.inputs_embeds.bin" in note for note in proof.notes)
    assert read_contract(out / "contract.json").proof.proven == {}


@pytest.mark.slow
def test_models_that_were_quantised_since_are_proven_by_their_tokens(lowered: tuple[Path, Path]) -> None:
    export, out = lowered
    quantise(out / "step.onnx", 1 / 64)
    with pytest.raises(ModelError, match=r"step\.onnx: it has [0-9,]+ bytes, and|its SHA-256 is not"):
        Host(out, checksums=True)
    assert not verify_folder(export, out).passed
    proof = verify_folder(export, out, FolderOptions(tokens_rate=0.5, record=True))
    assert proof.findings() == ()
    assert any("greedy tokens are those of the export" in note for note in proof.notes)
    found = read_contract(out / "contract.json").proof
    assert (found.outcome, found.tokens_rate) == ("passed", 0.5)
    assert 1e-4 < (found.tolerance or 0) == proof.tolerance < 10
    Host(out, checksums=True)
    wide = verify_folder(export, out, FolderOptions(tolerance=1e-6, tokens_rate=0.5))
    assert any("outputs differ by" in text for text in wide.findings())


def test_tokens_that_are_others_fail(lowered: tuple[Path, Path]) -> None:
    export, out = lowered
    quantise(out / "step.onnx", 2.0)  # nearly all weights are 0
    proof = verify_folder(export, out, FolderOptions(tokens_rate=1.0))
    assert any("greedy tokens are those of the export, a share of " in text for text in proof.findings())


def test_a_bundle_is_proven_and_recorded(bundled: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    export, out = bundled
    model = onnx.load(out / "decode.onnx")
    model.graph.doc_string = "word"
    onnx.save(model, out / "decode.onnx")
    with pytest.raises(ModelError, match=r"files\.decode\.onnx\.bytes is [0-9]+, and the file has [0-9]+ - .*--record"):
        verify_folder(export, out)
    app(["verify", str(export), str(out), "--record"], standalone_mode=False)
    assert "The bundle gives what the originals give: to the last bit in plain" in capsys.readouterr().out
    contract, recorded = read_bundle(out / "bundle.json"), content(out)
    assert contract.proof.passed
    assert set(contract.files) == set(recorded) - {"bundle.json"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprovenWarning)
        graphkit.Bundle(out, checksums=True)
    app(["verify", str(export), str(out)], standalone_mode=False)
    assert "The bundle gives what the originals give: to the last bit in plain" in capsys.readouterr().out
    assert content(out) == recorded


def test_a_bundle_that_was_changed_fails_and_says_so_from_then_on(bundled: tuple[Path, Path]) -> None:
    export, out = bundled
    quantise(out / "decode.onnx", 1 / 64)
    with pytest.raises(SystemExit, match="1"):
        app(["verify", str(export), str(out), "--record"], standalone_mode=False)
    proof = read_bundle(out / "bundle.json").proof
    assert proof.outcome == "failed"
    assert "differ by" in proof.reason
    with pytest.warns(UnprovenWarning, match="its proof failed: .* differ by "):
        graphkit.Bundle(out)


@pytest.mark.slow
def test_tokens_of_a_bundle(bundled: tuple[Path, Path]) -> None:
    export, out = bundled
    quantise(out / "decode.onnx", 1 / 256)
    assert verify_folder(export, out, FolderOptions(tokens_rate=0.5)).findings() == ()
    quantise(out / "decode.onnx", 1.0)
    (fault,) = (
        text for text in verify_folder(export, out, FolderOptions(tokens_rate=1.0)).findings() if "share" in text
    )
    assert fault.startswith("greedy tokens: ")


@pytest.mark.slow
def test_texts_for_people_may_be_others_and_nothing_else(bundled: tuple[Path, Path]) -> None:
    export, out = bundled
    plain = json.loads((out / "bundle.json").read_text())
    plain["methods"][0]["inputs"][0]["meaning"] = plain["loop"][0] = "what somebody wrote"
    (out / "bundle.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match=r"it was changed after it was written: .* verify EXPORT .* --record` seals"):
        graphkit.Bundle(out)
    assert verify_folder(export, out, FolderOptions(record=True)).passed
    assert graphkit.Bundle(out).contract.loop[0] == "what somebody wrote"
    plain["tokens"]["end"] = 3
    (out / "bundle.json").write_text(json.dumps(plain))
    text = "tokens.end is there, and the export gives none - make the folder again with `graphkit bundle`"
    for options in (FolderOptions(), FolderOptions(record=True), FolderOptions(tokens_rate=0.1)):
        with pytest.raises(ModelError, match=rf"bundle\.json: {text}"):
            verify_folder(export, out, options)


@pytest.mark.slow
def test_a_guide_may_be_another_text(lowered: tuple[Path, Path]) -> None:
    export, out = lowered
    with (out / "HOST.md").open("a") as file:
        file.write("A note of ours.\n")
    assert verify_folder(export, out).passed
    (out / "HOST.md").unlink()
    assert verify_folder(export, out).passed


def test_a_configuration_that_was_changed_since_is_named(bundled: tuple[Path, Path], tmp_path: Path) -> None:
    export, out = shutil.copytree(bundled[0], tmp_path / "export"), bundled[1]
    (export / "generation_config.json").write_text('{"eos_token_id": 7, "suppress_tokens": [1]}')
    with pytest.raises(ModelError, match=r"bundle\.json: ends has 0 parts, and the export gives 1 - make the folder"):
        verify_folder(export, out)


def test_what_cannot_be_proven_is_one_error(bundled: tuple[Path, Path]) -> None:
    export, out = bundled
    with pytest.raises(UsageError, match=r"has neither contract.json nor bundle.json - name what graphkit lower"):
        verify_folder(export, export)
    with pytest.raises(UsageError, match="--tokens-rate and --record are for what lower or bundle wrote"):
        app(["verify", str(export / "model.onnx"), str(export / "model.onnx"), "--record"], standalone_mode=False)
    with pytest.raises(UsageError, match="--dim, --input, --range, --part and --map apply to two models only"):
        app(["verify", str(export), str(out), "--part"], standalone_mode=False)
    (out / "decode.onnx").unlink()
    with pytest.raises(ModelError, match=r"decode.onnx: it is missing - copy it from where the folder was made"):
        verify_folder(export, out)


def test_a_described_bundle_is_proven(tmp_path: Path) -> None:
    source = saved(decoder("causal"), tmp_path / "source", "draft")
    (source / "bundle.toml").write_text('[[method]]\nname = "draft"\nmodels = ["draft.onnx"]\ncache = "draft"\n')
    out = made(source, tmp_path / "out", replace(OPTIONS, batch=1))
    assert verify_folder(source, out, FolderOptions(record=True)).passed
    assert read_bundle(out / "bundle.json").proof.passed
    with pytest.raises(UsageError, match=r"its methods choose no tokens - give --tolerance alone"):
        verify_folder(source, out, FolderOptions(tokens_rate=0.9))


@pytest.mark.slow
def test_a_machine_that_has_no_time_for_normal_forms_refuses_no_record(
    lowered: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here, nor where the folder was made."""
    export, out = lowered
    recorded = read_contract(out / "contract.json").proof.proven
    with monkeypatch.context() as slow:
        slow.setattr("graphkit.deploy.lower.prove_stages", partial(prove_stages, seconds=0.0))
        assert verify_folder(export, out).passed
        verify_folder(export, out, FolderOptions(record=True))
    assert read_contract(out / "contract.json").proof.proven == {"not compared": {}} != recorded
    assert verify_folder(export, out).passed
