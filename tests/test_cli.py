from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx.parser
import pytest
from markdown_it import MarkdownIt
from onnx import TensorProto, helper

import graphkit.workflows.fold_file
from graphkit import __version__
from graphkit.analysis.report import SECTION_NAMES, ReportOptions, report
from graphkit.cli import main
from graphkit.cli.output import TABLE_WIDTH
from graphkit.examples import EXAMPLES
from graphkit.model import load
from graphkit.render.terminal import as_text
from graphkit.rewrite.base import Outcome

EXAMPLE = "example:merged-decoder"
OTHER = "example:causal-attention"
FORMATS = ("text", "markdown", "json", "html", "csv", "dot", "mermaid")
SHORT = ("--only", "architecture")


class Ran(NamedTuple):
    """What a run of the command line left behind."""

    code: object
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process, as if 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["graphkit", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(stop.value.code, *capsys.readouterr())

    return call


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "graphkit", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


def sections_of(ran: Ran) -> dict[str, Any]:
    """Return the sections of a report of one model in JSON."""
    (one,) = json.loads(ran.out)["models"]
    sections: dict[str, Any] = one["sections"]
    return sections


def model_in(text: str) -> object:
    (one,) = json.loads(text)["models"]
    return one["model"]


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"graphkit {__version__}\n", "")


def test_the_examples(run: Run) -> None:
    ran = run("examples")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split("  ")[0] for line in ran.out.splitlines()] == [f"example:{name}" for name in EXAMPLES]


def test_help_names_the_commands(run: Run) -> None:
    assert {"report", "examples"} <= set(run("--help").out.replace(",", " ").split())


def test_a_report_is_text(run: Run) -> None:
    ran = run("report", EXAMPLE, *SHORT)
    lines = [line.rstrip() for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (0, "")
    assert lines == report(load(EXAMPLE), ReportOptions(only=("architecture",))).to_text().splitlines()


@pytest.mark.cases("markdown")
@pytest.mark.parametrize("format", ["markdown", "json", "html"])
def test_a_report_in_another_format(run: Run, format: str) -> None:
    expected = getattr(report(load(EXAMPLE), ReportOptions(only=("architecture",))), f"to_{format}")()
    assert run("report", EXAMPLE, *SHORT, "-f", format) == (0, expected, "")


@pytest.mark.parametrize(("format", "start"), [("dot", "// Concat("), ("mermaid", 'flowchart TD\n    n0["Reshape ')])
def test_a_drawing(run: Run, format: str, start: str) -> None:
    ran = run("report", OTHER, "-f", format)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(start)


def test_a_drawing_of_another_group(run: Run) -> None:
    first, second = (run("report", OTHER, "-f", "dot", "--group", group).out for group in (1, 3))
    assert (first.count("ConstantOfShape"), second.count('label="ConstantOfShape /')) == (0, 1)


def test_a_group_that_does_not_exist(run: Run) -> None:
    assert run("report", OTHER, "-f", "dot", "--group", 99) == (
        2,
        "",
        "Error: no group 99 - this model has 7, numbered from 1, see `graphkit report`\n",
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--group", "0"), ("--context", "0"), ("--format", "pdf"), ("--colour", "x")]
)
def test_an_option_out_of_range_is_bad_usage(run: Run, option: str, value: str) -> None:
    ran = run("report", EXAMPLE, option, value)
    assert (ran.code, ran.out) == (2, "")
    assert option in ran.err


def test_an_unknown_placement_of_weights_is_bad_usage(run: Run, tmp_path: Path) -> None:
    ran = run("fold", OTHER, "-o", tmp_path / "out.onnx", "--weights", "nowhere")
    assert (ran.code, ran.out, list(tmp_path.iterdir())) == (2, "", [])
    assert "'--weights': 'nowhere' is not one of 'kept', 'shared', 'in-place', 'inline'" in ran.err


def test_an_unknown_section(run: Run) -> None:
    assert run("report", EXAMPLE, "--only", "interface,weather") == (
        2,
        "",
        "Error: no section 'weather' - there are "
        "verdict, summary, architecture, interface, kv-cache, costs, shape-ops, origins, what-if, hazards, "
        "unknown-shapes, control-flow, float16\n",
    )


def test_hazards_are_checked_where_asked_for(run: Run) -> None:
    arguments = "report", EXAMPLE, "--only", "hazards", "-f", "json"
    plain, checked = (
        sections_of(run(*arguments, *extra))["hazards"]["hazards"] for extra in ((), ("--check-hazards",))
    )
    assert [one["check"] for one in plain] == [None, None]
    assert [one["check"]["confirmed"] for one in checked] == [True, True]


def test_only_takes_sections_with_spaces_between(run: Run) -> None:
    made = sections_of(run("report", EXAMPLE, "--only", " interface , summary", "-f", "json"))
    assert list(made) == ["summary", "interface"]


def test_context_reaches_the_report(run: Run) -> None:
    for context, told in ((8, [8, 32]), (10, [10, 32]), (100, [32])):  # a model of 32 positions
        made = sections_of(run("report", EXAMPLE, "--only", "kv-cache", "--context", context, "-f", "json"))
        assert [row["context"] for row in made["kv-cache"]["memory"]] == told


def test_full_reaches_the_report(run: Run) -> None:
    short, full = (run("report", EXAMPLE, "--only", "origins", *extra).out for extra in ((), ("--full",)))
    assert ("...])" in short, "...])" in full) == (True, False)


def test_optimize_reaches_the_report(run: Run) -> None:
    assert "Shape origins after onnxoptimizer" in run("report", OTHER, "--only", "origins", "--optimize").out


def test_hash_reaches_the_report(run: Run) -> None:
    made = sections_of(run("report", OTHER, "--only", "summary", "--hash", "-f", "json"))
    assert made["summary"]["tied"] == []


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("suffix", "format"),
    [
        (".md", "markdown"),
        (".json", "json"),
        (".html", "html"),
        pytest.param(".htm", "html", marks=pytest.mark.slow),
        (".csv", "csv"),
        (".HTML", "html"),
        (".dot", "dot"),
        pytest.param(".gv", "dot", marks=pytest.mark.slow),
        (".mmd", "mermaid"),
    ],
)
def test_the_suffix_of_the_output_says_the_format(run: Run, tmp_path: Path, suffix: str, format: str) -> None:
    output = tmp_path / f"report{suffix}"
    assert run("report", OTHER, "-o", output)[::2] == (0, "")
    assert output.read_text(encoding="utf-8") == run("report", OTHER, "-f", format).out


