from __future__ import annotations

import numpy as np
import pytest
from rewriting import SIZES, check, feeds_of, lines, model_of

from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.simplify_slice import DropEmptyParts

PASS = DropEmptyParts()
INITS = "int64[1] zero = {0}, int64[1] four = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}"


def graph(nodes: str, inputs: str = "float[N, 4] x, float[N, L] z", outputs: str = "float[N, M] y") -> str:
    return f"g ({inputs}) => ({outputs}) <{INITS}> {{ e = Slice (x, four, end, last) {nodes} }}"


GONE = {
    "the last of two": (graph("b = Concat <axis = 1> (x, e) y = Abs (b)"), ["y = Abs (x)"]),
    "the first of two": (graph("b = Concat <axis = -1> (e, x) y = Abs (b)"), ["y = Abs (x)"]),
    "what is computed of nothing": (
        graph("n = Neg (e) m = Mul (n, n) b = Concat <axis = 1> (x, m) y = Abs (b)"),
        ["y = Abs (x)"],
    ),
    "one of three": (graph("y = Concat <axis = 1> (x, e, z)"), ["y = Concat <axis: int = 1> (x, z)"]),
    "all": (
        graph("b = Concat <axis = 1> (e, e) y = Abs (b)"),
        ["e = Slice (x, four, end, last)", "y = Abs (e)"],
    ),
    "before an output": (graph("y = Concat <axis = 1> (x, e)"), ["y = Identity (x)"]),
}
STAYS = {
    "a past that may be empty": "g (float[N, past] p, float[N, L] x) => (float[N, M] y) "
    "{ y = Concat <axis = 1> (p, x) }",
    "empty along another axis": "g (float[N, 0] x, float[L, 0] z) => (float[M, 0] y) { y = Concat <axis = 0> (x, z) }",
    "a length that is data": graph(
        "n = NonZero (z) t = Transpose <perm = [1, 0]> (n) i = Cast <to = 1> (t) y = Concat <axis = 0> (z, i)",
        "float[2, 2] z, float[N, 4] x",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_inputs_without_elements_go(name: str) -> None:
    text, expected = GONE[name]
    assert lines(check(PASS, model_of(text)).model) == expected


@pytest.mark.parametrize("name", STAYS)
def test_others_stay(name: str) -> None:
    assert not check(PASS, model_of(STAYS[name])).changes


def test_a_part_that_is_left_alone_has_the_dims_of_the_result() -> None:
    """onnxruntime takes a part without elements whatever its other dims; they are not those of the result."""
    model = model_of("g (float[N, 0] x, float[L, 0] z) => (float[M, 0] y) { y = Concat <axis = 1> (x, z) }")
    feeds = [feeds_of(model, {"N": 2, "L": 2})]
    outcome = check(PASS, model, feeds=feeds)
    assert lines(outcome.model) == lines(model)


def test_a_past_of_length_0_goes_once_it_is_frozen() -> None:
    model = model_of(
        "g (float[N, past, 4] p, float[N, L, 4] x) => (float[N, M, 4] y) { b = Concat <axis = 1> (p, x) y = Abs (b) }"
    )
    outcome = fold(model, dims={"past": 0})
    assert lines(outcome.model) == ["y = Abs (x)"]
    feeds = feeds_of(model, {"N": 2, "past": 0, "L": 3})
    check(lambda m: fold(m, dims={"past": 0}), model, feeds=[feeds])


@pytest.mark.parametrize("flag", [True, False])
def test_inside_a_branch(flag: bool) -> None:
    model = model_of(
        """g (float[N, 4] x, bool c) => (float[N, 4] y)
        <int64[1] four = {4}, int64[1] end = {9}, int64[1] last = {-1}> {
            y = If (c) < then_branch = t () => (float[N, 4] p) {
                e = Slice (x, four, end, last) b = Concat <axis = 1> (x, e) p = Abs (b) },
            else_branch = f () => (float[N, 4] q) { q = Neg (x) } >
        }"""
    )
    feeds = [{**feeds_of(model, sizes), "c": np.array(flag)} for sizes in SIZES]
    (text,) = lines(check(PASS, model, feeds=feeds).model)
    assert "Concat" not in text
    assert "Slice" not in text


def test_inside_a_loop() -> None:
    model = model_of(
        """g (float[N, 4] x) => (float[N, 4] y)
        <int64[1] four = {4}, int64[1] end = {9}, int64[1] last = {-1}, int64 three = {3}, bool true = {1}> {
            y = Loop (three, true, x) < body = b (int64 i, bool go, float[N, 4] s) => (bool on, float[N, 4] t) {
                on = Identity (go) e = Slice (s, four, end, last) n = Neg (s) t = Concat <axis = 1> (e, n) } >
        }"""
    )
    (text,) = lines(check(PASS, model).model)
    assert "Concat" not in text
