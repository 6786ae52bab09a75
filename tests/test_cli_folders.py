"""`graphkit report` of many models: broken ones, models of one file name, and one table of all of them."""

from __future__ import annotations

import csv
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from builders import proto_of
from real_models import MODELS

Run = Callable[..., tuple[object, str, str]]
CHAIN = "(float[N, 4] x) => (float[N, 4] y) { s = Shape(x) y = Reshape(x, s) }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models of one file name."""
    for name in ("a", "b"):
        (tmp_path / "m" / name).mkdir(parents=True)
        onnx.save(proto_of(CHAIN), tmp_path / "m" / name / "model.onnx")
    return tmp_path / "m"


def test_broken_files_are_an_error_each_and_the_others_are_reported_on(run_report: Run, folder: Path) -> None:
    (folder / "a" / "broken.onnx").write_bytes((folder / "a" / "model.onnx").read_bytes()[:-9])
    (folder / "empty.onnx").write_bytes(b"")
    code, out, err = run_report("m", "--recursive", "--only", "verdict", "-f", "json")
    assert code == 2
    assert [line.partition(",")[0].partition(": is")[0] for line in err.splitlines()] == [
        "Error: m/a/broken.onnx",
        "Error: m/empty.onnx",
    ]
    made = json.loads(out)
    assert [single["model"] for single in made["models"]] == ["m/a/model.onnx", "m/b/model.onnx"]
    assert [failure["model"] for failure in made["failures"]] == ["m/a/broken.onnx", "m/empty.onnx"]


def test_outputs_of_models_of_one_file_name_have_different_names(run_report: Run, folder: Path) -> None:
    for name in ("a", "b"):
        content = lzma.decompress((MODELS / "t5-tiny" / "encoder_model.onnx.xz").read_bytes())
        (folder / name / "model.onnx").write_bytes(content)
    code, out, _ = run_report("m", "-r", "--only", "verdict")
    assert code == 0
    commands = [line for line in out.splitlines() if line.startswith("$ graphkit fold")]
    assert sorted(set(commands)) == [
        f"$ graphkit fold m/{name}/model.onnx -o {name}-model.folded.onnx" for name in ("a", "b")
    ]
    assert "-o model.folded.onnx" in run_report(folder / "a" / "model.onnx", "--only", "verdict")[1]


def test_each_table_of_csv_says_which_model_a_row_is_of(run_report: Run, folder: Path) -> None:
    assert folder.is_dir()
    _, out, _ = run_report("m", "-r", "--only", "interface,summary", "-f", "csv")
    tables = [list(csv.reader(io.StringIO(text))) for text in out.split("\n\n")]
    assert len(tables) > 2
    for header, *rows in tables:
        at = header.index("Model")
        assert {row[at] for row in rows} == {"m/a/model.onnx", "m/b/model.onnx"}
