"""`graphkit diff` on the command line: formats, exit codes, and models that are broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from builders import proto_of

from graphkit.cli import main

TEXT = "(float[N, 4] x) => (float[N, 4] y) { [one] t = Tanh (x) [two] y = Softmax <axis = 1> (t) }"
Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["graphkit", "diff", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto_of(TEXT), "a.onnx")
    onnx.save(proto_of(TEXT.replace("axis = 1", "axis = 0")), "b.onnx")
    return "a.onnx", "b.onnx"


def test_a_changed_attribute_is_printed(run: Run, models: tuple[str, str]) -> None:
    assert run(*models) == (
        0,
        """\
Differences

A is a.onnx, B is b.onnx.
They differ in nodes (1 changed).

Nodes

Node  Operator  Change
─────────────────────────────
two   Softmax   axis: 1 -> 0

$ graphkit compare a.onnx b.onnx

""",
        "",
    )


@pytest.mark.parametrize(
    ("sections", "code", "error"),
    [
        ("nodes", 1, "Differs: nodes\n"),
        ("any", 1, "Differs: nodes\n"),
        ("interface, weights", 0, ""),
        (
            "node",
            2,
            "Error: --fail-on node: no such section - did you mean 'nodes'?\n",
        ),
    ],
)
def test_a_difference_fails_where_that_is_asked_for(
    run: Run, models: tuple[str, str], sections: str, code: int, error: str
) -> None:
    assert run(*models, "--fail-on", sections)[::2] == (code, error)
    assert run(models[0], models[0], "--fail-on", "any")[::2] == (0, "")


def test_a_report_never_replaces_a_model(run: Run, models: tuple[str, str]) -> None:
    before = Path("b.onnx").read_bytes()
    code, _, error = run(*models, "-o", "b.onnx")
    assert (code, Path("b.onnx").read_bytes()) == (2, before)
    assert error == "Error: b.onnx: is an input, which is never overwritten - name another output\n"
    assert run(*models, "-o", "report.json")[0] == 0
    assert json.loads(Path("report.json").read_text())["differing"] == ["nodes"]
    assert run(*models, "-o", "report.json")[0] == 0  # an earlier report is replaced


@pytest.mark.parametrize("format", ["markdown", "html"])
def test_names_from_models_are_no_markup(run: Run, models: tuple[str, str], format: str) -> None:
    name = "<script>alert(1)</script>|`x`"
    proto = proto_of(TEXT)
    proto.graph.node[0].name = name
    proto.graph.node[0].op_type = "Sin"
    onnx.save(proto, "b.onnx")
    code, out, _ = run(*models, "-f", format)
    assert code == 0
    assert "<script>alert" not in out.replace("\\<script>", "")


BROKEN = {
    "a circle": "(float[4] x) => (float[4] y) { a = Add (x, b) b = Relu (a) y = Tanh (b) }",
    "a name that nothing defines": "(float[4] x) => (float[4] y) { y = Add (x, nowhere) }",
    "a name that is defined twice": "(float[4] x) => (float[4] y) { y = Relu (x) y = Tanh (x) }",
    "too few inputs": "(float[4] x) => (float[4] y) { y = Add () }",
    "an output that is an input": "(float[4] x) => (float[4] x) { y = Relu (x) }",
}


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_broken_graphs_are_compared_too(run: Run, text: str) -> None:
    onnx.save(proto_of(text), "broken.onnx")
    assert run("broken.onnx", "broken.onnx", "--fail-on", "any")[::2] == (0, "")
    for pair in (("a.onnx", "broken.onnx"), ("broken.onnx", "a.onnx")):
        assert run(*pair, "--fail-on", "nodes")[::2] == (1, "Differs: nodes\n")


@pytest.mark.usefixtures("models")
def test_a_file_that_is_cut_off_is_named(run: Run) -> None:
    Path("cut.onnx").write_bytes(Path("a.onnx").read_bytes()[:-9])
    code, out, error = run("a.onnx", "cut.onnx")
    assert (code, out) == (2, "")
    assert error.startswith("Error: cut.onnx, byte ")
    assert len(error.splitlines()) == 1


@pytest.mark.usefixtures("models")
def test_folders_are_sent_to_the_gate(run: Run) -> None:
    code, out, error = run(".", "a.onnx")
    assert (code, out) == (2, "")
    assert ".: is a folder, and diff compares two models - name one in it; report FOLDER -r with --lock" in error
