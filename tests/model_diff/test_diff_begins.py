"""What a diff begins with, and how short it can be."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphkit
from graphkit.model_diff.node_changes import Redeclared
from graphkit.options import DiffOptions, FoldOptions
from graphkit.workflows.fold_file import fold_file


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folded") / "folded.onnx"
    fold_file("example:detection", path, FoldOptions(verify=False))
    return path


def test_a_fold_declares_outputs_anew_and_has_the_same_interface(folded: Path) -> None:
    found = graphkit.diff("example:detection", folded)
    assert {type(change) for change in found.interface} == {Redeclared}
    assert found.interface[0].before == "float32[Addlogits_dim_0, Addlogits_dim_1, 3]"
    text = " ".join(found.to_text().split())
    assert "They differ in findings (1), interface (2 outputs declared anew), metadata" in text
    assert "B costs so many times what A does: file and weights 0." in text


def test_another_size_of_an_output_is_no_declaration_anew() -> None:
    a = graphkit.load(graphkit.fold("example:encoder", dims={"batch_size": 1}).model.restore())
    b = graphkit.load(graphkit.fold("example:encoder", dims={"batch_size": 2}).model.restore())
    found = graphkit.diff(a, b)
    assert Redeclared not in {type(change) for change in found.interface}
    assert "interface (3)" in found.to_text()


def test_findings_and_costs_come_first_and_a_brief_diff_has_these_alone(folded: Path) -> None:
    markdown = graphkit.diff("example:detection", folded).to_markdown()
    heads = [line for line in markdown.splitlines() if line.startswith("## ")]
    assert heads[:3] == ["## Findings", "## Costs", "## Interface"]
    brief = graphkit.diff("example:detection", folded, DiffOptions(brief=True)).to_markdown()
    assert [line for line in brief.splitlines() if line.startswith("## ")] == ["## Findings", "## Costs"]
    assert len(brief.splitlines()) <= 24
