from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import check, constants, lines, model_of

from graphkit.dtypes import INT64_MAX
from graphkit.passes.shapes.simplify_slice import CanonicalizeSlice

PASS = CanonicalizeSlice()
EVERY = [{"N": n, "L": length, "past": past} for n, length, past in ((1, 1, 0), (2, 2, 1), (3, 4, 5), (1, 6, 2))]
INT32 = 2**31 - 1


def graph(starts: str, ends: str, axes: str = "axis", steps: str = "one", data: str = "float[N, L]") -> str:
    """Return a Slice of x along the second axis, whose length is l."""
    return f"""g ({data} x) => (y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
        int64[1] minus = {{-1}}, int64[1] much = {{{INT64_MAX}}}, int64[1] axis = {{1}}> {{
            l = Shape <start = 1, end = 2> (x) p = Add (l, one) m = Sub (l, one) h = Div (l, two) n = Neg (l)
            s = Slice (x, {starts}, {ends}, {axes}, {steps}) y = Neg (s)
        }}"""


GONE = {
    "from 0 to the dim": graph("zero", "l"),
    "past the dim": graph("zero", "p"),
    "to a number that no dim reaches": graph("zero", "much"),
    "an empty past": graph("zero", "l", data="float[N, past]"),
    "without steps": graph("zero", "l", steps=""),
}


@pytest.mark.parametrize("text", GONE.values(), ids=GONE)
def test_one_that_cuts_nothing_off_is_gone(text: str) -> None:
    outcome = check(PASS, model_of(text), EVERY)
    assert lines(outcome.model) == ["y = Neg (x)"]


CONSTANT = {
    "the last": (graph("m", "l"), "s_starts", [-1]),
    "all but the last": (graph("one", "m"), "s_ends", [-1]),
    "to the end": (graph("one", "l"), "s_ends", [INT64_MAX]),
}


@pytest.mark.parametrize(("text", "name", "expected"), CONSTANT.values(), ids=CONSTANT)
def test_a_bound_becomes_a_constant(text: str, name: str, expected: list[int]) -> None:
    outcome = check(PASS, model_of(text), EVERY)
    assert constants(outcome.model)[name] == expected


STAYS = {
    "half of a dim": graph("zero", "h"),
    "backwards": graph("l", "zero", steps="minus"),
    "every other": graph("zero", "l", steps="two"),
    "data": "g (float[N, L] x, int64[1] e) => (y) <int64[1] zero = {0}> { s = Slice (x, zero, e) y = Neg (s) }",
    "steps that are data": "g (float[N, L] x, int64[1] e) => (y) <int64[1] zero = {0}, int64[1] much = {999999}> "
    "{ s = Slice (x, zero, much, zero, e) y = Neg (s) }",
    "axes that are data": "g (float[N, L] x, int64[1] e) => (y) <int64[1] zero = {0}, int64[1] one = {1}> "
    "{ s = Slice (x, zero, one, e) y = Neg (s) }",
    "an input without rank": "g (float[] x) => (float[] y) <int64[1] zero = {0}, int64[1] much = {9999999999}> "
    "{ s = Slice (x, zero, much) y = Neg (s) }",
    "more axes than dims": "g (float[N] x) => (y) <int64[2] zero = {0, 0}, int64[2] one = {1, 1}> "
    "{ s = Slice (x, zero, one) y = Neg (s) }",
    "constants": graph("one", "minus"),
}


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_it_stays(text: str) -> None:
    assert not PASS.run(model_of(text)).changes


def test_a_start_that_would_wrap_stays() -> None:
    """past - 1 is -1 where the past is empty, which means the last; -1 for it would mean the same at every past."""
    text = graph("m", "much", data="float[N, past]")
    outcome = check(PASS, model_of(text), EVERY)
    assert "s_starts" not in constants(outcome.model)


def test_int32_bounds_keep_their_type() -> None:
    text = """g (float[N, L] x) => (y) <int32[1] one = {1}, int32[1] axis = {1}> {
        l = Shape <start = 1> (x) i = Cast <to = 6> (l) m = Sub (i, one) s = Slice (x, m, i, axis) y = Neg (s) }"""
    outcome = check(PASS, model_of(text), EVERY)
    assert constants(outcome.model) == {"axis": [1], "s_starts": [-1], "s_ends": [INT32]}


