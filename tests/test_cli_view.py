"""`graphkit view` on the command line: files, the page, and what it declines."""

from __future__ import annotations

import json
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import onnx
import pytest
from builders import proto_of

from graphkit.cli import main

TEXT = "(float[N, 4] x) => (float[N, 4] y) { [one] t = Tanh (x) [two] y = Softmax <axis = 1> (t) }"
Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command in a folder with two models."""
    monkeypatch.chdir(tmp_path)
    onnx.save(proto_of(TEXT), "a.onnx")
    onnx.save(proto_of(TEXT.replace("axis = 1", "axis = 0")), "b.onnx")

    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["graphkit", "view", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    return call


def test_a_model_is_written_with_its_overlays(run: Run) -> None:
    code, out, err = run("a.onnx", "--export", "view.json")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
Model Explorer

Graphs in view.json
Model   Graphs  Nodes
──────────────────────
a.onnx       1      4

Node data
Overlay      Model   Nodes  File
──────────────────────────────────────────────────
shapes       a.onnx      2  view.shapes.json
bytes moved  a.onnx      2  view.bytes-moved.json
operations   a.onnx      2  view.operations.json

$ model-explorer view.json --node_data_paths view.shapes.json,view.bytes-moved.json,view.operations.json

"""
    )
    assert json.loads(Path("view.json").read_text())["label"] == "a.onnx"
    shapes = json.loads(Path("view.shapes.json").read_text())["a.onnx"]["results"]
    assert shapes["two"] == {"value": "float32 [N, 4]", "bgColor": "#bbdefb", "textColor": "#000000"}


def test_two_models_are_written_with_the_nodes_that_match(run: Run) -> None:
    code, out, _ = run("a.onnx", "b.onnx", "--export", "view.json")
    assert code == 0
    assert "4 nodes match: Sync navigation by node id shows both together." in out
    assert [each["label"] for each in json.loads(Path("view.json").read_text())] == ["A a.onnx", "B b.onnx"]
    changed = json.loads(Path("view.b-diff.json").read_text())["B b.onnx"]["results"]
    assert {node: result["value"] for node, result in changed.items()} == {"two": "changed: axis: 1 -> 0"}


def test_files_are_replaced_only_where_asked_for(run: Run) -> None:
    Path("view.shapes.json").write_text("mine")
    code, _, err = run("a.onnx", "--export", "view.json")
    assert (code, Path("view.shapes.json").read_text()) == (2, "mine")
    assert err.startswith("Error: view.shapes.json: exists")
    assert not Path("view.json").exists()
    assert run("a.onnx", "--export", "view.json", "--overwrite")[0] == 0
    assert Path("view.shapes.json").read_text() != "mine"


def test_what_is_read_is_never_replaced(run: Run) -> None:
    errors = {"schema": "model-comparison/1", "divergences": [], "tensors": []}
    errors["tensors"] = [{"a": "t", "b": "t", "relative": 0.5, "problem": "", "agrees": False}]  # type: ignore[list-item]
    text = json.dumps(errors)
    Path("view.json").write_text(text)
    code, _, err = run("a.onnx", "--errors", "view.json", "--export", "view.json", "--overwrite")
    assert (code, Path("view.json").read_text()) == (2, text)
    assert err == "Error: view.json: is an input, which is never overwritten - name another file with --export\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--format", "json"), "--format, --report and --overwrite are for --export"),
        (("--report", "view.md"), "--format, --report and --overwrite are for --export"),
        (("--overwrite",), "--format, --report and --overwrite are for --export"),
        (("--export", "v.json", "--port", "9000"), "--port and --no-browser are for a page, and --export serves none"),
        (("--export", "v.json", "--no-browser"), "--port and --no-browser are for a page, and --export serves none"),
        (("--export", "none/v.json"), "none: is not a folder"),
        (("--dim", "M=3", "--export", "v.json"), "no input has a dim 'M'"),
        (("--target", "nothing", "--export", "v.json"), "no target 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_declined(run: Run, arguments: tuple[str, ...], error: str) -> None:
    code, out, err = run("a.onnx", *arguments)
    assert (code, out) == (2, "")
    assert error in err
    assert err.count("\n") == 1


def test_without_model_explorer_it_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_explorer", None)
    error = "Model Explorer is not installed - `pip install 'onnx-graphkit[view]'`, or write its files with --export"
    assert run("a.onnx") == (2, "", f"Error: {error}\n")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put something in the place of Model Explorer, and return what it is asked to show."""
    asked: dict[str, Any] = {}
    explorer = types.ModuleType("model_explorer")
    explorer.config = types.SimpleNamespace  # type: ignore[attr-defined]
    explorer.visualize_from_config = lambda config, **options: asked.update(vars(config), **options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "model_explorer", explorer)
    return asked


def test_the_page_has_the_model_with_its_overlays(run: Run, page: dict[str, Any]) -> None:
    assert run("a.onnx", "--no-browser", "--port", 9000) == (0, "", "")
    assert (page["host"], page["port"], page["no_open_in_browser"]) == ("localhost", 9000, True)
    assert [json.loads(text)["label"] for text in page["graphs_list"]] == ["a.onnx"]
    assert [list(json.loads(text)) for text in page["node_data_list"]] == [["a.onnx"]] * 3
    assert json.loads(unquote(page["to_url_param_value"]())) == {
        "models": [{"url": "graphs://a.onnx/0"}],
        "nodeData": ["node_data://shapes/0", "node_data://bytes moved/1", "node_data://operations/2"],
        "nodeDataTargets": ["a.onnx"] * 3,
    }


def test_an_interrupt_ends_the_page(run: Run, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupted = lambda *_, **__: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(sys.modules["model_explorer"], "visualize_from_config", interrupted)
    assert run("a.onnx") == (0, "", "")
    assert page == {}
    assert signal.getsignal(signal.SIGINT) is before


def test_two_models_are_side_by_side_and_synchronised(run: Run, page: dict[str, Any]) -> None:
    assert run("a.onnx", "b.onnx") == (0, "", "")
    data = json.loads(unquote(page["to_url_param_value"]()))
    assert data["models"] == [{"url": "graphs://A a.onnx/0"}, {"url": "graphs://B b.onnx/1"}]
    assert data["nodeDataTargets"] == ["A a.onnx"] * 4 + ["B b.onnx"] * 4
    assert [pane["selectedGraphId"] for pane in data["uiState"]["paneStates"]] == ["A a.onnx", "B b.onnx"]
    assert data["sync"] == {"mode": "match_node_id"}
