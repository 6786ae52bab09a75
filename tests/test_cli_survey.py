from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import pytest
from builders import proto_of

from graphkit.cli import main
from graphkit.examples import resolve
from graphkit.workflows.output_schemas import schema_of

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["graphkit", "survey", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            return (stop.code, *capsys.readouterr())
        return (0, *capsys.readouterr())

    return call


def test_a_survey_and_its_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for name in ("a", "<b>"):
        onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"), tmp_path / "m" / f"{name}.onnx")
    (tmp_path / "m" / "broken.onnx").write_bytes(b"\x08")
    code, out, err = run("m", "-o", "t.parquet", "--jobs", "1")
    assert (code, err) == (0, "")
    assert out.startswith("3 models in t.parquet, 1 error, ")
    assert ", 2 of them" not in out
    code, out, _ = run("--show", "t.parquet", "--rows", "2")
    lines = out.splitlines()
    assert (code, lines[2]) == (0, "3 of 3 models, 1 error; 2 shown.")
    assert lines[6].startswith("broken.onnx")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "$ graphkit report 'm/<b>.onnx'"  # what is an error has no report
    assert run("--show", "t.parquet", "--where", "error")[1].splitlines()[-1] != lines[-1]
    assert run("--show", "t.parquet", "--where", "path~<b>", "-o", "page.html") == (0, "Wrote page.html.\n", "")
    assert "m/&lt;b&gt;.onnx" in (tmp_path / "page.html").read_text()
    assert run("--show", "t.parquet", "--sort", "path", "-o", "t.json")[0] == 0
    plain = json.loads((tmp_path / "t.json").read_text())
    jsonschema.validate(plain, schema_of("survey-table"))
    assert [row[0] for row in plain["rows"]] == ["m/<b>.onnx", "m/a.onnx", "m/broken.onnx"]


def test_a_survey_ends_with_the_kinds_of_findings_and_the_next_command(run: Run, tmp_path: Path) -> None:
    for name in ("merged-decoder", "decode"):
        shutil.copy(resolve(f"example:{name}"), tmp_path / f"{name}.onnx")
    code, out, _ = run("merged-decoder.onnx", "decode.onnx", "-o", "my table.parquet", "--jobs", "1")
    assert code == 0
    assert out.splitlines()[1:] == [
        "! 1 of 2: merged If crashes or slows runtimes (merged-if)",
        "! 1 of 2: the encoder KV comes back empty (zero-length-kv)",
        "! 1 of 2: shapes not known before a run (unknown-shapes)",
        "- 2 of 2: shapes computed at run time (shape-chains)",
        "- 1 of 2: fails above a size (size-limit)",
        "- 1 of 2: fails where dims do not fit together (dims-apart)",
        "$ graphkit survey --show 'my table.parquet'",
        "$ graphkit survey --show 'my table.parquet' --where merged-if",
    ]
    shown = run("--show", "my table.parquet", "--where", "merged-if")[1].splitlines()
    assert shown[2] == "1 of 2 models, 0 errors; 1 shown."
    assert shown[4].split() == ["path", "role", "nodes", "faults", "notes", "merged_if"]
    assert run("--show", "my table.parquet", "-o", "t.csv")[0] == 0
    kinds = [line.split(",")[2] for line in (tmp_path / "t.csv").read_text().splitlines()]
    assert kinds[:2] == ["kinds", "merged-if zero-length-kv unknown-shapes shape-chains size-limit"]
    _, out, _ = run("decode.onnx", "-o", "other.parquet", "--jobs", "1", "--target", "mt8371")
    assert "! 1 of 1: mt8371 refuses nodes (blockers_mt8371)" in out.splitlines()
    assert "1 of 1 model, " in run("--show", "other.parquet", "--where", "blockers_mt8371")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "t.parquet"], "no models to survey - name a folder, a pattern, or a list of models"),
        (["x.onnx"], "the table: is no Parquet file - name the table with -o TABLE.parquet"),
        (["x.onnx", "-o", "t.csv"], "t.csv: is no Parquet file - name the table with -o TABLE.parquet"),
        (["nowhere", "-o", "t.parquet"], "nowhere: No such file or folder - check the path"),
        (["x.onnx", "-o", "t.parquet", "--sort", "path"], "--where and --sort are for a table - name one with --show"),
        (["x.onnx", "-o", "no/t.parquet"], "no/t.parquet: cannot be written: No such file or directory - name another"),
        (["x.onnx", "-o", "t.parquet", "--target", "etos"], "no target 'etos' - did you mean"),
        (["--show", "gone.parquet"], "gone.parquet: cannot be read as a table: "),
        (["--show", "\udcff.parquet"], "\\udcff.parquet: cannot be read as a table: "),
        (
            ["x.onnx", "-o", "t.parquet", "--scheduler", "tcp://a:1", "--dask"],
            "--scheduler has workers already - leave",
        ),
        (
            ["x.onnx", "-o", "t.parquet", "--scheduler", "tcp://a:1", "--jobs", "2"],
            "--scheduler has workers already - ",
        ),
        (["x.onnx", "-o", "nothing://t.parquet"], "nothing://t.parquet: nothing is known of such URLs - check it"),
        (["m", "--show", "t.parquet"], "m: --show shows a table, and reads no models - leave it out, or the option"),
        (["--show", "t.parquet", "-o", "x.sarif"], "x.sarif: a sarif file is for `graphkit report` - take another"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"Error: {says}"), err


def test_without_pyarrow(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert run("x.onnx", "-o", "t.parquet")[::2] == (
        2,
        "Error: a survey writes Parquet, which needs pyarrow - pip install 'onnx-graphkit[survey]'\n",
    )


def test_without_distributed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run("x.onnx", "-o", "t.parquet", "--dask")[::2] == (
        2,
        "Error: --scheduler and --dask need distributed - pip install 'onnx-graphkit[fleet]'\n",
    )


@pytest.mark.slow
def test_the_page_of_a_table_leads_to_reports(run: Run, tmp_path: Path) -> None:
    onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"), tmp_path / "a.onnx")
    arguments = ("a.onnx", "-o", "t.parquet", "--jobs", "1", "--reports")
    assert run(*arguments)[1].startswith("1 model in t.parquet, 0 errors, ")
    assert run("--show", "t.parquet", "-o", "t.html")[0] == 0
    (report,) = (tmp_path / "t.reports").iterdir()
    assert f'<a href="t.reports/{report.name}">a.onnx</a>' in (tmp_path / "t.html").read_text()
    assert "a.onnx" in report.read_text()
    assert ", 1 of them from an earlier run, " in run(*arguments)[1]
