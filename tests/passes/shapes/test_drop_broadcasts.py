from __future__ import annotations

import numpy as np
import pytest
from rewriting import SIZES, check, constants, feeds_of, lines, model_of

from graphkit.graph.operator_traits import BROADCASTING
from graphkit.model import Model
from graphkit.passes.shapes.simplify_expand import DropBroadcasts, broadcast_dims
from graphkit.shapes import Expr, parse

PASS = DropBroadcasts()
BITS = {"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}


def graph(nodes: str, inits: str = "", inputs: str = "float[N, 1, 1] x, float[N, L, M] z", opset: int = 17) -> Model:
    return model_of(f"g ({inputs}) => (y) <{inits}> {{ s = Shape (z) {nodes} }}", opset)


GONE = {
    "Expand": graph("e = Expand (x, s) y = Add (e, z)"),
    "the right operand": graph("e = Expand (x, s) y = Sub (z, e)"),
    "one of three": graph("e = Expand (x, s) y = Max (z, e, x)"),
    "a choice": graph("e = Expand (x, s) c = Less (x, z) y = Where (c, e, z)"),
    "a Tile": graph("e = Tile (x, r) y = Mul (e, z)", "int64[3] r = {1, 1, 3}", "float[N, 1, 1] x, float[N, L, 3] z"),
    "of lower rank": graph("e = Expand (x, s) y = Add (e, z)", inputs="float[M] x, float[N, L, M] z"),
    "an empty past": graph("e = Expand (x, s) y = Add (e, z)", inputs="float[N, 1, 1] x, float[N, past, 4] z"),
}


@pytest.mark.parametrize("model", GONE.values(), ids=GONE)
def test_consumers_broadcast_themselves(model: Model) -> None:
    outcome = check(PASS, model)
    assert not any("Expand" in line or "Tile" in line for line in lines(outcome.model))
    assert len(lines(outcome.model)) < len(lines(model))


def test_several_consumers() -> None:
    text = """g (float[N, 1] x, float[N, L] z) => (a, b) {
        s = Shape (z) e = Expand (x, s) a = Add (e, z) b = Mul (z, e) }"""
    assert lines(check(PASS, model_of(text)).model) == ["a = Add (x, z)", "b = Mul (z, x)"]


def test_a_constant_of_shape_is_one_element() -> None:
    outcome = check(PASS, graph("e = ConstantOfShape <value = float[1] {3}> (s) y = Add (e, z)"))
    assert lines(outcome.model) == ["y = Add (e_value, z)"]
    assert constants(outcome.model) == {"e_value": [[[3.0]]]}
    assert outcome.changes == ("1 ConstantOfShape removed because the consumers broadcast",)


def test_without_a_value_it_is_zero() -> None:
    outcome = check(PASS, graph("e = ConstantOfShape (s) y = Add (e, z)"))
    assert constants(outcome.model) == {"e_value": [[[0.0]]]}


def test_a_scalar() -> None:
    text = "g (float[N] z) => (y) <int64[0] s = {}> { e = ConstantOfShape <value = float[1] {2}> (s) y = Mul (e, z) }"
    outcome = check(PASS, model_of(text))
    assert constants(outcome.model) == {"e_value": 2.0}


STAYS = {
    "no other operand has the dims": graph("e = Expand (x, s) y = Add (e, x)"),
    "an operand that broadcasts too": graph("e = Expand (x, s) r = ReduceSum (z) y = Add (e, r)"),
    "an output": model_of(
        "g (float[N, 1] x, float[N, L] z) => (y, e) { s = Shape (z) e = Expand (x, s) y = Add (e, z) }"
    ),
    "one of several consumers needs it": model_of(
        "g (float[N, 1] x, float[N, L] z) => (y, w) { s = Shape (z) e = Expand (x, s) y = Add (e, z) w = Neg (e) }"
    ),
    "an exponent": graph("e = ConstantOfShape <value = float[1] {3}> (s) y = Pow (z, e)"),
    "both operands": graph("e = Expand (x, s) y = Mul (e, e)"),
    "an operator that does not broadcast": graph("e = Expand (x, s) y = Concat <axis = 0> (e, z)"),
    "a Tile of other dims": graph(
        "e = Tile (x, r) y = Mul (e, z)", "int64[3] r = {1, 2, 1}", "float[N, 2, 1] x, float[N, 4, 1] z"
    ),
    "unknown dims": graph("e = Expand (x, s) y = Add (e, z)", inputs="float[N, 1, 1] x, float[] z"),
    "nothing reads it": model_of("g (float[N, 1] x) => (y) <int64[2] s = {1, 3}> { e = Expand (x, s) y = Neg (x) }"),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    assert not PASS.run(model).changes


def test_of_two_that_need_each_other_one_stays() -> None:
    text = """g (float[N, 1] x, float[1, L] w, float[N, L] z) => (y) {
        s = Shape (z) a = Expand (x, s) b = Expand (w, s) y = Add (a, b) }"""
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model)[-1] in ("y = Add (x, b)", "y = Add (x, w)")


def test_consumers_in_a_body() -> None:
    model = model_of("""
        g (float[N, 1] x, float[N, L] z, bool c) => (float[N, L] y) {
            s = Shape (z)
            e = Expand (x, s)
            y = If (c) < then_branch = t () => (float[N, L] a) { a = Add (e, z) },
                         else_branch = f () => (float[N, L] b) { b = Mul (z, e) } >
        }""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    (text,) = lines(check(PASS, model, feeds=feeds).model)
    assert "a = Add (x, z)" in text
    assert "b = Mul (z, x)" in text


def test_a_body_where_the_name_means_another_tensor() -> None:
    model = model_of("""
        g (float[N, 1] x, float[N, L] z, bool c) => (float[N, L] y) {
            a = Neg (x)
            s = Shape (z)
            e = Expand (a, s)
            y = If (c) < then_branch = t () => (float[N, L] r) <float[1] a = {3}> { q = Add (e, z) r = Add (q, a) },
                         else_branch = f () => (float[N, L] b) { b = Mul (z, e) } >
        }""")
    assert not PASS.run(model).changes


@pytest.mark.parametrize(
    "op", sorted(BROADCASTING.keys() - BITS - {"And", "Or", "Xor", "Where", "Mod", "Pow", "StringConcat"})
)
def test_operators(op: str) -> None:
    text = f"g (float[N, 1] x, float[N, L] z) => (y) {{ s = Shape (z) e = Expand (x, s) y = {op} (z, e) }}"
    assert lines(check(PASS, model_of(text)).model) == [f"y = {op} (z, x)"]


@pytest.mark.parametrize("op", sorted(BITS))
def test_bits(op: str) -> None:
    attributes = '<direction = "LEFT">' if op == "BitShift" else ""
    text = f"g (uint8[N, 1] x, uint8[N, L] z) => (y) {{ s = Shape (z) e = Expand (x, s) y = {op} {attributes} (z, e) }}"
    assert "Expand" not in "".join(lines(check(PASS, model_of(text, 18)).model))


def test_a_slope_broadcasts_to_a_tensor_and_never_the_other_way() -> None:
    text = "g (float[N, 1] x, float[N, L] z) => (y) { s = Shape (z) e = Expand (x, s) y = PRelu (e, z) }"
    assert not PASS.run(model_of(text)).changes


@pytest.mark.parametrize(("op", "opset", "goes"), [("Add", 7, True), ("Max", 7, False), ("Max", 8, True)])
def test_an_operator_broadcasts_from_its_opset_on(op: str, opset: int, goes: bool) -> None:
    model = model_of(
        f"g (float[N, 1] x, float[N, 4] z) => (y) {{ e = Tile (x, r) y = {op} (z, e) }}",
        opset,
        r=np.array([1, 4]),
    )
    assert bool(PASS.run(model).changes) == goes


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    text = f"g (bool[N, 1] x, bool[N, L] z) => (y) {{ s = Shape (z) e = Expand (x, s) y = {op} (e, z) }}"
    assert lines(check(PASS, model_of(text)).model) == [f"y = {op} (x, z)"]


def test_integers_that_divide() -> None:
    text = "g (int64[N, L] z) => (y) { s = Shape (z) e = ConstantOfShape <value = int64[1] {3}> (s) y = Mod (z, e) }"
    assert lines(check(PASS, model_of(text)).model) == ["y = Mod (z, e_value)"]


def dims(text: str) -> tuple[Expr, ...]:
    return tuple(parse(part) for part in text.split())


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (["N 1", "N L"], "N L"),
        (["L", "N L"], "N L"),
        (["", "N"], "N"),
        (["N", "L"], None),
        (["0", "1"], "0"),
        (["past", "1"], "past"),
        (["2", "N"], None),
    ],
)
def test_dims_that_broadcast(shapes: list[str], expected: str | None) -> None:
    assert broadcast_dims(map(dims, shapes)) == (None if expected is None else dims(expected))
