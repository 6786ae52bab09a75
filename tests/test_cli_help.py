"""The help of commands: on one screen what most people use, with --help-all the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from golden_files import check_golden

from graphkit.cli.commands import every_command

Run = Callable[..., tuple[object, str, str]]
SCREEN = 30


def test_the_help_of_each_command_is_that_of_the_golden_file(run: Run, request: pytest.FixtureRequest) -> None:
    """At 80 columns: tests/golden/help.txt."""
    text = "".join(f"$ graphkit {name} --help\n{run(name, '--help')[1]}\n" for name in every_command())
    check_golden("help", text, writes=bool(request.config.getoption("--write-golden")), suffix="txt")


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
