"""Targets and blockers on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest

Run = Callable[..., tuple[object, str, str]]
MODEL = """<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y) {
    [keep] y = Trilu (x)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_targets_are_listed_and_shown(run: Run) -> None:
    code, out, _ = run("targets")
    assert code == 0
    assert "ethos-u85        unknown  yes" in out
    code, out, _ = run("targets", "qnn-htp", "-f", "json")
    assert code == 0
    assert json.loads(out)["limits"][0] == {
        "limit": "highest rank",
        "value": "5",
        "note": "",
        "source": "measured",
    }


def test_a_report_for_a_target_has_a_section_of_blockers(run: Run, model: Path) -> None:
    code, out, _ = run("report", model, "--target", "generic-npu", "-f", "json")
    assert code == 0
    sections = json.loads(out)["models"][0]["sections"]
    assert list(sections)[-1] == "blockers"
    assert [one["what"] for one in sections["blockers"]["blockers"]] == ["Trilu", "dims of the inputs"]
    code, out, _ = run("report", model, "-f", "json")
    assert "blockers" not in json.loads(out)["models"][0]["sections"]


def test_dims_are_those_of_the_blockers(run: Run, model: Path) -> None:
    _, out, _ = run("report", model, "--target", "generic-npu", "--only", "blockers", "--dim", "n=4")
    assert "Blockers for generic-npu at n=4" in out
    assert "dynamic shape" not in out


@pytest.mark.parametrize(("target", "code"), [("generic-npu", 1), ("ethos-u85", 1), ("mediatek-litert", 1)])
def test_fail_on_blockers(run: Run, model: Path, target: str, code: int) -> None:
    found = run("report", model, "--target", target, "--fail-on", "blockers", "--only", "blockers")
    assert found[0] == code
    assert found[2].splitlines()[0] == f"Finding: {model}: {target} refuses 1 node: Trilu"


def test_fail_on_blockers_where_there_are_none(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "fine.onnx"
    onnx.save(onnx.parser.parse_model(MODEL.replace("Trilu", "Relu").replace("[n, 4]", "[3, 4]")), path)
    code, _, err = run("report", path, "--target", "generic-npu", "--fail-on", "blockers", "--only", "blockers")
    assert (code, err) == (0, "")


def test_several_models_fail_on_the_blockers_of_any(run: Run, model: Path) -> None:
    code, out, err = run(
        "report", model, "example:merged-decoder", "--target", "generic-npu", "--full", "--fail-on", "blockers"
    )
    assert code == 1
    assert all(f"Finding: {name}: generic-npu refuses" in err for name in (model, "example:merged-decoder"))
    assert out.count("Blockers for generic-npu") == 2


def test_strict_counts_blockers_among_the_findings(run: Run, model: Path) -> None:
    only = ("--only", "blockers", "--target", "generic-npu")
    assert run("report", model, *only)[0] == 0
    code, _, err = run("report", model, *only, "--strict")
    assert code == 1
    assert err.splitlines() == [
        f"Finding: {model}: generic-npu refuses 1 node: Trilu",
        f"Finding: {model}: generic-npu refuses 1 node: dynamic dims",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "nope"), "no target 'nope' - there are mt8371, "),
        (("--target", "./none.toml"), "none.toml: there is no such file - name another one"),
        (("--fail-on", "blockers"), "--fail-on blockers: blockers are those for a target - name one with --target"),
        (("--only", "blockers"), "the section 'blockers' is about a target - name one with --target"),
        (("--target", "generic-npu", "--dim", "m=3"), "no input has a dim 'm' - there are n"),
    ],
)
def test_what_cannot_be_asked(run: Run, model: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run("report", model, *arguments)
    assert code == 2
    assert err.startswith(f"Error: {message}")


def test_a_target_file_of_ones_own(run: Run, model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\ndescription = "Mine."\n[sources.manual]\ntitle = "Manual"\ndate = 2026-01-02\n'
        '[operators]\notherwise = "allowed"\nsource = "manual"\n[dtypes]\notherwise = "allowed"\nsource = "manual"\n'
    )
    code, out, _ = run("report", model, "--target", own, "--only", "blockers", "--fail-on", "blockers")
    assert code == 0
    assert "0 blockers: nothing is known that keeps own from any of 1 node." in out
    own.write_text("name = [")
    code, _, err = run("targets", own)
    assert code == 2
    assert err.startswith(f"Error: {own}: it is not TOML: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("format", ["markdown", "html"])
def test_formats_of_the_blockers(run: Run, model: Path, format: str) -> None:
    code, out, _ = run("report", model, "--target", "generic-npu", "--only", "blockers", "-f", format)
    assert code == 0
    assert "tril-to-constant" in out
