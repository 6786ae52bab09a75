from __future__ import annotations

import pytest
from rewriting import check, constants, lines, model_of, reasons

from graphkit.passes.shapes.simplify_reshape import CanonicalizeReshape, open_spec, reshape_spec
from graphkit.shapes import Expr, parse

PASS = CanonicalizeReshape()
INITS = "int64[1] minus = {-1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[1] six = {6}"
DIMS = "n = Shape <end = 1> (x) l = Shape <start = 1, end = 2> (x)"


def reshape(data: str, parts: str, more: str = "") -> str:
    return f"""g ({data} x) => (y) <{INITS}> {{
        {DIMS} {more} to = Concat <axis = 0> ({parts}) r = Reshape (x, to) y = Neg (r) }}"""


CONSTANT = {
    "copies and numbers": (reshape("float[N, L, 6]", "n, l, two, three"), [0, 0, 2, 3]),
    "a dim that is inferred": (reshape("float[N, L, 6]", "n, minus"), [0, -1]),
    "a product is inferred": (reshape("float[N, L, 6]", "m, six", "m = Mul (n, l)"), [-1, 6]),
    "a dim at another place is inferred": (reshape("float[2, L, 3]", "l, six"), [-1, 6]),
    "the batch moves, the rest is numbers": (reshape("float[N, 4, 6]", "four, m", "m = Mul (n, six)"), [4, -1]),
    "an empty past is copied": (reshape("float[N, past, 6]", "n, l, two, three"), [0, 0, 2, 3]),
    "an empty past is inferred, the batch copied": (reshape("float[N, past, 6]", "n, m", "m = Mul (l, six)"), [0, -1]),
}


@pytest.mark.parametrize(("text", "expected"), CONSTANT.values(), ids=CONSTANT)
def test_a_shape_becomes_a_constant(text: str, expected: list[int]) -> None:
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["r = Reshape (x, r_shape)", "y = Neg (r)"]
    assert constants(outcome.model) == {"r_shape": expected}
    assert outcome.changes == ("1 Reshape given a constant shape",)


GONE = {
    "the shape that it has": reshape("float[N, L, 6]", "n, l, six"),
    "-1 for what it has": reshape("float[N, L, 6]", "n, minus, six"),
    "-1 for an empty past": reshape("float[N, past, 6]", "n, minus, six"),
    "a constant that copies": "g (float[N, L] x) => (y) <int64[2] to = {0, -1}> { r = Reshape (x, to) y = Neg (r) }",
    "one element": "g (float[1] x) => (float[1] y) <int64[1] to = {-1}> { r = Reshape (x, to) y = Neg (r) }",
}


@pytest.mark.parametrize("text", GONE.values(), ids=GONE)
def test_one_that_changes_nothing_is_gone(text: str) -> None:
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["y = Neg (x)"]
    assert outcome.changes == ("1 Reshape without effect removed",)


def test_one_that_gives_an_output_becomes_an_identity() -> None:
    text = "g (float[N, L] x) => (float[N, L] y) <int64[2] to = {0, -1}> { y = Reshape (x, to) }"
    assert lines(check(PASS, model_of(text)).model) == ["y = Identity (x)"]


STAYS = {
    "two dims that are neither": (
        reshape("float[N, L, 6]", "l, n, six"),
        "Reshape#3: its shape has two dims that are neither numbers nor copied: [L, N, 6]",
    ),
    "-1 beside what may be empty": (
        reshape("float[N, past, 6]", "l, m", "m = Mul (n, six)"),
        None,
    ),
    "elements that are data": ("g (float[N, 4] x, int64[2] to) => (y) { y = Reshape (x, to) }", None),
    "a constant": ("g (float[N, 4] x) => (y) <int64[2] to = {-1, 2}> { y = Reshape (x, to) }", None),
    "an input without rank": ("g (float[] x, int64[2] to) => (y) { y = Reshape (x, to) }", None),
}


@pytest.mark.parametrize(("text", "reason"), STAYS.values(), ids=STAYS)
def test_it_stays(text: str, reason: str | None) -> None:
    model = model_of(text)
    outcome = PASS.run(model)
    assert not outcome.changes
    assert reason is None or reasons(outcome) == [reason]


def test_what_allows_zero_is_written_without() -> None:
    text = """g (float[N, past, 6] x) => (y) <int64[1] six = {6}> {
        n = Shape <end = 1> (x) p = Shape <start = 1, end = 2> (x) m = Mul (n, p) to = Concat <axis = 0> (m, six)
        r = Reshape <allowzero = 1> (x, to) y = Neg (r) }"""
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["r = Reshape (x, r_shape)", "y = Neg (r)"]
    assert constants(outcome.model) == {"r_shape": [-1, 6]}


def test_no_elements_at_all() -> None:
    text = """g (float[N, 0, 6] x) => (y) <int64[1] six = {6}> {
        n = Shape <end = 1> (x) z = Shape <start = 1, end = 2> (x) to = Concat <axis = 0> (z, n, six)
        r = Reshape <allowzero = 1> (x, to) y = Neg (r) }"""
    model = model_of(text)
    outcome = check(PASS, model)
    assert lines(outcome.model) in (lines(model), ["r = Reshape (x, r_shape)", "y = Neg (r)"])


@pytest.mark.parametrize("opset", [9, 13, 14, 19, 21])
def test_opsets(opset: int) -> None:
    text = f"""g (float[N, L, 6] x) => (y) <{INITS}, int64[1] zero = {{0}}> {{
        s = Shape (x) n = Gather (s, zero) to = Concat <axis = 0> (n, minus, two) r = Reshape (x, to) y = Neg (r) }}"""
    assert constants(check(PASS, model_of(text, opset)).model) == {"r_shape": [0, -1, 2]}


def test_the_name_and_the_notes_of_the_node_stay() -> None:
    model = model_of(reshape("float[N, L, 6]", "n, minus"))
    node = model.proto.graph.node[3]
    node.name, node.doc_string = "mine", "why"
    node.metadata_props.add(key="from", value="here")
    assert node.op_type == "Reshape"
    found = PASS.run(model).model.proto.graph.node[0]
    assert (found.name, found.doc_string, found.metadata_props[0].value) == ("mine", "why", "here")


def dims(text: str) -> tuple[Expr, ...]:
    return tuple(parse(part) for part in text.split())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("N L 6", "N L 2 3", (0, 0, 2, 3)),
        ("N L 6", "N 6*L", (0, -1)),
        ("N past 6", "N 6*past", (0, -1)),
        ("N past 6", "N*past 6", (-1, 6)),
        ("N L 6", "L N 6", None),
        ("N past 6", "past N 6", None),
        ("N 0 6", "N 0", (0, 0)),
        ("N 6 0", "N 0", (0, -1)),
        ("1 N", "N", (-1,)),
        ("1 1", "", ()),
        ("N 6", "N 9223372036854775807", (0, 9223372036854775807)),
        ("N M", "N 0 9223372036854775808", None),
    ],
)
def test_specs(before: str, after: str, expected: tuple[int, ...] | None) -> None:
    assert reshape_spec(dims(before), dims(after)) == expected


def test_the_longest_expression_is_inferred() -> None:
    assert open_spec(dims("A B C"), dims("C A*B")) == (parse("C"), -1)
