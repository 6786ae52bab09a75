"""Nodes that a rewrite moves to another graph match there: an inlined branch of an If, what is taken out of a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import model_of

from graphkit.graph.view import all_nodes
from graphkit.model import load
from graphkit.model_diff.model_diff import ModelDiff, diff
from graphkit.options import SplitOptions
from graphkit.workflows.split_decoder_file import split_file

IF = """(bool c, float[4] x) => (float[4] y) {
    outer = Relu (x)
    y = If (c) <
        then_branch = then () => (float[4] a) { inner = Tanh (outer) t = Exp (inner) a = Add (t, x) },
        else_branch = other () => (float[4] b) { inner = Tanh (outer) n = Neg (inner) b = Add (n, x) }
    >
}"""
THEN = "(float[4] x) => (float[4] y) { outer = Relu (x) inner = Tanh (outer) t = Exp (inner) y = Add (t, x) }"
ELSE = "(float[4] x) => (float[4] y) { outer = Relu (x) inner = Tanh (outer) n = Neg (inner) y = Add (n, x) }"
MERGED = ("marian-tiny/decoder_model_merged", "t5-tiny/decoder_model_merged", "gpt2-tiny/decoder_model_merged")


def told(found: ModelDiff) -> list[str]:
    nodes = found.nodes
    return [
        *(f"moved: {each.node} -> {each.other}" for each in nodes.moved),
        *(f"removed: {each.node} within '{each.within}'" for each in nodes.removed),
        *(f"added: {each.node} within '{each.within}'" for each in nodes.added),
        *(f"changed: {each.node}: {change}" for each in nodes.changed for change in each.changes),
    ]


@pytest.mark.parametrize(("inlined", "branch", "others"), [(THEN, "then", "Neg"), (ELSE, "else", "Exp")])
def test_an_inlined_branch_has_moved(inlined: str, branch: str, others: str) -> None:
    a, b = model_of(IF), model_of(inlined)
    gone = "else" if branch == "then" else "then"
    kept = "Exp" if branch == "then" else "Neg"
    inside = [f"If#1/{gone}_branch/{op}#{at}" for at, op in enumerate(["Tanh", others, "Add"])]
    pairs = [(f"If#1/{branch}_branch/{op}#{at}", f"{op}#{at + 1}") for at, op in enumerate(["Tanh", kept, "Add"])]

    assert told(diff(a, b)) == [
        *(f"moved: {one} -> {two}" for one, two in pairs),
        "removed: If#1 within ''",
        *(f"removed: {node} within 'If#1'" for node in inside),
    ]
    assert told(diff(b, a)) == [
        *(f"moved: {two} -> {one}" for one, two in pairs),
        "added: If#1 within ''",
        *(f"added: {node} within 'If#1'" for node in inside),
    ]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("t = Exp (inner)", "t = Log (inner)", ["changed: If#1/then_branch/Exp#1: operator: Exp -> Log"]),
        ("outer = Relu (x)", "outer = Abs (x)", ["changed: Relu#0: operator: Relu -> Abs"]),
        ("Add (t, x)", "Add (t, outer)", ["changed: If#1/then_branch/Add#2: input 1: x -> outer"]),
    ],
)
def test_a_node_that_moved_may_have_changed(before: str, after: str, change: list[str]) -> None:
    assert before in THEN
    found = told(diff(model_of(IF), model_of(THEN.replace(before, after))))
    assert [line for line in found if line.startswith("changed")] == change
    assert sum(line.startswith("moved") for line in found) == 3
    assert not any(line.startswith("added") for line in found)


def test_a_node_that_is_taken_out_of_a_branch_has_moved() -> None:
    taken_out = IF.replace("inner = Tanh (outer) ", "").replace(
        "outer = Relu (x)", "outer = Relu (x) inner = Tanh (outer)"
    )
    assert told(diff(model_of(IF), model_of(taken_out))) == [
        "moved: If#1/then_branch/Tanh#0 -> Tanh#1",
        "removed: If#1/else_branch/Tanh#0 within ''",
    ]


def test_two_ifs_are_inlined_into_one_graph() -> None:
    branches = [
        f"then_branch = g{n} () => (float[4] a{n}) {{ a{n} = {op} (x) }}, else_branch = h{n} () => (float[4] b{n}) "
        f"{{ b{n} = Neg (x) }}"
        for n, op in enumerate(["Exp", "Sin"])
    ]
    text = "(bool c, float[4] x) => (float[4] y) {{ p = {} q = {} y = Add (p, q) }}"
    a = model_of(text.format(*(f"If (c) <{branch}>" for branch in branches)))
    found = diff(a, model_of(text.format("Exp (x)", "Sin (x)")))
    assert [(each.node, each.other) for each in found.nodes.moved] == [
        ("If#0/then_branch/Exp#0", "Exp#0"),
        ("If#1/then_branch/Sin#0", "Sin#1"),
    ]
    assert Counter(each.operator for each in found.nodes.removed) == {"If": 2, "Neg": 2}
    assert (found.nodes.added, found.nodes.changed) == ((), ())


def test_what_was_moved_is_told_once_for_all_nodes() -> None:
    text = diff(model_of(IF), model_of(ELSE)).to_text()
    assert "nodes (4 removed, 3 moved)" in text
    assert "With 'If#1', 3 nodes of its bodies removed." in text
    assert "3 nodes moved from 'If#1/else_branch' to the main graph." in text
    assert "Tanh" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", MERGED)
def test_a_split_is_told_as_its_report_tells_it(name: str, model_file: Callable[[str], Path], tmp_path: Path) -> None:
    merged = load(model_file(name))
    split_file(merged.path or "", tmp_path, SplitOptions(verify=False))
    (decoder,) = merged.roles.merged
    branches = {"decoder_model.onnx": decoder.first_branch, "decoder_with_past_model.onnx": decoder.cache_branch}
    for file, branch in branches.items():
        part = load(tmp_path / file)
        found = diff(merged, part)
        nodes = Counter(each.operator for each in found.nodes.moved)
        assert nodes == Counter(each.operator for each in all_nodes(part.scopes) if not each.is_op("Constant"))
        assert {(each.graph, each.other_graph) for each in found.nodes.moved} == {(f"{decoder.node.path}/{branch}", "")}
        assert (found.nodes.added, found.nodes.changed, found.shapes) == ((), (), ())
        assert [each.node for each in found.nodes.removed if not each.within] == [decoder.node.path]
        assert {each.kind for each in found.weights} == {"removed"}
        assert not any(change.is_worse for change in found.finding_changes)