@pytest.mark.parametrize("name", ["report.txt", "report"])
def test_the_output_is_text_where_the_suffix_says_nothing(run: Run, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    run("report", OTHER, "-o", output)
    assert output.read_text(encoding="utf-8") == as_text(report(load(OTHER)), table_width=TABLE_WIDTH)


def test_the_format_goes_before_the_suffix(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "report.md"
    run("report", EXAMPLE, *SHORT, "-f", "json", "-o", output)
    assert model_in(output.read_text(encoding="utf-8")) == EXAMPLE


def test_an_earlier_report_is_replaced(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    output.write_text("old", encoding="utf-8")
    run("report", EXAMPLE, "-o", output)
    assert model_in(output.read_text(encoding="utf-8")) == EXAMPLE


def saved(folder: Path, graph: str = "g (float[N] x) => (float[N] y) { y = Relu(x) }") -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), path)
    return path


def linked(path: Path) -> Path:
    link = path.with_name("link.onnx")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("output", [Path, linked], ids=["itself", "a link to it"])
def test_the_model_is_never_overwritten(run: Run, tmp_path: Path, output: Callable[[Path], Path]) -> None:
    path = saved(tmp_path)
    before, target = path.read_bytes(), output(path)
    ran = run("report", path, "-o", target)
    assert ran == (2, "", f"Error: {target}: is an input, which is never overwritten - name another output\n")
    assert path.read_bytes() == before


def test_the_data_file_of_a_model_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", tmp_path / "weights.bin"
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g () => () <float[2] w = {1, 2}> {}')
    model.graph.initializer[0].raw_data = bytes(8)
    del model.graph.initializer[0].float_data[:]
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    assert run("report", path, "-o", data).code == 2
    assert data.read_bytes() == bytes(8)


def test_an_output_into_a_missing_folder(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "nowhere" / "report.md"
    ran = run("report", EXAMPLE, *SHORT, "-o", output)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"Error: {output}: cannot be written: ")


def test_a_failed_report_leaves_no_output(run: Run, tmp_path: Path) -> None:
    run("report", tmp_path / "missing.onnx", "-o", tmp_path / "report.md")
    assert list(tmp_path.iterdir()) == []


def test_several_models_are_compared_first(run: Run) -> None:
    ran = run("report", EXAMPLE, OTHER, *SHORT)
    lines = ran.out.splitlines()
    assert (ran.code, lines[0]) == (0, "Comparison")
    assert [line for line in lines if line.startswith("example:")][-2:] == [EXAMPLE, OTHER]


def test_several_models_in_json(run: Run) -> None:
    made = json.loads(run("report", EXAMPLE, OTHER, *SHORT, "-f", "json").out)
    assert [row["model"] for row in made["comparison"]] == [EXAMPLE, OTHER]
    assert [one["model"] for one in made["models"]] == [EXAMPLE, OTHER]


def test_a_folder_means_the_models_in_it(run: Run, tmp_path: Path) -> None:
    path = saved(tmp_path)
    (tmp_path / "other.txt").write_text("not a model", encoding="utf-8")
    assert model_in(run("report", tmp_path, *SHORT, "-f", "json").out) == str(path)


def test_a_folder_without_models(run: Run, tmp_path: Path) -> None:
    assert run("report", tmp_path) == (
        2,
        "",
        f"Error: {tmp_path}: has no .onnx file in it - name a model file, or look into its folders with --recursive\n",
    )


def test_the_folders_of_a_folder_are_looked_through_where_asked(run: Run, tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        saved(tmp_path / name)
    made = json.loads(run("report", tmp_path, "-r", *SHORT, "-f", "json").out)
    assert [one["model"] for one in made["models"]] == [str(saved(tmp_path / name)) for name in ("a/deep", "b")]
    assert run("report", tmp_path).err.count("\n") == 1


def test_strict_fails_on_findings_and_shows_the_report_all_the_same(
    run: Run, model_file: Callable[[str], Path]
) -> None:
    arguments = "report", model_file("gemma-270m/model"), "--only", "summary"
    plain, strict = run(*arguments), run(*arguments, "--strict")
    assert (plain.code, plain.err) == (0, "")
    assert strict == (
        1,
        plain.out,
        f"Finding: {model_file('gemma-270m/model')}: The data file 'model.weights' is missing: the model cannot run, "
        "and its weights cannot be read.\n",
    )


def test_strict_passes_without_findings(run: Run) -> None:
    assert run("report", OTHER, *SHORT, "--strict").code == 0


BROKEN = {
    "missing": None,
    "empty": b"",
    "text": b"not a model, and rather long for a header\n",
    "html": b"<!DOCTYPE html><html></html>",
    "truncated": b"\x08\x08\x3a\xff\xff\x03abc",
    "zeros": bytes(64),
    "no graph": b"\x08\x08",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_bad_file_is_one_line_on_stderr(run: Run, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    ran = run("report", path)
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(rf"Error: {re.escape(str(path))}[^\n]+\n", ran.err)


def test_a_bad_file_among_good_ones(run: Run, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.onnx", tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    ran = run("report", EXAMPLE, missing, OTHER, empty, "-f", "json")
    made = json.loads(ran.out)
    assert (ran.code, [one["model"] for one in made["models"]]) == (2, [EXAMPLE, OTHER])
    assert [line.partition(": ")[::2] for line in ran.err.splitlines()] == [
        ("Error", one["problem"]) for one in made["failures"]
    ]
    assert [one["model"] for one in made["failures"]] == [str(missing), str(empty)]


def test_bad_files_only(run: Run, tmp_path: Path) -> None:
    ran = run("report", tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 2)


def test_what_an_analysis_finds_broken_among_good_ones(run: Run, model_file: Callable[[str], Path]) -> None:
    ran = run("report", EXAMPLE, model_file("gemma-270m/model"), "--only", "summary", "--hash")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"\n{EXAMPLE}\n" in ran.out


def test_an_unknown_example(run: Run) -> None:
    assert run("report", "example:nope") == (
        2,
        "",
        "Error: no example 'nope' - there are merged-decoder, causal-attention, encoder, detection, sliding-window, "
        "prefill, decode\n",
    )


def test_the_name_of_a_bad_file_cannot_drive_the_terminal(run: Run) -> None:
    assert run("report", "\x1b[31m\n.onnx").err == (
        "Error: \\x1b[31m\\n.onnx: cannot be opened: No such file or directory - check the path\n"
    )


def test_weights_that_hash_needs_are_missing(run: Run, model_file: Callable[[str], Path]) -> None:
    ran = run("report", model_file("gemma-270m/model"), "--hash")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("columns", [40, 60])
def test_the_width_is_that_of_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("report", EXAMPLE, *SHORT).out.splitlines()
    assert columns // 2 < max(map(len, lines)) <= columns


@pytest.mark.usefixtures("runs_alone")
def test_a_merged_decoder_is_split_and_proved(run: Run, tmp_path: Path) -> None:
    ran = run("split-merged", EXAMPLE, "-o", tmp_path, "--no-verify", "-f", "json")
    assert (ran.code, ran.err, json.loads(ran.out)["condition"]) == (0, "", "use_cache_branch")
    pair = [tmp_path / name for name in ("decoder_model.onnx", "decoder_with_past_model.onnx")]
    assert run("verify", EXAMPLE, *pair, "--steps", 1).code == 0
    swapped = run("verify", EXAMPLE, *reversed(pair))
    assert swapped.code == 1
    assert "outputs present.0.encoder.{key|value} are missing" in " ".join(swapped.out.split())


def test_a_pipeline_of_passes_is_run(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    ran = run(
        "rewrite", OTHER, "-o", output, "-p", "freeze-dims{dims=batch_size=2}", "--weights", "inline", "-f", "json"
    )
    made = json.loads(ran.out)
    assert (ran.code, ran.err, made["files"]) == (0, "", ["out.onnx"])
    assert (made["proof"]["fixed"], made["proof"]["failures"], made["unproven"]) == ({"batch_size": 2}, [], "")


PASSES = """
from dataclasses import dataclass
import graphkit
from graphkit.rewrite.edits import NewNode


@dataclass(frozen=True)
class AddToSub(graphkit.Rewrite):
    def edit(self, editor):
        for node in editor.nodes("Add"):
            editor.replace(node, NewNode("Sub", node.inputs, [node.outputs[0].name], like=node))
            editor.note("Add(s) made Sub")


@dataclass(frozen=True)
class Raising(graphkit.Pass):
    text: str = "no"

    def run(self, model):
        raise ValueError(self.text)
"""


def test_a_pass_of_the_current_folder_is_run_and_proven(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / "passes_of_mine.py").write_text(PASSES)
    path = saved(tmp_path, "g (float[N] x) => (float[N] y) { y = Add (x, x) }")
    ran = run("rewrite", path, "-o", "out.onnx", "-p", "passes_of_mine:AddToSub,eliminate-dead-code", "--full")
    assert (ran.code, ran.err) == (1, "The proof failed. out.onnx is kept, unverified.\n")
    assert "add-to-sub  1 Add made Sub" in ran.out.splitlines()
    ran = run("rewrite", path, "-o", "other.onnx", "-p", "passes_of_mine:Raising{text=\x1b[31m}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "Error: pass 'raising': failed with ValueError: \\x1b[31m (passes_of_mine.py, line 20) - mend the pass\n"
    )
    assert not (tmp_path / "other.onnx").exists()


def test_what_cannot_be_proven_is_said(run: Run, tmp_path: Path) -> None:
    ran = run("rewrite", OTHER, "-o", tmp_path / "out.onnx", "-p", "extract-embedding", "--full")
    assert (ran.code, ran.err) == (0, "")
    assert "Warning: Nothing is proven: extract-embedding changed the interface" in ran.out


@pytest.mark.usefixtures("runs_alone")
def test_a_rewrite_is_proven(run: Run) -> None:
    ran = run(
        "verify", OTHER, OTHER, "--dim", "batch_size=2", "--range", "sequence_length=3:9", "--runs", 2, "-f", "json"
    )
    made = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (made["fixed"], made["failures"]) == ({"batch_size": 2}, [])
    assert [one["dims"] for one in made["runs"]][:2] == [{"sequence_length": 7}, {"sequence_length": 4}]
    assert {one["dims"]["sequence_length"] for one in made["runs"]} <= set(range(3, 10))
    assert (made["caveats"], made["interface"]) == ([], [])
    assert made["coverage"] == "sequence_length 4 to 9; edge values"


def test_a_rewrite_that_differs_is_code_1(run: Run, tmp_path: Path) -> None:
    model = load(OTHER)
    proto = model.restore()
    proto.graph.output[0].name = proto.graph.node[-1].input[0]
    onnx.save(proto, tmp_path / "broken.onnx")
    ran = run("verify", OTHER, tmp_path / "broken.onnx")
    assert (ran.code, ran.err) == (1, "")
    assert "output logits is missing" in ran.out


def test_shapes_are_written_into_a_model(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "shapes.onnx"
    ran = run("shapes", OTHER, "--write", output, "--weights", "inline", "-f", "json")
    assert (ran.code, ran.err) == (0, "Wrote shapes.onnx: 146 tensors declared with the inferred shape.\n")
    assert json.loads(ran.out)["known"] == 148
    infos = {info.name: info for info in onnx.load(output).graph.value_info}
    dims = infos["/Gather_1_output_0"].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch_size", "sequence_length", 16]
    assert run("verify", OTHER, output, "--runs", 1).code == 0
    again = run("shapes", OTHER, "--write", output)
    assert (again.code, again.out) == (2, "")
    assert "exists" in again.err
    frozen = run("shapes", OTHER, "--write", output, "--overwrite", "--dim", "batch_size=1")
    assert (frozen.code, frozen.out) == (2, "")
    assert "--write declares what holds at all sizes" in frozen.err


def test_a_shape_program_is_data_unless_told_otherwise(run: Run) -> None:
    ran = run("program", OTHER, "--dim", "batch_size=2", "--range", "sequence_length=1:8")
    read = json.loads(ran.out)
    assert (ran.code, read["schema"]) == (0, "program/1")
    symbols = {entry["symbol"]: (entry["least"], entry["most"]) for entry in read["symbols"]}
    assert symbols == {"sequence_length": (1, 8)}
    assert read["inputs"] == [{"name": "input_ids", "dims": [2, "sequence_length"]}]


@pytest.mark.parametrize(
    ("arguments", "name", "first", "last"),
    [
        (("--language", "python"), None, "# What the nodes of 'causal-attention.onnx'", "    }\n"),
        (("-l", "javascript"), None, '// What the nodes of "causal-attention.onnx"', "{ shapes };\n"),
        ((), "out.py", "# What", "    }\n"),
        ((), "out.js", "// What", "module.exports = { shapes };\n"),
        ((), "out.mjs", "// What", "export { shapes };\n"),
        ((), "out.json", '{\n"graphkit": "', "}\n"),
        ((), "out.txt", '{\n"graphkit": "', "}\n"),
        (("-l", "python"), "out.js", "# What", "    }\n"),
    ],
)
def test_languages_of_a_shape_program(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], name: str | None, first: str, last: str
) -> None:
    output = tmp_path / name if name else None
    ran = run("program", OTHER, *arguments, *(("-o", output) if output else ()))
    text = output.read_text() if output else ran.out
    assert (ran.code, ran.err) == (0, "")
    assert output is None or ran.out == f"Wrote {output}.\n"
    assert text.startswith(first)
    assert text.endswith(last)


def test_a_shape_program_never_overwrites_its_model(run: Run, model_file: Callable[[str], Path]) -> None:
    path = model_file("cache-styles/bshd")
    before = path.read_bytes()
    ran = run("program", path, "-o", path)
    assert (ran.code, path.read_bytes() == before) == (2, True)
    assert "is an input, which is never overwritten" in ran.err


def test_a_finding_is_explained(run: Run) -> None:
    assert run("explain", "merged-if").out.startswith(
        "# merged-if: merged If crashes or slows runtimes\n\n## What it is\n"
    )


def test_findings_are_listed_and_passes_where_they_are_asked_for(run: Run) -> None:
    out = run("explain").out
    assert "merged-if       merged If crashes or slows runtimes\n" in out
    assert "eliminate-dead-code" not in out
    names = [line.split()[0] for text in (out, run("explain", "passes").out) for line in text.splitlines()]
    assert "eliminate-dead-code" in names
    assert all(run("explain", name).code == 0 for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("verify", EXAMPLE),
            "verify takes two models (original, rewritten) or three (merged, first step, later steps) - name these",
        ),
        (
            ("verify", EXAMPLE, EXAMPLE, EXAMPLE, "--dim", "batch_size=1"),
            "--dim, --input, --range, --part and --map apply to two models only - leave them out",
        ),
        (
            ("split-merged", EXAMPLE),
            "example:merged-decoder: is an example that ships with graphkit - name an output folder with -o",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert run(*arguments) == (2, "", f"Error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "nope"), "no finding or pass 'nope' - `graphkit explain passes` lists them"),
        (
            ("explain", "merged-iff"),
            "no finding or pass 'merged-iff' - did you mean 'merged-if' or 'merge-slices' or 'merge-chains'?",
        ),
        (("rewrite", EXAMPLE, "-o", "out.onnx", "-p", "nope"), "no pass 'nope' - `graphkit explain passes` lists them"),
    ],
)
def test_an_unknown_pass_is_named(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert run(*arguments) == (2, "", f"Error: {message}\n")


def test_files_that_exist_are_not_replaced_by_a_split(run: Run, tmp_path: Path) -> None:
    existing = tmp_path / "decoder_model.onnx"
    existing.write_bytes(b"mine")
    assert run("split-merged", EXAMPLE, "-o", tmp_path).code == 2
    assert [path.name for path in tmp_path.iterdir()] == [existing.name]
    assert existing.read_bytes() == b"mine"


def test_a_model_is_folded_and_proved(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    ran = run("fold", OTHER, "-o", output, "--weights", "inline", "-f", "json")
    made = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (made["files"], made["frozen"], made["proof"]["failures"]) == (["out.onnx"], [], [])
    assert len(load(output).graph.nodes) < len(load(OTHER).graph.nodes)


def test_dims_and_inputs_are_frozen_by_a_fold(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    ran = run("fold", OTHER, "-o", output, "--dim", "batch_size=2", "--input", "input_ids=2x8", "--no-verify")
    assert (ran.code, ran.err) == (0, "")
    assert "Frozen: batch_size is 2, sequence_length is 8." in " ".join(ran.out.split())
    assert [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in load(output).proto.graph.input] == [
        [2, 8]
    ]


def test_a_fold_may_give_up_fusions_for_fewer_nodes(
    run: Run, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    counts = []
    for name, options in (("kept", []), ("given up", ["--no-fusions"])):
        ran = run("fold", str(model_file("bert-fill-mask/model")), "-o", tmp_path / name, "--no-verify", *options)
        assert (ran.code, ran.err) == (0, "")
        counts.append(len(load(tmp_path / name).graph.nodes))
    assert counts[0] > counts[1]


def test_a_fold_that_is_not_proved_is_code_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)

    def broken(*_: object, **__: object) -> Outcome:
        proto = onnx.ModelProto()
        proto.CopyFrom(load(path).proto)
        proto.graph.node[0].op_type = "Neg"
        return Outcome(load(path).with_proto(proto))

    monkeypatch.setattr(graphkit.workflows.fold_file, "fold", broken)
    output = tmp_path / "out.onnx"
    ran = run("fold", path, "-o", output)
    assert (ran.code, ran.err) == (1, f"The proof failed. {output} is kept, unverified.\n")
    assert output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--dim", "past=1"),
            "no input has a dim 'past' - there are batch_size, sequence_length",
        ),
        (
            ("--dim", "batch_size=1", "--dim", "batch_size=2"),
            "--dim batch_size=2: 'batch_size' is given twice - give it once",
        ),
        (
            ("--dim", "batch_size=1", "--input", "input_ids=2x3"),
            "a dim of input 'input_ids' is batch_size, which is 1 as given elsewhere - it cannot be 2 too",
        ),
        (
            ("--input", "ids=2x3"),
            "there is no input 'ids' - did you mean 'input_ids'?",
        ),
        (
            ("--dim", "batch_size=0"),
            "causal-attention.onnx: 'batch_size' is 0, out of its range - give it another range",
        ),
        (
            ("--range", "batch_size=3:2"),
            "--range: '3:2' allows no size - write the smaller bound first",
        ),
        (
            ("--dim", "batch_size"),
            "--dim batch_size: is not NAME=VALUE - write it as in --dim batch_size=1",
        ),
        (
            ("--input", "input_ids"),
            "--input input_ids: is not NAME=VALUE - write it as in --input input_ids=1x8",
        ),
        (
            ("--input", "batch_size=2"),
            "there is no input 'batch_size' - it is a dim: give its size, as in batch_size=8",
        ),
        (
            ("--dim", "input_ids=2"),
            "no input has a dim 'input_ids' - it is an input: give its shape, as in input_ids=1x8",
        ),
        (
            ("--dim", "batch=2"),
            "no input has a dim 'batch' - did you mean 'batch_size'?",
        ),
        (
            ("--dim", "sequence_length=33"),
            f"{OTHER}: it cannot run with sequence_length=33: '/Gather_2': an index outside of an axis of 32 - give "
            "other sizes",
        ),
        (
            ("--input", "input_ids=2xN"),
            "--input: 'N' is not a size - write a number of at least 0",
        ),
    ],
)
def test_a_fold_that_cannot_be_is_one_line_and_writes_nothing(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert run("fold", OTHER, "-o", tmp_path / "out.onnx", *arguments) == (2, "", f"Error: {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_fold_replaces_what_exists_only_if_told(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    output.write_bytes(b"mine")
    ran = run("fold", OTHER, "-o", output, "--no-verify")
    assert (ran.code, output.read_bytes()) == (2, b"mine")
    assert "exists - " in ran.err
    assert run("fold", OTHER, "-o", output, "--no-verify", "--overwrite").code == 0


HOSTILE = {
    "markup": "[bold]x[/bold]",
    "broken markup": "[/]x",
    "escape": "\x1b[31mred\x1b[0m",
    "tag": "<script>x</script>",
    "attribute": '"><img onerror="x',
    "emphasis": "*a* **b**",
    "code": "`x`",
    "pipe": "a|b",
    "link": "[x](http://example.org)",
    "entity": "&lt;b&gt;",
    "quotes": "'a' \"b\" \\",
    "line break": "a\nb\r\tc",
    "direction": "\u202egnp",
}


@pytest.fixture(params=list(HOSTILE.values()), ids=list(HOSTILE))
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return a hostile name, and a model in which all is named so."""
    name = str(request.param)
    shown = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [name]),
        helper.make_tensor_value_info(f"{name}2", TensorProto.INT64, [1]),
    ]
    node = helper.make_node("Reshape", [name, f"{name}2"], [f"{name}3"], name=name, domain="")
    custom = helper.make_node(name, [f"{name}3"], [f"{name}4"], name=name, domain=name)
    outputs = [helper.make_tensor_value_info(f"{name}4", TensorProto.FLOAT, [name])]
    weight = helper.make_tensor(f"{name}5", TensorProto.FLOAT, [1], [0.0])
    graph = helper.make_graph([node, custom], name, shown, outputs, [weight], doc_string=name)
    model = helper.make_model(graph, producer_name=name, opset_imports=[helper.make_opsetid("", 17)])
    model.metadata_props.add(key=name, value=name)
    path = tmp_path / "hostile.onnx"
    onnx.save(model, path)
    return name, path


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(text, id=name, marks=[] if re.search(r"[\x00-\x1f]", text) else pytest.mark.slow)
        for name, text in HOSTILE.items()
    ],
    indirect=True,
)
def test_hostile_names_cannot_drive_the_terminal(run: Run, hostile: tuple[str, Path], format: str) -> None:
    ran = run("report", hostile[1], "-f", format)
    assert (ran.code, ran.err) == (0, "")
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", ran.out) == []


def visible(name: str) -> str:
    """Return a name as graphkit shows it, with control characters written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def test_hostile_names_are_shown_in_text(run: Run, hostile: tuple[str, Path]) -> None:
    assert run("report", hostile[1], "--only", "interface").out.count(visible(hostile[0])) == 5


def test_hostile_names_are_exact_in_json(run: Run, hostile: tuple[str, Path]) -> None:
    made = json.loads(run("report", hostile[1], "-f", "json").out)
    assert made["models"][0]["sections"]["interface"]["inputs"][0]["names"] == [hostile[0]]


class Tags(HTMLParser):
    """The tags, the attribute names and the addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.addresses: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]
        self.addresses += [value for name, value in attrs if name == "href"]


def test_hostile_names_add_no_tags_to_html(run: Run, hostile: tuple[str, Path]) -> None:
    tags = Tags(run("report", hostile[1], "-f", "html").out)
    assert {"img", "onerror", "b"}.isdisjoint(tags.found)
    assert tags.found.count("script") == 2  # the data of the graph, and the script of the page
    assert tags.found.count("a") == len(tags.addresses) == tags.found.count("section")
    assert all(address is not None and re.fullmatch("#[a-z0-9-]+", address) for address in tags.addresses)


def test_hostile_names_are_not_interpreted_in_markdown(run: Run, hostile: tuple[str, Path]) -> None:
    text = run("report", hostile[1], "-f", "markdown").out
    tokens = [
        child.type for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text) for child in token.children or []
    ]
    assert set(tokens) <= {"text", "text_special", "softbreak", "code_inline", "strong_open", "strong_close"}


def test_hostile_names_stay_in_their_labels_in_dot(run: Run, hostile: tuple[str, Path]) -> None:
    lines = run("report", hostile[1], "-f", "dot").out.splitlines()
    vertex = re.compile(r'    "\d+" \[label="(\\\\|\\"|[^"\\])*", shape=\w+\];')
    assert [line for line in lines[3:-2] if not vertex.fullmatch(line)] == []


def test_hostile_names_stay_in_their_labels_in_mermaid(run: Run, hostile: tuple[str, Path]) -> None:
    lines = run("report", hostile[1], "-f", "mermaid").out.splitlines()
    assert [line for line in lines[1:-1] if not re.fullmatch(r'    n\d+\["[^"<>]*"\]', line)] == []


def test_the_module_runs_as_a_command() -> None:
    ran = command("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"graphkit {__version__}\n", "")


def test_a_command_fails_without_a_traceback() -> None:
    ran = command("report", "missing.onnx")
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        2,
        "",
        "Error: missing.onnx: cannot be opened: No such file or directory - check the path\n",
    )


def test_a_pipe_gets_no_escapes() -> None:
    assert "\x1b" not in command("report", OTHER, *SHORT, TERM="xterm-256color").stdout


@pytest.mark.parametrize("format", ["text", pytest.param("markdown", marks=pytest.mark.slow)])
def test_an_output_of_another_encoding_gets_names_written_out(tmp_path: Path, format: str) -> None:
    path = saved(tmp_path, 'g (float[N] "naïve") => (float[N] y) { y = Relu("naïve") }')
    ran = command("report", path, "--only", "interface", "-f", format, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "na\\xefve" in ran.stdout


def terminal(*arguments: object, **environment: str) -> bytes:
    """Return what the command line writes to a terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "graphkit", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, **environment},
    )
    os.close(theirs)
    written = b""
    with os.fdopen(ours, "rb", buffering=0) as screen:
        while True:
            try:
                piece = screen.read(65536)
            except OSError:  # Linux reports so that the other end is closed
                break
            if not piece:
                break
            written += piece
    process.wait()
    return written


def test_a_dumb_terminal_gets_no_escapes() -> None:
    written = terminal("report", OTHER, "--only", "verdict", TERM="dumb")
    assert b"2 limits" in written
    assert b"\x1b" not in written


def test_a_terminal_without_color_gets_no_colors() -> None:
    written = terminal("report", OTHER, "--only", "verdict", TERM="xterm-256color", NO_COLOR="1")
    assert b"2 limits" in written
    assert re.findall(rb"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])m", written) == []


def test_a_color_terminal_gets_a_yellow_warning() -> None:
    assert b"\x1b[33m" in terminal("report", EXAMPLE, "--only", "verdict", TERM="xterm-256color")


def test_a_terminal_shows_the_share_of_the_work_that_is_done(tmp_path: Path) -> None:
    written = terminal("fold", OTHER, "-o", tmp_path / "out.onnx", TERM="xterm-256color")
    assert re.search(rb"proving: [^\r\n]*\d%", re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", written))


def test_every_section_can_be_asked_for_alone(run: Run) -> None:
    made = [sections_of(run("report", EXAMPLE, "--only", name, "-f", "json")) for name in SECTION_NAMES]
    assert [list(sections) for sections in made] == [[name] for name in SECTION_NAMES]


def test_names_never_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    hostile = "\x1b[31mred\n\x9b2J\u202e"
    cast = helper.make_node("Div", ["one", "zero"], ["q"], name=hostile)
    relu = helper.make_node("Relu", ["ghost" + hostile], ["r"], name=hostile)
    tensors = [helper.make_tensor(name, TensorProto.INT64, [1], [int(name == "one")]) for name in ("one", "zero")]
    for nodes, arguments in (
        ([relu], ("report", "--strict", "--only", "summary")),
        ([cast], ("rewrite", "-p", "fold-constants", "-o", tmp_path / "out.onnx", "--no-verify")),
    ):
        outputs = [onnx.ValueInfoProto(name=nodes[0].output[0])]
        model = helper.make_model(helper.make_graph(nodes, "g", [], outputs, tensors))
        onnx.save(model, tmp_path / "model.onnx")
        ran = run(arguments[0], tmp_path / "model.onnx", *arguments[1:])
        text = ran.out + ran.err
        assert "Finding: " in text or "What stays" in text
        assert "\\x1b[31mred\\n\\x9b2J\\u202e" in text
        assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300 + ".onnx"])
def test_a_path_that_is_too_long(run: Run, name: str) -> None:
    for arguments in (("report", name), ("shapes", name), ("fold", name, "-o", "out.onnx")):
        ran = run(*arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert "cannot be opened: File name too long" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("contract", "NAME"),
        ("lower", "NAME", "-o", "out"),
        ("verify", "example:encoder", "NAME"),
        ("examples", "--copy", "NAME"),
        ("split-merged", "example:merged-decoder", "-o", "NAME"),
        ("transformers-js", "example:sliding-window", "-o", "NAME"),
    ],
)
def test_a_name_that_is_too_long_for_a_file_or_folder(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*("x" * 300 if word == "NAME" else word for word in arguments))
    said = f"Error: {'x' * 40}...: File name too long - name another file or folder\n"
    assert (ran.code, ran.out, ran.err) == (2, "", said)


BRIEF = """example:detection

Vision model, 1 layer: 162.6 kB, 8.7 k parameters.
MACs 8.2 M, peak of activations 404.1 kB, for batch_size 1, height 224, width
224. No faults; 1 limit:
- shapes computed at run time: 149 of 615 nodes (shape-ops)

Section       What it says
────────────────────────────────────────────────────────────────
summary       615 nodes, 108 initializers, ai.onnx 17
architecture  Role: vision (its input pixel_values is an image)
interface     2 inputs, 2 outputs
costs         the 20 largest of 25 layers, and memory over time
origins       the expressions that compute shapes
what-if       how many nodes would be left if dims were numbers

--only NAME shows a section, --full all of them.
$ graphkit fold example:detection -o detection.folded.onnx

"""


def test_a_report_is_one_screen(run: Run) -> None:
    assert run("report", "example:detection").out.rstrip("\n") == BRIEF.rstrip("\n")
    assert len(run("report", "example:merged-decoder").out.splitlines()) <= 24


def test_a_report_shows_all_sections_where_asked_and_in_files(run: Run, tmp_path: Path) -> None:
    sections = ("Summary", "Architecture", "Interface", "Costs", "Shape operators", "Shape origins", "Hazards")
    full = run("report", "example:encoder", "--full").out
    assert [name for name in sections if f"\n{name}\n" not in full] == []
    run("report", "example:encoder", "-o", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert [name for name in sections if f"## {name}\n" not in text] == []


def test_a_report_shows_the_sections_that_its_options_are_about(run: Run) -> None:
    out = run("report", "example:encoder", "--target", "mt8371").out
    assert "\nBlockers for mt8371\n" in out
    assert "\nHazards\n" not in out
    assert "512 tokens = 65.5 kB" in run("report", "example:sliding-window", "--context", "512").out
    assert "MACs 87.8 k" in run("report", "example:decode", "--dim", "s54=511", "--dim", "s53=512").out


HELP = """
Look:
  report   Explain models: a verdict, and the facts behind it.
"""


def test_the_commands_stand_in_groups(run: Run) -> None:
    out = run("--help").out
    assert HELP in out
    heads = [line.removesuffix(":") for line in out.splitlines() if line.endswith(":")]
    assert heads == ["Options", "Look", "Change", "Deploy", "Check", "More"]
    assert "\n  explain, examples, targets, " in out


def test_a_model_alone_is_reported_on(run: Run) -> None:
    assert run(EXAMPLE, *SHORT) == run("report", EXAMPLE, *SHORT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("split", "model.onnx"), "no command 'split' - did you mean 'split-merged'?"),
        (("zzzz",), "no command 'zzzz' - graphkit --help lists them"),
        (("in.onnx", "out.onnx"), "no command - write `graphkit fold in.onnx -o out.onnx` to fold a model"),
    ],
)
def test_a_wrong_command_gets_the_likely_one(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err.endswith(f"Error: {message}\n")
