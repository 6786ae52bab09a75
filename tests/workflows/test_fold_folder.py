"""A folder of models is folded as one: weights that models share stay shared, and all files are written or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from real_models import export_cases, unpacked_export

import graphkit
import graphkit.workflows.fold_file
from graphkit.errors import OutputError, UsageError
from graphkit.examples import resolve
from graphkit.model import load
from graphkit.rewrite.base import Outcome, copy_proto
from graphkit.shapes import DimSpec
from graphkit.workflows.fold_file import FoldOptions, fold_folder

Run = Callable[..., tuple[object, str, str]]
UNPROVEN = FoldOptions(verify=False)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halves") / "pair"
    graphkit.split_file("example:merged-decoder", folder, graphkit.SplitOptions(verify=False))
    return folder


@pytest.fixture
def pair(halves: Path, tmp_path: Path) -> Path:
    """The halves of a merged decoder, over one data file."""
    return Path(shutil.copytree(halves, tmp_path / "pair"))


@pytest.mark.slow
def test_a_pair_keeps_its_weights_in_one_file_that_has_each_once(pair: Path, tmp_path: Path) -> None:
    report = fold_folder(pair, tmp_path / "out")
    sizes = {file.name: file.bytes for file in report.after}
    assert sizes == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert sizes["shared.onnx_data"] == (pair / "decoder_shared.onnx_data").stat().st_size
    assert [model.proof is not None and model.proof.passed for model in report.models] == [True, True]
    assert report.findings() == ()
    together = graphkit.compare(sorted((tmp_path / "out").glob("*.onnx")))  # what both read counts once
    alone = [row.weight_bytes for row in together.rows]
    assert 0.5 * min(alone) < together.shared_bytes <= min(alone)
    assert graphkit.compare([load(tmp_path / "out" / "decoder_model.onnx"), load("example:encoder")]).shared_bytes == 0
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        assert len(load(tmp_path / "out" / name).graph.nodes) < len(load(pair / name).graph.nodes)
    assert graphkit.verify_rewrite(pair / name, tmp_path / "out" / name).passed


def test_configurations_and_tokenizer_come_along_through_split_and_fold(tmp_path: Path) -> None:
    export = tmp_path / "export" / "onnx"
    export.mkdir(parents=True)
    merged = export / "decoder_model_merged.onnx"
    merged.write_bytes(Path(resolve("example:merged-decoder")).read_bytes())
    (export.parent / "tokenizer.json").write_text("{}")  # where Hugging Face has it
    (export / "config.json").write_text('{"pad_token_id": 3}')
    (export / "README.md").write_text("not copied")
    (export / "encoder_model.onnx").write_bytes(Path(resolve("example:encoder")).read_bytes())
    pair = tmp_path / "pair"
    pair.mkdir()
    (pair / "config.json").write_text("{}")  # the user's own, which stays
    report = graphkit.split_file(merged, pair, graphkit.SplitOptions(verify=False))
    assert report.copied == ("tokenizer.json",)
    said = " ".join(report.to_text().split())
    assert "Wrote tokenizer.json too, copied from beside the source. Its encoder lies beside the source: copy " in said
    assert report.encoder == "encoder_model.onnx"
    assert (pair / "config.json").read_text() == "{}"
    folded = fold_folder(pair, tmp_path / "out", UNPROVEN)
    assert folded.copied == ("config.json", "tokenizer.json")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["config.json", "tokenizer.json", *(file.name for file in folded.after)]
    )


def test_models_that_an_exporter_wrote_with_weights_of_their_own_share_them_and_give_the_tokens_of_pytorch(
    tmp_path: Path,
) -> None:
    export = unpacked_export("llama-static", tmp_path / "export")
    report = fold_folder(export, tmp_path / "out", UNPROVEN)
    data, *_ = report.after
    assert data.name == "shared.onnx_data"
    assert (data.bytes or 0) < 1.1 * max(
        (export / f"{name}.onnx.data").stat().st_size for name in ("prefill", "decode")
    )
    assert (tmp_path / "out" / "config.json").read_bytes() == (export / "config.json").read_bytes()
    graphkit.bundle_folder(tmp_path / "out", tmp_path / "bundle", graphkit.BundleOptions(batch=2, verify=False))
    bundle = graphkit.Bundle(tmp_path / "bundle", unchecked=True)
    case = next(case for case in export_cases(export) if not case["padded"])
    given = bundle.generate(case["inputs"]["input_ids"], max_new_tokens=case["tokens"].shape[1])
    for row, expected in zip(given, case["tokens"], strict=True):
        np.testing.assert_array_equal(row, expected[: len(row)])


def test_a_symbol_of_one_half_is_frozen_there_and_one_of_neither_is_an_error(pair: Path, tmp_path: Path) -> None:
    spec = DimSpec.of({"past_decoder_sequence_length": 3})
    report = fold_folder(pair, tmp_path / "out", FoldOptions(spec=spec, verify=False))
    assert [len(model.frozen) for model in report.models] == [0, 1]
    with pytest.raises(UsageError, match="no input has a dim 'past_decoder'"):
        fold_folder(pair, tmp_path / "other", FoldOptions(spec=DimSpec.of({"past_decoder": 3})))
    assert not (tmp_path / "other").exists()


def test_a_model_whose_suffix_is_in_capitals_is_folded_too(pair: Path, tmp_path: Path) -> None:
    (pair / "decoder_model.onnx").rename(pair / "B.ONNX")
    graphkit.fold_folder(pair, tmp_path / "out", graphkit.FoldOptions(verify=False))
    assert (tmp_path / "out" / "B.ONNX").is_file()


def test_where_one_model_lacks_its_weights_none_is_written(tmp_path: Path) -> None:
    export = unpacked_export("llama-static", tmp_path / "export")
    (export / "prefill.onnx.data").unlink()
    with pytest.raises(graphkit.ModelError, match=r"prefill\.onnx"):
        fold_folder(export, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_are_never_replaced_and_outputs_only_where_that_is_asked_for(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is an input, which is never overwritten"):
        fold_folder(pair, pair, FoldOptions(overwrite=True))
    fold_folder(pair, tmp_path / "out", UNPROVEN)
    with pytest.raises(OutputError, match="exists"):
        fold_folder(pair, tmp_path / "out", UNPROVEN)
    fold_folder(pair, tmp_path / "out", FoldOptions(verify=False, overwrite=True))


def test_a_wrong_fold_of_one_model_fails_the_command_and_is_named(
    pair: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = graphkit.workflows.fold_file.fold

    def break_second(model: graphkit.Model, spec: DimSpec, options: FoldOptions) -> Outcome:
        outcome = fold(model, spec, options)
        if "past" not in model.name:
            return outcome
        proto = copy_proto(outcome.model)
        next(node for node in proto.graph.node if node.op_type == "Softmax").op_type = "LogSoftmax"
        return Outcome(outcome.model.with_proto(proto))

    monkeypatch.setattr(graphkit.workflows.fold_file, "fold", break_second)
    code, out, err = run("fold", pair, "-o", tmp_path / "out")
    assert code == 1
    assert "! decoder_with_past_model.onnx: " in out
    assert "! decoder_model.onnx: " not in out
    assert err == f"The proof failed. {tmp_path / 'out'} is kept, unverified.\n"


def test_a_folder_without_models_is_an_error(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    assert run("fold", tmp_path / "empty", "-o", tmp_path / "out")[0] == 2
    assert "it holds no .onnx file" in run("fold", tmp_path / "empty", "-o", tmp_path / "out")[2]
