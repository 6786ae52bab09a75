from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, ShellComplete, get_completion_class
from real_models import params

from graphkit.cli import app
from graphkit.cli.shell_completion import OURS
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
        (("verify", "a.onnx", "b.onnx", "--provider", "web"), ["webgpu"]),
        (("explain", "merged"), ["merged-if"]),
        (("explain", "fold-"), ["fold-constants", "fold-into-weights", "fold-shapes"]),
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
        (("shapes", CAUSAL, "--filter", "/Gather_2"), ["/Gather_2_output_0"]),
        (("verify", CAUSAL, "x.onnx", "--map", "/Gather_2"), ["/Gather_2_output_0="]),
        (("compare", CAUSAL, CAUSAL, "--map", "/Gather_2"), ["/Gather_2_output_0="]),
        (("rename", CAUSAL, "--input-name", ""), ["input_ids="]),
        (("rename", MERGED, "--output-name", "l"), ["logits="]),
        (("rename", CAUSAL, "--dim-name", "b"), ["batch_size="]),
        (("rename", CAUSAL, "--value-name", "/Gather_2"), ["/Gather_2_output_0="]),
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
    ours = "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
    source = BashComplete(app, {}, "graphkit", "_GRAPHKIT_COMPLETE").source()
    assert [line for line in others if line != ours] == source.splitlines(keepends=True)


def test_dims_of_the_models_in_a_folder_are_completed(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(resolve(CAUSAL).read_bytes())
    (tmp_path / "b.onnx").write_bytes(b"broken")
    assert completed("report", str(tmp_path), "--dim", "seq") == [("plain", "sequence_length=")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_what_ours_changes(shell: str, run: Run) -> None:
    assert OURS[shell][0] in found_template(shell)
    assert OURS[shell][1] in run("completion", shell)[1]


def found_template(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(app, {}, "graphkit", "_GRAPHKIT_COMPLETE").source_template % {
        "complete_func": "_graphkit_completion",
        "prog_name": "graphkit",
        "complete_var": "_GRAPHKIT_COMPLETE",
    }


STARTS = {
    "bash": ("bash", ["--norc", "-i"], 'eval "$(graphkit completion bash)"'),
    "zsh": ("zsh", ["-f", "-i"], 'autoload -U compinit && compinit -u -D && eval "$(graphkit completion zsh)"'),
    "fish": ("fish", ["--private", "--no-config"], "graphkit completion fish | source"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="these shells need a terminal of Unix")
@pytest.mark.parametrize("shell", params(STARTS, slow=("zsh", "fish")))
def test_a_size_follows_a_name_without_a_space(shell: str, tmp_path: Path) -> None:
    """Type into a shell in a terminal, and run what stands on the line."""
    pexpect = pytest.importorskip("pexpect")
    name, arguments, start = STARTS[shell]
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "graphkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m graphkit "$@"\n')
    (bin_ / "graphkit").chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}
    child = pexpect.spawn(
        name, arguments, env=env, cwd=str(tmp_path), encoding="utf-8", timeout=300, dimensions=(50, 200)
    )
    out = tmp_path / "shape.json"
    child.sendline(f"{start} && echo ready''now")
    child.expect("readynow")
    child.send(f"graphkit shapes example:causal-attention -o {out} --dim ba\t")
    child.expect("tch_size=")
    child.send("3 --why logi\t\r")
    child.sendline("echo end''ed")
    child.expect("ended")
    child.close(force=True)
    made = json.loads(out.read_text())
    assert (made["tensor"], made["shape"][0]) == ("logits", 3)