def test_several_axes() -> None:
    text = """g (float[N, L, 4] x) => (y) <int64[2] zero = {0, 0}, int64[1] two = {2}, int64[2] axes = {-2, -1}> {
        l = Shape <start = 1, end = 2> (x) e = Concat <axis = 0> (l, two) s = Slice (x, zero, e, axes) y = Neg (s) }"""
    outcome = check(PASS, model_of(text), EVERY)
    assert constants(outcome.model)["s_ends"] == [INT64_MAX, 2]


def test_below_opset_10_bounds_are_attributes() -> None:
    text = "g (float[N, L] x) => (float[N, L] y) { y = Slice <starts = [0], ends = [99999], axes = [1]> (x) }"
    assert not check(PASS, model_of(text, opset=9), EVERY).changes


def test_one_that_gives_an_output_becomes_an_identity() -> None:
    text = graph("zero", "l").replace("s = Slice", "y = Slice").replace("y = Neg (s)", "")
    assert lines(check(PASS, model_of(text), EVERY).model) == ["y = Identity (x)"]


BOUNDS = ["zero", "one", "two", "minus", "much", "l", "p", "m", "h", "n"]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS), st.sampled_from(["L", "past"]))
def test_any_bounds_mean_the_same_afterwards(start: str, end: str, dim: str) -> None:
    check(PASS, model_of(graph(start, end, data=f"float[N, {dim}]")), EVERY)


def joined(start: str, end: str, axis: int = 1) -> str:
    """Return a Slice of three parts joined along the second axis: of L, 3 and L columns."""
    return f"""g (float[N, L] x, float[N, 3] z) => (y) <int64[1] zero = {{0}}, int64[1] minus = {{-3}},
        int64[1] last = {{{INT64_MAX}}}, int64[1] three = {{3}}, int64[1] axis = {{{axis}}}> {{
            l = Shape <start = 1, end = 2> (x) m = Add (l, three) n = Neg (l)
            a = Abs (x) c = Concat <axis = 1> (a, z, x)
            s = Slice (c, {start}, {end}, axis) y = Neg (s)
        }}"""


PARTS = {"the first": ("zero", "l", "a"), "a middle one": ("l", "m", "z"), "the last": ("m", "last", "x")}


@pytest.mark.parametrize(("start", "end", "part"), PARTS.values(), ids=PARTS)
def test_one_that_cuts_a_whole_part_out_of_a_concat_is_that_part(start: str, end: str, part: str) -> None:
    outcome = check(PASS, model_of(joined(start, end)), EVERY)
    assert lines(outcome.model)[-1] == f"y = Neg ({part})"


@pytest.mark.parametrize("read", ["y = Concat <axis = 1> (s, x)", "y = Concat <axis = -1> (x, s)"])
def test_one_that_cuts_several_whole_parts_is_a_concat_where_a_concat_reads_it(read: str) -> None:
    outcome = check(PASS, model_of(joined("zero", "m").replace("y = Neg (s)", read)), EVERY)
    assert "s = Concat <axis: int = 1> (a, z)" in lines(outcome.model)


FIVE = """g (float[N, past] x, float[N, 5] v) => (y)
<int64[1] axis = {1}, int64[1] low = {LOW}, int64[1] high = {HIGH}> {
    a = Abs (v) c = Concat <axis = 1> (a, x, v) s = Slice (c, low, high, axis) y = Neg (s)
}"""


@settings(max_examples=25, deadline=None)
@given(st.integers(-12, 12), st.one_of(st.integers(-12, 12), st.just(INT64_MAX)))
def test_any_numbers_cut_the_same_out_of_parts(low: int, high: int) -> None:
    check(PASS, model_of(FIVE.replace("LOW", str(low)).replace("HIGH", str(high))), EVERY)


def test_one_that_cuts_within_a_part_cuts_that() -> None:
    outcome = check(PASS, model_of(FIVE.replace("LOW", "1").replace("HIGH", "4")), EVERY)
    assert "s = Slice (a, s_starts, s_ends, axis)" in lines(outcome.model)


@pytest.mark.parametrize(("start", "end"), [("zero", "m"), ("zero", "three"), ("three", "last"), ("minus", "last")])
def test_one_that_cuts_across_the_parts_of_a_concat_stays(start: str, end: str) -> None:
    outcome = check(PASS, model_of(joined(start, end)), EVERY)
    assert "Slice" in lines(outcome.model)[-2]


def test_one_along_another_axis_than_that_of_a_concat_stays() -> None:
    outcome = check(PASS, model_of(joined("zero", "l", axis=0)), EVERY)
    assert "Slice" in lines(outcome.model)[-2]
