"""Each kind of finding has a page, whose commands and options exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from graphkit.analysis import findings
from graphkit.analysis.findings import KIND_NAMES, KINDS, Kind, finding_page
from graphkit.analysis.report import ReportOptions, report
from graphkit.cli.commands import every_command
from graphkit.passes import PASSES

FOLDER = Path(findings.__file__).parent / "finding_pages"
PARTS = ["What it is", "Why it hurts", "Where it was seen", "What to do"]
COMMANDS = re.compile(r"`graphkit ([a-z-]+)([^`]*)`")


def test_every_page_is_of_a_kind() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(KIND_NAMES)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_page_says_what_and_why_and_what_to_do(kind: Kind) -> None:
    title, *lines = finding_page(kind.name).splitlines()
    assert title == f"# {kind.name}: {kind.says}"
    found = [line.removeprefix("## ") for line in lines if line.startswith("#")]
    assert found == [part for part in PARTS if part in found]
    assert {"What it is", "Why it hurts", "What to do"} <= {*found}


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_its_commands_and_options_exist(kind: str) -> None:
    for name, rest in COMMANDS.findall(finding_page(kind)):
        options = {option for parameter in every_command()[name].params for option in parameter.opts}
        assert {word for word in rest.split() if word.startswith("-")} <= options
        asked = re.search(r"-p (\S+)", rest)
        assert asked is None or asked[1] in {each.name() for each in PASSES}


def test_findings_lead_to_their_pages() -> None:
    made = report("example:merged-decoder", ReportOptions(only=("verdict", "control-flow")))
    first, *_ = made.found()
    assert first.help == "graphkit explain merged-if"
    assert made.explanations()["merged If crashes or slows runtimes"] == finding_page("merged-if")
    assert made.to_html().count("microsoft/onnxruntime#11367") == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_how_to_read_the_pages(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    every_command()["report"](["example:merged-decoder", "--only", "control-flow"], standalone_mode=False)
    hint = "\n\n`graphkit explain KIND` tells what to do about each finding: merged-if.\n"
    assert capsys.readouterr().out.endswith(hint) is is_terminal
