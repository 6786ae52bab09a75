"""Judges: commands of the user, run on each lowered model."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import pytest
from test_lower import OPTIONS, unpacked

from graphkit.cli import main
from graphkit.deploy.lower_report import KEPT, Judgement, Judgements, judge_models
from graphkit.errors import UsageError

FAILS_AT_STEP = "import sys; print('seen', sys.argv[1]); sys.exit('step' in sys.argv[1] and 3)"


def python(code: str, *words: str) -> str:
    return shlex.join([sys.executable, "-c", code, *words, "{model}"])


def asked(code: str, model: Path, seconds: float = 60.0) -> Judgement:
    (found,) = judge_models(python(code), [model], seconds)
    return found


def test_the_exit_status_and_the_output_are_the_judgement(tmp_path: Path) -> None:
    model = tmp_path / "a model; exit 1.onnx"  # no shell sees the name
    assert asked("import sys; print(sys.argv[1])", model).output == (str(model),)
    found = asked("import sys; print('no'); print('Gather', file=sys.stderr); sys.exit(4)", model)
    assert (found.model, found.status, found.why) == (model.name, 4, "exit status 4")
    assert set(found.output) == {"no", "Gather"}


def test_a_crash_is_a_failure(tmp_path: Path) -> None:
    found = asked("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path / "m.onnx")
    assert found.status == -11
    assert "SIGSEGV" in found.why


def test_a_judge_is_ended_with_what_it_started_when_its_time_is_over(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    start = time.monotonic()
    found = asked(child, tmp_path / "m.onnx", seconds=2.0)
    assert (found.status, found.why) == (None, "it does not end in 2 s")
    assert time.monotonic() - start < 300


def test_output_is_bounded_and_written_out(tmp_path: Path) -> None:
    found = asked("print('x' * 5_000_000); print('\\x1b[31m[bold]red')", tmp_path / "m.onnx")
    assert len("".join(found.output)) <= KEPT
    assert found.output[-1] == "\x1b[31m[bold]red"
    assert "\\x1b[31m[bold]red" in Judgements((found,)).to_text()
    assert "\x1b" not in Judgements((found,)).to_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mycc", "does not name the model"),
        ("mycc '{model}", "close the quotes"),
        ("", "does not name the model"),
        ("no-such-compiler {model}", "there is no program 'no-such-compiler'"),
    ],
)
def test_what_is_no_command_is_refused(command: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        list(judge_models(command, [tmp_path / "m.onnx"]))


def test_a_judge_that_refuses_a_model_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = unpacked("qwen2-tiny", tmp_path / "qwen2-tiny")
    sizes = [f"--src-len={OPTIONS.src_len}", f"--max-cache-len={OPTIONS.max_cache_len}", "--no-verify"]
    words = ["graphkit", "lower", str(source), "-o", str(tmp_path / "out"), *sizes, "-f", "json"]
    for code, status in ((FAILS_AT_STEP, 1), ("pass", 0)):
        monkeypatch.setattr(sys, "argv", [*words, "--overwrite", "--judge", python(code)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert (stop.value.code or 0) == status
        said = {one["model"]: (one["status"], one["why"]) for one in json.loads(out)["judged"]["judgements"]}
        refused = (3, "exit status 3") if status else (0, "")
        assert said == {name: refused if name == "step.onnx" else (0, "") for name in said}
        assert "step.onnx" in said
        assert ("Not done: step.onnx: " in err) == bool(status)


def test_a_judge_that_does_not_exist_is_noticed_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = unpacked("marian-tiny", tmp_path / "marian-tiny")
    words = ["graphkit", "lower", str(source), "-o", str(tmp_path / "out"), "--judge", "no-such-compiler {model}"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "no-such-compiler" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
