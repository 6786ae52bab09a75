from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, ShellComplete

from graphkit.cli import app
from graphkit.examples import resolve

CAUSAL, MERGED = "example:causal-attention", "example:merged-decoder"
Run = Callable[..., tuple[object, str, str]]


def completed(*arguments: str) -> list[tuple[str, str]]:
    """Return what completes the last argument: types and values."""
    *before, incomplete = arguments
    found = ShellComplete(app, {}, "graphkit", "_GRAPHKIT_COMPLETE").get_completions(before, incomplete)
    return [(item.type, item.value) for item in found]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("sh",), ["shapes"]),
        (("split-merged", "--wei"), ["--weights"]),
        (("split-merged", "--weights", "in"), ["in-place", "inline"]),
        (("report", "x.onnx", "--only", "arch"), ["architecture"]),
        (("report", "x.onnx", "--only", "summary,interface,s"), ["summary,interface,shape-ops"]),
        (("report", "x.onnx", "--target", "ethos"), ["ethos-u65", "ethos-u85"]),
        (("lower", "x", "--target", "rk"), ["rk3588"]),
        (("targets", "qnn"), ["qnn-htp"]),
        (("explain", "fold-"), ["fold-constants", "fold-shapes"]),
        (("rewrite", "x.onnx", "-p", "freeze-dims{dims=N=1},fold-s"), ["freeze-dims{dims=N=1},fold-shapes"]),
        (("rewrite", "x.onnx", "-p", "freeze-dims{di"), []),
        (("report", "example:merged"), ["example:merged-decoder"]),
        (("verify", "x.onnx", "example:causal"), ["example:causal-attention"]),
        (("completion", "f"), ["fish"]),
        (("fold", CAUSAL, "--dim", ""), ["batch_size=", "sequence_length="]),
        (("set-dims", CAUSAL, "--dim", "b"), ["batch_size="]),
        (("report", CAUSAL, MERGED, "--range", "s"), ["sequence_length="]),
        (("fold", MERGED, "--input", "use"), ["use_cache_branch="]),
        (("compare", CAUSAL, CAUSAL, "--input", ""), ["input_ids="]),
        (("shapes", CAUSAL, "--why", "/Gather_2"), ["/Gather_2_output_0"]),
        (("extract", CAUSAL, "--to", "/Gather_2"), ["/Gather_2", "/Gather_2_output_0"]),
        (("extract", CAUSAL, "--from", "input"), ["input_ids"]),
        (("fold", "missing.onnx", "--dim", ""), []),
        (("fold", "--dim", ""), []),
    ],
)
def test_names_are_completed(
    arguments: tuple[str, ...], values: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no file begins like an example
    assert sorted(completed(*arguments)) == sorted(("plain", value) for value in values)


@pytest.mark.parametrize(
    "arguments", [("report", ""), ("shapes", "mod"), ("fold", "x.onnx", "-o", ""), ("targets", "./")]
)
def test_files_are_completed_by_the_shell(arguments: tuple[str, ...]) -> None:
    assert completed(*arguments) == [("file", arguments[-1])]


def test_a_file_goes_before_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "export.onnx").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("report", "ex") == [("file", "ex")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(run: Run, shell: str) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert f"_GRAPHKIT_COMPLETE={shell}_complete" in out


def test_bash_does_not_end_a_word_at_a_colon(run: Run) -> None:
    first, *others = run("completion", "bash")[1].splitlines(keepends=True)
    assert first == 'COMP_WORDBREAKS="${COMP_WORDBREAKS//:}"\n'
    assert "".join(others) == BashComplete(app, {}, "graphkit", "_GRAPHKIT_COMPLETE").source()


def test_dims_of_the_models_in_a_folder_are_completed(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(resolve(CAUSAL).read_bytes())
    (tmp_path / "b.onnx").write_bytes(b"broken")
    assert completed("report", str(tmp_path), "--dim", "seq") == [("plain", "sequence_length=")]
