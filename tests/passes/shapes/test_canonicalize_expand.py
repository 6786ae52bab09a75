from __future__ import annotations

import pytest
from rewriting import check, constants, lines, model_of

from graphkit.passes.shapes.simplify_expand import CanonicalizeExpand, expand_spec
from graphkit.shapes import Expr, parse

PASS = CanonicalizeExpand()
INITS = "int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] six = {6}, int64[1] zero = {0}"
DIMS = "n = Shape <end = 1> (x) l = Shape <start = 1, end = 2> (x)"


def graph(op: str, data: str, parts: str) -> str:
    return f"g ({data} x) => (y) <{INITS}> {{ {DIMS} to = Concat <axis = 0> ({parts}) e = {op} (x, to) y = Neg (e) }}"


CONSTANT = {
    "what it has is 1": (graph("Expand", "float[N, 1, 4]", "n, six, four"), [1, 6, 1]),
    "1 for what it has": (graph("Expand", "float[N, 1, 4]", "one, six, one"), [1, 6, 1]),
    "dims in front": (graph("Expand", "float[N, L, 4]", "two, n, l, four"), [2, 1, 1, 1]),
    "an empty past": (graph("Expand", "float[1, past, 4]", "two, l, one"), [2, 1, 1]),
    "to no elements": (graph("Expand", "float[1, L, 4]", "zero, l, four"), [0, 1, 1]),
    "a Tile of dims of 1": (graph("Tile", "float[N, 1, 4]", "one, six, one"), [1, 6, 1]),
    "a Tile to no elements": (graph("Tile", "float[N, 1, 4]", "one, zero, one"), [1, 0, 1]),
}


@pytest.mark.parametrize(("text", "expected"), CONSTANT.values(), ids=CONSTANT)
def test_a_shape_becomes_a_constant(text: str, expected: list[int]) -> None:
    outcome = check(PASS, model_of(text))
    operator = "Tile" if "Tile" in text else "Expand"
    assert lines(outcome.model) == [f"e = {operator} (x, e_shape)", "y = Neg (e)"]
    assert constants(outcome.model) == {"e_shape": expected}


GONE = {
    "Expand": (graph("Expand", "float[N, L, 4]", "n, l, four"), "1 Expand without effect removed"),
    "Expand to less": (graph("Expand", "float[N, L, 4]", "one, one"), "1 Expand without effect removed"),
    "Tile": (graph("Tile", "float[N, L, 4]", "one, one, one"), "1 Tile without effect removed"),
    "Expand of an empty past": (
        graph("Expand", "float[N, past, 4]", "n, l, one"),
        "1 Expand without effect removed",
    ),
}


@pytest.mark.parametrize(("text", "change"), GONE.values(), ids=GONE)
def test_one_that_changes_nothing_is_gone(text: str, change: str) -> None:
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["y = Neg (x)"]
    assert outcome.changes == (change,)


STAYS = {
    "a dim that grows to what is no number": graph("Expand", "float[N, 1, 4]", "n, n, four"),
    "a Tile of other dims": graph("Tile", "float[N, 2, 4]", "one, two, one"),
    "a Tile of a dim that may be 1": graph("Tile", "float[N, L, 4]", "two, one, one"),
    "a Tile with constant repeats": "g (float[N, 1] x) => (y) <int64[2] r = {1, 3}> { t = Tile (x, r) y = Neg (t) }",
    "a constant": "g (float[N, 1] x) => (y) <int64[2] to = {1, 3}> { e = Expand (x, to) y = Neg (e) }",
    "data": "g (float[N, 1] x, int64[2] to) => (y) { e = Expand (x, to) y = Neg (e) }",
}


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_it_stays(text: str) -> None:
    assert not PASS.run(model_of(text)).changes


def test_below_opset_8_there_is_no_expand() -> None:
    text = "g (float[N, 1] x) => (float[N, 3] y) <int64[2] r = {1, 3}> { y = Tile (x, r) }"
    assert not check(PASS, model_of(text, opset=7)).changes


def test_one_that_gives_an_output_becomes_an_identity() -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) <int64[1] one = {1}> { y = Expand (x, one) }"
    assert lines(check(PASS, model_of(text)).model) == ["y = Identity (x)"]


def dims(text: str) -> tuple[Expr, ...]:
    return tuple(parse(part) for part in text.split())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("N 1", "N 6", (1, 6)),
        ("4", "N L 4", (parse("N"), parse("L"), 1)),
        ("N", "6", (6,)),  # N is 1 or 6
        ("", "2 2", (2, 2)),
        ("0 1", "0 3", (1, 3)),
    ],
)
def test_specs(before: str, after: str, expected: tuple[Expr | int, ...]) -> None:
    assert expand_spec(dims(before), dims(after)) == expected
