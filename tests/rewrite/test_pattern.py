from __future__ import annotations

import pytest
from rewriting import lines, model_of

from graphkit.graph.view import Value
from graphkit.rewrite.base import MatchFailure
from graphkit.rewrite.editor import Builder, Editor
from graphkit.rewrite.pattern import Match, Number, Op, Pattern, nodes_of

X, Z = Pattern(), Pattern()
HEAD = "g (float[N] x, float[N] z) => (float[N] y) <float two = {2.0}, float[2] mixed = {2.0, 3.0}>"


def matched(pattern: Pattern, body: str) -> Match | None:
    editor = Editor(model_of(f"{HEAD} {{ {body} }}"))
    return pattern.match(editor, editor.model.graph.values["y"])


def names(match: Match | None, *patterns: Pattern) -> list[str]:
    assert match is not None
    return [match[pattern].name for pattern in patterns]


# Operators and their inputs


def test_inputs_are_captured_in_order() -> None:
    assert names(matched(Op("Sub", X, Z), "y = Sub (x, z)"), X, Z) == ["x", "z"]


@pytest.mark.parametrize("body", ["a = Neg (x) y = Mul (a, z)", "a = Neg (x) y = Mul (z, a)"])
def test_inputs_of_commutative_operators_match_in_either_order(body: str) -> None:
    assert names(matched(Op("Mul", Z, Op("Neg", X)), body), X, Z) == ["x", "z"]


def test_inputs_of_other_operators_match_in_order_alone() -> None:
    assert matched(Op("Sub", Z, Op("Neg", X)), "a = Neg (x) y = Sub (a, z)") is None


def test_an_order_is_given_up_where_the_rest_does_not_match() -> None:
    both = Op("Mul", Op("Add", X, Z), Op("Neg", Z))
    assert names(matched(both, "a = Add (z, x) b = Neg (z) y = Mul (b, a)"), X, Z) == ["x", "z"]


@pytest.mark.parametrize(("body", "is_square"), [("y = Mul (x, x)", True), ("y = Mul (x, z)", False)])
def test_a_pattern_that_occurs_twice_stands_for_one_value(body: str, is_square: bool) -> None:
    assert (matched(Op("Mul", X, X), body) is not None) == is_square


def test_there_are_as_many_inputs_unless_there_may_be_more() -> None:
    body = "s = Shape (x) y = Sum (x, z, z)"
    assert matched(Op("Sum", X, Z), body) is None
    assert names(matched(Op("Sum", X, Z, more=True), body), X, Z) == ["x", "z"]
    assert matched(Op("Sum", X, Z, Z, X, more=True), body) is None


def test_alternatives_are_tried_in_turn() -> None:
    scaled = Op("Div", X, Number(2)) | Op("Mul", X, Number(2))
    assert names(matched(scaled, "y = Mul (two, x)"), X, scaled) == ["x", "y"]
    assert matched(scaled, "y = Div (two, x)") is None


# Constants and readers


@pytest.mark.parametrize(
    ("number", "matches"), [(Number(2), True), (Number(2.1), False), (Number(2.1, 0.2), True), (Number(3), False)]
)
def test_numbers_are_uniform_constants(number: Number, matches: bool) -> None:
    assert (matched(Op("Mul", X, number), "y = Mul (x, two)") is not None) == matches
    assert matched(Op("Mul", X, number), "y = Mul (x, mixed)") is None


def test_a_value_that_is_used_once_has_no_other_reader() -> None:
    once = Op("Abs", Op("Neg", X, once=True))
    assert matched(once, "a = Neg (x) y = Abs (a)") is not None
    assert matched(once, "a = Neg (x) b = Exp (a) y = Abs (a)") is None
    assert matched(Op("Neg", X, once=True), "y = Neg (x)") is None  # it is an output


def test_known_parts_keep_their_values() -> None:
    editor = Editor(model_of(f"{HEAD} {{ y = Add (x, z) }}"))
    values: dict[str, Value] = dict(editor.model.graph.values)
    assert names(Op("Add", X, Z).match(editor, values["y"], {X: values["z"]}), X, Z) == ["z", "x"]
    assert Op("Add", X, Z).match(editor, values["y"], {X: values["y"]}) is None


def test_nodes_are_those_of_parts_that_a_match_has() -> None:
    negated, other = Op("Neg", X), Op("Exp", X)
    match = matched(Op("Abs", negated | other), "a = Neg (x) y = Abs (a)")
    assert match is not None
    assert [node.op_type for node in nodes_of(match, other, negated, X)] == ["Neg"]


# Failures and new nodes


def test_a_failure_is_recorded_where_it_has_a_reason() -> None:
    editor = Editor(model_of(f"{HEAD} {{ a = Neg (x) y = Abs (a) }}"))
    first, second = editor.model.graph.nodes
    for failure in (MatchFailure(), MatchFailure("its data is odd"), MatchFailure("so is it", second)):
        with editor.matching(first):
            raise failure
    assert [str(declined) for declined in editor.declined] == ["Neg#0: its data is odd", "Abs#1: so is it"]


def test_other_exceptions_pass() -> None:
    editor = Editor(model_of(f"{HEAD} {{ y = Neg (x) }}"))
    with pytest.raises(ValueError, match="broken"), editor.matching(editor.model.graph.nodes[0]):
        raise ValueError("broken")


def test_the_last_new_node_gives_the_output() -> None:
    editor = Editor(model_of(f"{HEAD} {{ a = Neg (x) y = Abs (a) }}"))
    node = editor.model.graph.nodes[0]
    builder = Builder(editor, node)
    square = builder.add("Mul", node.inputs[0], node.inputs[0], role="square")
    builder.add("Sub", builder.add("Exp", square), square)
    builder.replace()
    assert lines(editor.result()) == [
        "a_square = Mul (x, x)",
        "a_exp = Exp (a_square)",
        "a = Sub (a_exp, a_square)",
        "y = Abs (a)",
    ]
