"""Every command that prints a report or a text also writes it to a file, in the format that the suffix says."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import onnx
import onnx.parser
import pytest

import graphkit
from graphkit.cli.commands import every_command
from graphkit.cli.list_commands import schema
from graphkit.cli.output import put_list
from graphkit.examples import resolve
from graphkit.workflows.output_schemas import SCHEMAS

Run = Callable[..., tuple[object, str, str]]
EXAMPLE = "example:causal-attention"


def test_every_command_writes_a_file() -> None:
    for command in every_command().values():
        options = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
        if command.name in ("completion", "view"):  # which go into a shell, and into a browser
            continue
        assert "--output" in options, command.name
        prints_a_result = "--format" in options
        output = next(option for option in command.params if option.name in ("output", "report_file"))
        is_a_model = output.name == "output" and output.required
        assert ("--report" in options) == (prints_a_result and is_a_model) or command.name in ("report", "split-merged")


STARTS = {"out.md": "# ", "out.html": "<!DOCTYPE html>", "out.json": "{", "out.txt": "", "out": ""}


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("arguments", [("shapes", EXAMPLE), ("targets",), ("shapes", EXAMPLE, "--why", "logits")])
def test_the_suffix_of_the_file_says_the_format(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    assert run(*arguments, "-o", tmp_path / name)[::2] == (0, "")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(STARTS[name])


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "fold-shapes"), ("examples",)])
def test_a_text_is_written_as_it_is_printed_and_the_command_says_where(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    printed = run(*arguments)[1]
    assert run(*arguments, "-o", tmp_path / "out.txt") == (0, f"Wrote {tmp_path / 'out.txt'}.\n", "")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == printed


def test_the_report_of_a_fold_goes_beside_the_model(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx", tmp_path / "report.json"
    assert run("fold", EXAMPLE, "-o", out[0], "--no-verify", "--report", out[1])[::2] == (0, "")
    assert json.loads(out[1].read_text(encoding="utf-8"))["files"][-1] == "out.onnx"


def test_the_format_goes_before_the_suffix(run: Run, tmp_path: Path) -> None:
    run("targets", "-o", tmp_path / "out.md", "-f", "json")
    assert (tmp_path / "out.md").read_text(encoding="utf-8").startswith("{")


def test_a_report_that_fails_its_proof_is_written_all_the_same(run: Run, tmp_path: Path) -> None:
    for name in ("Neg", "Relu"):
        text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) {{ y = {name} (x) }}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    code, out, _ = run("verify", tmp_path / "Neg.onnx", tmp_path / "Relu.onnx", "-o", tmp_path / "proof.md")
    assert (code, out.splitlines()[-1]) == (1, f"Wrote {tmp_path / 'proof.md'}.")
    assert (tmp_path / "proof.md").read_text(encoding="utf-8").startswith("# ")


def test_a_model_that_is_named_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(resolve(EXAMPLE), model)
    before = model.read_bytes()
    folded = tmp_path / "folded.onnx"
    code, _, error = run("shapes", model, "-o", model)
    assert (code, error) == (2, f"Error: {model}: is an input, which is never overwritten - name another output\n")
    code, _, error = run("fold", model, "--no-verify", "-o", folded, "--report", folded, "-f", "json")
    assert (code, error) == (2, f"Error: {folded}: is what the command makes - name another file for the report\n")
    assert model.read_bytes() == before
    assert not folded.exists()


def test_where_a_report_cannot_go_is_said_before_any_work(run: Run, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.md"
    report.write_text("from before")
    for file, text in (
        (tmp_path / "none" / "a.md", f"{tmp_path / 'none'}: is not a folder - create it, or name another file for the"),
        (report, f"{report}: exists - name another file for the report, or replace it with --overwrite"),
        (
            tmp_path,
            f"{tmp_path}: '{tmp_path.suffix}' says no format" if tmp_path.suffix else f"{tmp_path}: is a folder",
        ),
        (
            tmp_path / "a.pdf",
            "'.pdf' says no format - take one of .txt, .md, .json, .html, .htm, .csv, .dot, .gv, .mmd, .sarif, ",
        ),
    ):
        code, printed, error = run("fold", EXAMPLE, "-o", out, "--no-verify", "--report", file)
        assert (code, printed) == (2, "")
        assert text in error
        assert not out.exists()
    assert report.read_text() == "from before"
    assert run("fold", EXAMPLE, "-o", out, "--no-verify", "--report", report, "--overwrite")[::2] == (0, "")
    assert report.read_text().startswith("# ")
    assert run("report", EXAMPLE, "-o", tmp_path / "a.pdf")[0] == 2


def test_an_earlier_report_is_replaced_unless_it_is_an_input(run: Run, tmp_path: Path) -> None:
    report, baseline = tmp_path / "report.json", tmp_path / "baseline.json"
    for _ in range(2):
        assert run("shapes", EXAMPLE, "-o", report)[::2] == (0, "")
        assert run("report", EXAMPLE, "--only", "verdict", "-o", baseline)[::2] == (0, "")


def test_a_baseline_and_a_target_are_inputs(run: Run, tmp_path: Path) -> None:
    baseline, target = tmp_path / "baseline.json", tmp_path / "own.toml"
    assert run("report", EXAMPLE, "--only", "verdict", "-o", baseline)[0] == 0
    shutil.copy(Path(graphkit.__file__).parent / "targets" / "rk3588.toml", target)
    for option, file in (("--baseline", baseline), ("--target", target)):
        before = file.read_bytes()
        code, _, error = run("report", EXAMPLE, "--only", "verdict", option, file, "-o", file)
        assert (code, error) == (2, f"Error: {file}: is an input, which is never overwritten - name another output\n")
        assert file.read_bytes() == before


def test_a_drawing_is_for_report(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "out.dot"
    assert run("targets", "-o", file) == (
        2,
        "",
        f"Error: {file}: a dot drawing is for `graphkit report` - take another suffix\n",
    )


def test_a_list_is_a_line_a_row_and_on_a_terminal_as_wide_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", "what it is, in a few words"), ("longer", "short")]
    lines = "a       what it is, in a few words\nlonger  short\n"
    monkeypatch.setenv("COLUMNS", "24")
    put_list(rows, None)
    assert capsys.readouterr().out == lines
    put_list(rows, tmp_path / "list.txt")
    assert (tmp_path / "list.txt").read_text() == lines
    assert capsys.readouterr().out.startswith("Wrote ")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    put_list(rows, None)
    assert capsys.readouterr().out == "a       what it is, in a\n        few words\nlonger  short\n"


def test_the_list_of_schemas_goes_to_a_file(tmp_path: Path) -> None:
    schema(["-o", str(tmp_path / "list.txt")], standalone_mode=False)
    assert (tmp_path / "list.txt").read_text().splitlines() == list(SCHEMAS)
