from __future__ import annotations

import json
import pickle

import pytest
from onnx import parser

from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, PassChange, group_reasons

MODEL = Model.from_proto(
    parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Neg (x) }')
)
CHANGES = (PassChange("3 nodes: gone", "fold-shapes"), PassChange("1 Neg spelled", "neg-to-mul"))
DECLINED = (Declined("n/1", "it is data"), Declined("n/2", "it is data"), Declined("n/3", "its rank is unknown"))


def test_what_a_pipeline_did_is_a_table() -> None:
    outcome = Outcome(MODEL, CHANGES, DECLINED)
    assert str(outcome) == (
        "Outcome for g\n\nWhat was done\n\n"
        "Pass         Change\n───────────────────────────\nfold-shapes  3 nodes: gone\nneg-to-mul   1 Neg spelled\n\n"
        "What stays\n\nn/{1-2}: it is data\n\nn/3: its rank is unknown\n\n"
    )
    assert repr(outcome) == "Outcome(Model('g', 1 node), 2 changes, 3 declined)"


def test_a_change_is_its_sentence_and_knows_the_pass() -> None:
    change = pickle.loads(pickle.dumps(CHANGES[0]))
    assert change == "fold-shapes: 3 nodes: gone"
    assert (change.step, change.text) == ("fold-shapes", "3 nodes: gone")
    assert json.dumps(change) == '"fold-shapes: 3 nodes: gone"'


def test_what_one_pass_did_has_no_name_of_it() -> None:
    text = str(Outcome(MODEL, ("'x: y' is looked up by the host",)))
    assert text == (
        "Outcome for g\n\nWhat was done\n\nChange\n"
        "────────────────────────────────\n'x: y' is looked up by the host\n\n"
    )


def test_nothing_was_changed() -> None:
    outcome = Outcome(MODEL)
    assert str(outcome) == "Outcome for g\n\nNothing was changed.\n\n"
    assert "Nothing was changed." in outcome._repr_html_()
    assert outcome._repr_markdown_() == "# Outcome for g\n\nNothing was changed.\n"


def test_the_model_is_a_name_in_json() -> None:
    found = json.loads(Outcome(MODEL, ("a",), DECLINED[2:]).to_json())
    assert {name: found[name] for name in ("model", "changes", "declined")} == {
        "model": "g",
        "changes": ["a"],
        "declined": [{"where": "n/3", "reason": "its rank is unknown"}],
    }


@pytest.mark.parametrize(
    ("declined", "told"),
    [
        ([], ()),
        ([("a", "no"), ("b", "no"), ("c", "why")], ("a, b: no", "c: why")),
        ([("a: b", "no"), ("c", "no: why")], ("a: b: no", "c: no: why")),
        (
            [(f"/layers.{layer}/attn/Reshape", "no") for layer in range(18)] + [("/head/Reshape", "no")],
            ("/layers.{0-17}/attn/Reshape, /head/Reshape: no",),
        ),
        (
            [(f"/layers.{layer}/Add", f"its mask '/layers.{layer}/mask' is data") for layer in (0, 1, 2, 5)],
            ("/layers.{i=0-2,5}/Add: its mask '/layers.{i}/mask' is data",),
        ),
        ([(letter, "no") for letter in "abcdefgh"], ("a, b, c and 5 more: no",)),
        ([("e: 1", "no"), ("e: 2", "no")], ("e: {1-2}: no",)),
        ([(f"{'n' * 120}{layer}", "no") for layer in (0, 1)], (f"{'n' * 120}0 and 1 more: no",)),
    ],
)
def test_a_reason_is_told_once_with_the_families_it_holds_for(
    declined: list[tuple[str, str]], told: tuple[str, ...]
) -> None:
    assert group_reasons(Declined(*each) for each in declined) == told


def test_a_declined_part_of_a_report_is_its_sentence_and_knows_its_place() -> None:
    text = pickle.loads(pickle.dumps(Declined("n/1", "it is data")))
    assert text == "n/1: it is data"
    assert (text.where, text.reason) == ("n/1", "it is data")
    assert json.dumps(text) == '"n/1: it is data"'
