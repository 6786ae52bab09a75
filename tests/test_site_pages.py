"""The generated pages of the site: for each command, pass, finding, target and schema, and for each public name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from site_pages import (
    GENERATED,
    command_pages,
    finding_pages,
    judge_pages,
    pass_pages,
    python_pages,
    schema_pages,
    target_pages,
)
from site_pages.docstrings import as_restructured_text
from site_pages.links import linked
from site_pages.markdown import prose
from site_pages.notebook_pages import pages as notebook_pages
from site_pages.write import write_pages

import graphkit
from graphkit.analysis.findings import KIND_NAMES
from graphkit.cli.commands import every_command
from graphkit.judges.judge_list import JUDGES
from graphkit.judges.measure import MEASURED
from graphkit.passes import PASSES
from graphkit.targets import NAMES
from graphkit.workflows.output_schemas import SCHEMAS

DOCS = Path(__file__).parents[1] / "docs"


def test_each_command_has_a_page_with_all_its_options() -> None:
    made = command_pages.pages()
    assert made.keys() == {f"{name}.md" for name in every_command()} | {"index.md"}
    for name, command in every_command().items():
        shown_ones = (each for each in command.params if not getattr(each, "hidden", False))
        options = {option for each in shown_ones for option in each.opts if option.startswith("--")}
        shown = set(re.findall(r"--[\w-]+", made[f"{name}.md"]))
        assert options <= shown, name


def test_each_pass_has_a_section_with_its_example_drawn() -> None:
    made = pass_pages.pages()
    sections = re.findall(r"^## (\S+)$", "".join(text for name, text in made.items() if name != "index.md"), re.M)
    assert sorted(sections) == sorted(kind.name() for kind in PASSES)
    assert sum(text.count("<svg") for text in made.values()) == 2 * len(PASSES)
    linked = re.findall(r"\]\((\S+)\.md#(\S+)\)", made["index.md"])
    assert {name for _, name in linked} == {kind.name() for kind in PASSES}
    assert all(f"## {name}\n" in made[f"{page}.md"] for page, name in linked)


def test_each_option_of_a_pass_is_described() -> None:
    text = "".join(text for name, text in pass_pages.pages().items() if name != "index.md")
    assert '"""' not in text
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for kind in PASSES:
        shown = re.findall(r"\w+", " ".join(re.findall(r"^`(.*)`\n: ", sections[kind.name()], re.M)))
        options = {field.name for field in fields(kind) if field.init} - {"ranges"}  # which commands set by --range
        assert options <= set(shown), kind.name()


def test_each_finding_has_a_page_whose_threads_are_links() -> None:
    made = finding_pages.pages()
    assert made.keys() == {f"{name}.md" for name in KIND_NAMES} | {"index.md"}
    assert "https://github.com/microsoft/onnxruntime/issues/11367" in made["merged-if.md"]


def test_each_target_and_each_schema_has_a_page() -> None:
    targets = target_pages.pages()
    assert targets.keys() == {f"{name}.md" for name in NAMES} | {"index.md"}
    assert all("**Sources**" in targets[f"{name}.md"] for name in NAMES if name != "generic-npu")
    schemas = schema_pages.pages()
    assert schemas.keys() == {f"{name}.md" for name in SCHEMAS} | {"index.md"}
    assert "(../python/graphkit.contract.md#bundlecontract) says" in schemas["bundle.md"]
    assert "## BundleContract\n" in python_pages.pages()["graphkit.contract.md"]
    assert "[costs](../costs.md) defines" in schemas["costs.md"]


def test_each_public_name_is_documented_once() -> None:
    made = python_pages.pages()
    shown = re.findall(r"(?:auto\w+|py:data):: graphkit\.(\w+)$", "".join(made.values()), re.M)
    assert sorted(shown) == sorted(graphkit.__all__)


def test_each_notebook_is_a_page() -> None:
    made = notebook_pages()
    assert len(made) > 7
    assert all(name in made["index.md"] for name in made if name.endswith(".md") and name != "index.md")
    assert not any("../docs/" in text or "mermaid" in text for text in made.values())
    assert ">Unsqueeze</text>" in made["01-explore-shapes.md"]


@pytest.mark.parametrize("folder", GENERATED)
def test_git_ignores_the_folders_of_generated_pages(folder: str) -> None:
    ignored = (DOCS.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/docs/{folder}/" in ignored


def test_commands_and_passes_between_backticks_are_links() -> None:
    assert linked("Run `graphkit fold\nMODEL`.") == "Run [`graphkit fold\nMODEL`](../commands/fold.md)."
    assert linked("`fold-shapes`") == "[`fold-shapes`](../passes/clean-up.md#fold-shapes)"
    for text in ("`rename`, a command and a pass", "```text\n`fold-shapes`\n```", "[`fold-shapes`](here)", "`nothing`"):
        assert linked(text) == text


@pytest.mark.parametrize(
    ("what", "lines", "shown"),
    [
        ("property", ["The state: by name."], ["", "The state: by name."]),
        (
            "function",
            ["Run.", "", "Returns:", "    The proof: it says", "    whether.", "", "Raises:", "    UsageError: No."],
            ["Run.", "", ":returns: The proof: it says", "    whether.", "", "Raises:", "    UsageError: No."],
        ),
        ("function", ["Returns:", "    One."], [":returns: One."]),
    ],
)
def test_text_before_a_colon_is_no_type(what: str, lines: list[str], shown: list[str]) -> None:
    as_restructured_text(None, what, "", None, None, lines)
    assert lines == shown


def test_text_is_no_markup() -> None:
    assert prose("<b> of `a_b` and *c*") == "\\<b\\> of `a_b` and \\*c\\*"


def test_pages_that_are_made_no_more_go(tmp_path: Path) -> None:
    stale = tmp_path / "reference" / "commands" / "gone.md"
    stale.parent.mkdir(parents=True)
    stale.touch()
    write_pages(tmp_path, {"reference/commands": lambda: {"here.md": "# Here\n"}})
    assert [path.name for path in stale.parent.iterdir()] == ["here.md"]


def test_each_judge_has_a_page_that_names_the_targets_measured_by_it() -> None:
    pages = judge_pages.pages()
    assert {f"{name}.md" for name in JUDGES} <= pages.keys()
    for name, measured in MEASURED.items():
        assert name in pages[f"{measured.judge}.md"]
