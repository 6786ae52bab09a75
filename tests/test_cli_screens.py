"""What commands print fits a screen: their help, with --help-all for the rest, and results, with --full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphkit.cli.commands import every_command

Run = Callable[..., tuple[object, str, str]]
SCREEN = 24
HELP = Path(__file__).with_name("cli_help.txt")  # at 80 columns


def test_the_help_of_each_command_is_that_of_the_golden_file(run: Run, request: pytest.FixtureRequest) -> None:
    text = "".join(f"$ graphkit {name} --help\n{run(name, '--help')[1]}\n" for name in every_command())
    if request.config.getoption("--write-golden"):
        HELP.write_text(text, encoding="utf-8")
    assert text.splitlines() == HELP.read_text(encoding="utf-8").splitlines(), "if meant, run pytest --write-golden"


@pytest.mark.parametrize("name", every_command())
def test_the_help_of_a_command_fits_a_screen(run: Run, name: str) -> None:
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 80
    assert run(name, "-h") == (code, out, err)


@pytest.mark.parametrize("name", every_command())
def test_all_options_are_in_the_help_for_all(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help-all")
    assert code == 0
    options = {word for option in every_command()[name].params for word in option.opts if word.startswith("--")}
    assert {word for word in options if f"{word} " in out or f"{word}\n" in out} == options


def test_options_for_servers_and_times_are_for_commands_that_read_models(run: Run) -> None:
    assert "Time limit for reading the graph of a model on a server. Default: 60." in " ".join(
        run("shapes", "--help-all")[1].split()
    )
    for name in ("explain", "targets", "schema", "contract"):
        out = run(name, "--help-all")[1]
        assert not any(word in out for word in ("--timeout", "--download", "--no-cache", "--memory"))


@pytest.mark.cases("providers", "targets", "compare", "report example:merged")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("report", "example:detection"), marks=pytest.mark.slow),
        ("report", "example:merged-decoder"),
        ("report", "example:prefill", "example:decode"),
        ("report", "example:sliding-window", "--target", "mt8371"),
        ("diff", "example:prefill", "example:decode"),
        pytest.param(
            ("set-dims", "example:detection", "--dim", "batch_size=1", "-o", "out.onnx", "--no-verify"),
            marks=pytest.mark.slow,
        ),
        ("fold", "example:detection", "-o", "out.onnx", "--no-verify"),
        ("compare", "example:encoder", "example:encoder"),
        ("verify", "example:encoder", "example:encoder"),
        ("targets",),
        ("providers",),
    ],
    ids=" ".join,
)
def test_what_a_command_prints_fits_a_terminal(
    run: Run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert len(out.rstrip().splitlines()) <= SCREEN
    if "--no-verify" in words:
        assert out.splitlines()[-2] == "$ graphkit report out.onnx"


def test_a_report_in_a_file_leaves_the_verdict_on_the_terminal(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = run("report", "example:merged-decoder", "-o", page)
    assert code == 0
    assert "! merged If crashes or slows runtimes" in out
    assert out.endswith(f"Wrote {page}.\n")
    code, out, _ = run("fold", "example:encoder", "-o", tmp_path / "out.onnx", "--report", tmp_path / "fold.html")
    assert "Proven bit for bit at every size" in out
    assert out.endswith(f"Wrote {tmp_path / 'fold.html'}.\n")
