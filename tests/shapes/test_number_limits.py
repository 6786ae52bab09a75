"""Elements that wrap around, or that a float rounds, are not followed; sizes are, and elements of bounds that fit."""

from __future__ import annotations

import pytest
from onnx import TensorProto
from small_models import model

from graphkit.ops.tensor import USUAL, bound_up_to, fits_dtype, has_elements, is_exact
from graphkit.shapes import Expr, const, floor_div, infer, maximum, minimum, symbol

n, past = symbol("n"), symbol("past")
e, small, bit = symbol("?0.e", -(1 << 63), (1 << 63) - 1), symbol("?1.s", 0, 255), symbol("?2.b", 0, 1)
I64, I32, U8, FLOAT, DOUBLE = TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.FLOAT, 11


def test_the_span_of_an_expression() -> None:
    assert bound_up_to(n) == (1, USUAL)
    assert bound_up_to(3 * past - 2) == (-2, 3 * USUAL - 2)
    assert bound_up_to(n * n * n) == (1, USUAL**3)
    assert bound_up_to(floor_div(n, 4) + minimum(past, 7)) == (0, USUAL // 4 + 7)
    assert bound_up_to(maximum(e, 0)) == (0, (1 << 63) - 1)
    assert bound_up_to(n - minimum(n, 5)) == (0, USUAL - 1)
    assert bound_up_to(const(7)) == (7, 7)


@pytest.mark.parametrize(
    ("expr", "dtype", "is_held"),
    [
        (e, I64, True),
        (e + 1, I64, False),
        (-e, I64, False),
        (2 * e, I64, False),
        (e, I32, False),
        (minimum(e, n) + 1, I64, True),
        (maximum(minimum(e, n), 0) * 4, I64, True),
        (small + 1, I64, True),
        (small + 1, U8, False),
        (small * n * 1000, I64, True),
        (bit * n, I64, True),
        (4 * n, I64, True),
        (2 * n * n, I64, True),
        (n, I32, True),
        (n, U8, False),
        (n - 2, TensorProto.UINT64, False),
    ],
)
def test_integers_that_a_dtype_holds(expr: Expr, dtype: int, is_held: bool) -> None:
    assert fits_dtype(expr, dtype) == is_held


@pytest.mark.parametrize(
    ("expr", "dtype", "is_held"),
    [
        (e, DOUBLE, False),
        (small, FLOAT, True),
        (n, FLOAT, True),
        (n, TensorProto.FLOAT16, False),
        (bit * n, DOUBLE, True),
    ],
)
def test_integers_that_a_float_holds(expr: Expr, dtype: int, is_held: bool) -> None:
    assert is_exact(expr, dtype) == is_held


def test_elements_are_told_from_dims() -> None:
    assert has_elements(n + e)
    assert not has_elements(n + symbol("?3.NonZero", 0))


@pytest.mark.parametrize(
    ("inputs", "output", "body", "expected"),
    [
        ("int64 e", "int64 y", "y = Add (e, one)", "?0.e + 1"),
        ("int64 e", "bool y", "a = Add (e, one) y = Less (e, a)", "1"),
        ("uint64 e", "uint64 y", "a = Cast <to = 13> (one) y = Add (e, a)", "?1.Add#2"),
        ("int32 e", "int32 y", "a = Cast <to = 6> (one) y = Add (e, a)", "?1.Add#2"),
        ("int64 e", "bool y", "y = Less (e, e)", "0"),
        ("int64 e", "int64 y", "y = Neg (e)", "-?0.e"),
        ("int32 e", "int64 y", "c = Cast <to = 7> (e) y = Add (c, one)", "?0.e + 1"),
        ("int32 e", "bool y", "c = Cast <to = 7> (e) a = Add (c, one) y = Less (c, a)", "1"),
        ("int64 e", "int64 y", "a = Cast <to = 6> (e) y = Cast <to = 7> (a)", "?1.Cast#1"),
        ("int64 e", "int64 y", "a = Cast <to = 11> (e) y = Cast <to = 7> (a)", "None"),
        ("int32 e", "int64 y", "a = Cast <to = 11> (e) y = Cast <to = 7> (a)", "?0.e"),
        ("int32 e", "int64 y", "a = Cast <to = 1> (e) y = Cast <to = 7> (a)", "None"),
        ("uint8 e", "uint8 y", "a = Cast <to = 1> (e) y = Cast <to = 2> (a)", "?0.e"),
        ("bool e", "bool y", "c = Cast <to = 7> (e) y = Less (c, two)", "1"),
        ("int64 e", "int64 y", "a = Mul (e, two) y = Sub (a, e)", "?2.Sub#2"),
        ("int64 e", "int64 y", "a = Min (e, two) b = Max (a, one) y = Mul (b, two)", "2*max(1, min(2, ?0.e))"),
    ],
)
def test_elements_of_inputs(inputs: str, output: str, body: str, expected: str) -> None:
    constants = {name: number for name, number in (("one", 1), ("two", 2)) if name in body}
    made = model(f"g (float[n] x, {inputs}) => (float[n] z, {output}) {{ z = Neg (x) {body} }}", **constants)
    data = infer(made)["y"].data
    assert str(None if data is None else data.item()) == expected


def test_a_fraction_that_becomes_an_integer_has_the_range_of_its_dtype() -> None:
    made = model("""g (float[n] x) => (uint8[1] y) {
        s = Shape (x) f = Cast <to = 1> (s) h = Mul (f, half) y = Cast <to = 2> (h)
    }""", half=0.5)  # fmt: skip
    assert str(infer(made)["y"].data.item())[:1] == "?"
