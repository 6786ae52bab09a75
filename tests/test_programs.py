"""The programs of `examples` run, and print what they are to print; `mypy` checks their types."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphkit.passes.registry import parse_pipeline

FOLDER = Path(__file__).parent.parent / "examples"
CACHE = """\
past_key_values.0.decoder.key <- present.0.decoder.key: decoder KV: changes with every step, feed it back
past_key_values.0.decoder.value <- present.0.decoder.value: decoder KV: changes with every step, feed it back
past_key_values.0.encoder.key <- present.0.encoder.key: encoder KV: constant after step 1; the cache branch gives it \
back empty, so carry over that of step 1
past_key_values.0.encoder.value <- present.0.encoder.value: encoder KV: constant after step 1; the cache branch gives \
it back empty, so carry over that of step 1
128 bytes for each token, float32, [batch_size, 2, past_decoder_sequence_length, 8]
"""
SHAPE = """\
axis 0: batch_size, of batch_size
axis 1: sequence_length, of sequence_length
axis 2: 16, of nothing
input_ids: [batch_size, sequence_length], an input
"""


def program(name: str, *arguments: object) -> Any:
    """Run the `main` of a program."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"](*map(str, arguments))


def test_every_program_is_listed_and_short() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    programs = sorted(FOLDER.glob("*.py"))
    assert [path.name for path in programs if f"({path.name})" not in listed] == []
    assert len(programs) == 5
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in programs) < 50


def test_the_kv_cache_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    program("list_kv_cache", "example:merged-decoder")
    assert capsys.readouterr().out == CACHE


def test_shape_operators_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    program("count_shape_ops", "example:causal-attention")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Shape              17    1", "Gather             19    2"]
    assert lines[-1] == "64 of 213 nodes computed shapes, 3 of 80 do now"


def test_a_shape_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    program("explain_shape", "example:causal-attention", "/Gather_1_output_0")
    assert capsys.readouterr().out.startswith(SHAPE)


def test_a_pass_of_ones_own_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program("own_pass", "example:causal-attention", tmp_path / "out.onnx")
    shown = " ".join(capsys.readouterr().out.split())
    assert "div-to-mul 4 Divs spelled as Mul" in shown
    assert "tolerance 1e-06 of the largest magnitude" in shown
    assert "Div" not in {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}


def test_the_pass_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    (step,) = parse_pipeline("own_pass:DivToMul")
    assert step.name() == "div-to-mul"


@pytest.mark.slow
def test_a_merged_decoder_is_split_and_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program("split_and_generate", "example:merged-decoder", tmp_path, 5, 7, 2)
    assert capsys.readouterr().out == (
        "wrote decoder_shared.onnx_data decoder_model.onnx decoder_with_past_model.onnx\n[[59 59 34 34 34 37 33 33]]\n"
    )
