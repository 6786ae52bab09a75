from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

import graphkit
import graphkit.passes.control_flow.merged_decoders
from graphkit.model import Model, load
from graphkit.passes.control_flow.merged_decoders import Merge, MergeDecoders, merge_decoders
from graphkit.rewrite import copy_proto

FIRST, LATER = "merged-decoder/decoder_model", "merged-decoder/decoder_with_past_model"
ModelFile = Callable[[str], Path]
Run = Callable[..., tuple[object, str, str]]


def test_both_branches_of_the_written_file_are_proven_bit_for_bit(
    run: Run, model_file: ModelFile, tmp_path: Path
) -> None:
    code, out, _ = run("merge-decoders", model_file(FIRST), model_file(LATER), "-o", tmp_path / "merged.onnx")
    assert code == 0
    text = " ".join(out.split())
    assert "decoder_model.onnx: proven bit for bit at every size (5 of 5 outputs)" in text
    assert "decoder_with_past_model.onnx: proven bit for bit at every size (3 of 3 outputs)" in text
    assert "The two decode 8 greedy steps as the merged decoder does." in text
    assert "passed through on later steps: present.0.encoder.{key|value}." in text
    assert [path.name for path in tmp_path.iterdir()] == ["merged.onnx"]


def with_other_softmax(first: Model, later: Model) -> Merge:
    made = merge_decoders(first, later)
    proto = copy_proto(made.model)
    for attribute in proto.graph.node[0].attribute:
        for node in attribute.g.node:
            if node.op_type == "Softmax" and attribute.name == "then_branch":
                node.op_type = "LogSoftmax"
    return replace(made, model=made.model.with_proto(proto))


@pytest.mark.slow
def test_a_merge_that_computes_something_else_fails_its_proof(
    run: Run, model_file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphkit.passes.control_flow.merged_decoders, "merge_decoders", with_other_softmax)
    out = tmp_path / "merged.onnx"
    code, text, err = run("merge-decoders", model_file(FIRST), model_file(LATER), "-o", out)
    assert code == 1
    assert "decoder_with_past_model.onnx:" in text
    assert err == f"The proof failed. {out} is kept, unverified.\n"


def test_weights_beside_the_models_stay_beside_the_merged_one_and_are_written_once(tmp_path: Path) -> None:
    options = graphkit.SplitOptions(verify=False)
    split = graphkit.split_file("example:merged-decoder", tmp_path / "pair", options)
    pair = [tmp_path / "pair" / name for name in ("decoder_model.onnx", "decoder_with_past_model.onnx")]
    (tmp_path / "merged").mkdir()
    output = tmp_path / "merged" / "decoder_model_merged.onnx"
    unproven = graphkit.RewriteOptions(verify=False)
    report = graphkit.edit_file(pair[0], output, MergeDecoders(load(pair[1])), unproven)
    data = {file.name: file.bytes for file in split.after}["decoder_shared.onnx_data"]
    assert report.files == ("decoder_model_merged.onnx_data", "decoder_model_merged.onnx")
    assert (tmp_path / "merged" / "decoder_model_merged.onnx_data").stat().st_size == data
    again = graphkit.split_file(tmp_path / "merged" / "decoder_model_merged.onnx", tmp_path / "again", options)
    assert [len(load(tmp_path / "again" / path.name).graph.initializers) for path in pair] == [
        len(load(path).graph.initializers) for path in pair
    ]
    assert again.condition == "use_cache_branch"


def test_no_input_is_written_over(run: Run, model_file: ModelFile, tmp_path: Path) -> None:
    paths = [tmp_path / "first.onnx", tmp_path / "later.onnx"]
    for path, name in zip(paths, (FIRST, LATER), strict=True):
        onnx.save(onnx.load(model_file(name)), path)
    for path in paths:
        before = path.read_bytes()
        assert run("merge-decoders", *paths, "-o", path, "--overwrite")[0] == 2
        assert path.read_bytes() == before


def test_a_merged_decoder_is_no_half_of_one(run: Run, model_file: ModelFile, tmp_path: Path) -> None:
    code, _, err = run("merge-decoders", "example:merged-decoder", model_file(LATER), "-o", tmp_path / "out.onnx")
    assert code == 2
    assert err.startswith("Error: example:merged-decoder: has 'use_cache_branch' already - give the decoder of the")
    assert not list(tmp_path.iterdir())
