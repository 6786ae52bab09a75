"""Elements of small float tensors, and quotients of integers: those of onnxruntime to the bit, or unknown."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from small_models import model

from graphkit.ops.element_values import cast_number
from graphkit.runtime.session import Session
from graphkit.shapes import Expr, infer

SPECIAL = [-0.5, -0.4, -0.0, 0.0, 0.4, 0.5, -1.5, 2.5, 3.0, 1e-45, 1e30, np.nan, np.inf, -np.inf]
ONE = ["Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sqrt"]
TWO = ["Add", "Div", "Max", "Min", "Mul", "Sub"]


def known(body: str, output: str = "y", **constants: object) -> tuple[list[object], np.ndarray]:
    """Return the elements that are known of an output, None for each that is not, and those of a run."""
    made = model(f"g (float[n] x) => (float[n] z, {output}) {{ z = Neg (x) {body} }}", **constants)
    found = infer(made)["y"].data
    ran = Session(made, threads=1).run({"x": np.ones(2, np.float32)})["y"]
    return [None] * ran.size if found is None else found.ravel().tolist(), ran.ravel()


def bits(value: object) -> bytes:
    return np.float32(value).tobytes()


@pytest.mark.cases(38)
@pytest.mark.parametrize("operator", ONE)
@pytest.mark.parametrize("number", SPECIAL)
def test_an_operator_of_one_number_is_right_or_unknown(operator: str, number: float) -> None:
    (found,), (ran,) = known(f"y = {operator} (c)", "float[1] y", c=[number])
    assert found is None or bits(found) == bits(ran) or (np.isnan(found) and np.isnan(ran))


@pytest.mark.cases(2)
@pytest.mark.parametrize("operator", TWO)
def test_an_operator_of_two_numbers_is_right_or_unknown(operator: str) -> None:
    for left in SPECIAL:
        for right in SPECIAL:
            (found,), (ran,) = known(f"y = {operator} (c, d)", "float[1] y", c=[left], d=[right])
            assert found is None or bits(found) == bits(ran) or (np.isnan(found) and np.isnan(ran)), (left, right)


@pytest.mark.parametrize(
    ("body", "constants", "expected"),
    [
        ("y = Ceil (c)", {"c": [-0.5]}, "-0.0"),
        ("y = Round (c)", {"c": [-0.4]}, "-0.0"),
        ("y = Floor (c)", {"c": [-0.4]}, "-1.0"),
        ("y = Max (c, d)", {"c": [0.0], "d": [-0.0]}, "None"),
        ("y = Max (c, d)", {"c": [-0.0], "d": [-0.0]}, "-0.0"),
        ("y = Max (c, d)", {"c": [1.0], "d": [np.nan]}, "None"),
        ("y = Min (c, d)", {"c": [1.0], "d": [0.25]}, "0.25"),
        ("y = Clip (c, l)", {"c": [np.nan], "l": 0.0}, "None"),
        ("y = Clip (c, l)", {"c": [2.0], "l": 3.0}, "3.0"),
        ("y = Sign (c)", {"c": [np.nan]}, "None"),
        ("y = Sign (c)", {"c": [-0.0]}, "None"),
        ("y = Sign (c)", {"c": [-2.0]}, "-1.0"),
        ("b = IsNaN (x) f = Slice (b, i0, i1) y = Where (f, c, d)", {"c": [0.0], "d": [-0.0]}, "None"),
        ("y = Sum (c, d, e)", {"c": [1e8], "d": [1.0], "e": [-1e8]}, "None"),
        ("y = Sum (c, d)", {"c": [1.0], "d": [2.0]}, "3.0"),
        ("y = Pow (c, d)", {"c": [3.0], "d": [2.0]}, "9.0"),
    ],
)
def test_zeros_have_signs_and_nan_is_none_of_the_numbers(
    body: str, constants: dict[str, object], expected: str
) -> None:
    numbers = {name: np.array(value) for name, value in (("i0", [0]), ("i1", [1])) if name in body}
    (found,), _ = known(body, "float[1] y", **numbers, **constants)
    assert str(found) == expected


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceProd", "ReduceMean"])
def test_floats_are_summed_in_no_known_order(operator: str) -> None:
    numbers = [1e8, 1, -1e8, 1, 1e8, 3, -1e8, 7, 0.1, 0.2, 0.3, 1e7, -1e7, 2, 3, 4]
    found, ran = known(f"y = {operator} <keepdims = 0> (c)", "float y", c=numbers)
    assert found != [94906267**2]
    assert ran.size == 1


def test_integers_are_summed_in_any_order() -> None:
    found, ran = known("y = ReduceSum <keepdims = 0> (c)", "int64 y", c=np.arange(9))
    assert found == [36] == ran.tolist()
    found, ran = known("y = ReduceMax <keepdims = 0> (c)", "float y", c=[0.5, 2.5, -1.0])
    assert found == [2.5] == ran.tolist()


def test_powers_of_several_exponents_are_unknown() -> None:
    """C's pow may round otherwise than a product does, and counts integers in float64."""
    found, _ = known("y = Pow (c, d)", "float[2] y", c=[3.0, 1.1], d=[2.0, 2.0])
    assert found == [None, None]
    found, ran = known("y = Pow (c, d)", "int64[1] y", c=np.array([2**53 + 1]), d=np.array([1]))
    assert found != [2**53 + 1] != ran.tolist()
    found, ran = known("y = Pow (c, d)", "int64[1] y", c=np.array([94906267]), d=np.array([2]))
    assert found != [94906267**2]
    assert ran.tolist() != [94906267**2]


STEPS = [(0.0, 0.3, 0.1), (0.1, 0.4, 0.1), (0.0, 1.0, 0.1), (1.0, 0.0, -0.25), (0.0, 2.5, 0.5), (5.0, 0.0, 1.0)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_steps_between_floats_are_as_many_as_in_a_run_or_unknown(
    steps: tuple[float, float, float], kind: type[np.floating]
) -> None:
    word = "float" if kind is np.float32 else "double"
    head = f"g (float[n] x, {word} a, {word} l, {word} d) => (float[n] z, {word}[k] y)"
    feeds = dict(zip("ald", map(kind, steps), strict=True))
    made = model(head + " { z = Neg (x) y = Range (a, l, d) }")
    size = infer(made, values={name: np.asarray(value) for name, value in feeds.items()})["y"].dims[0].constant
    ran = Session(made, threads=1).run({"x": np.ones(2, np.float32), **{k: np.asarray(v) for k, v in feeds.items()}})
    assert size in (None, len(ran["y"]))
    assert (size is None) == (kind is np.float32 and steps[1] in (0.3, 0.4))


def test_a_number_that_is_rounded_twice_is_unknown() -> None:
    assert cast_number(1 + 2**-11 + 2**-40, TensorProto.FLOAT16) is None
    assert cast_number(1.5, TensorProto.FLOAT16) == 1.5
    assert cast_number(2**53 + 1, TensorProto.DOUBLE) == 2**53
    assert cast_number(2**60 + 2**36 + 1, TensorProto.FLOAT) is None
    assert str(cast_number(-0.0, TensorProto.FLOAT16)) == "-0.0"


@pytest.mark.parametrize(("sign", "divisor"), [(1, 3), (1, -3), (-1, 3), (-1, -3)])
def test_a_quotient_of_integers_is_cut_towards_zero_whatever_the_signs(sign: int, divisor: int) -> None:
    text = "g (float[n] x) => (float[n] z, int64[1] y) { z = Neg (x) s = Shape (x) t = Mul (s, a) y = Div (t, b) }"
    made = model(text, a=[sign], b=[divisor])
    found = infer(made)["y"].elements
    assert found is not None
    session = Session(made, threads=1)
    for size in (0, 1, 2, 3, 4, 7, 9):
        (ran,) = session.run({"x": np.ones(size, np.float32)})["y"]
        assert Expr.of(found[0]).evaluate({"n": size}) == ran  # type: ignore[arg-type]


FLOORED = """
n = Shape <start = 0, end = 1> (x) a = Add (n, shift) q = Div (a, d)
sign = Sign (a) same = Equal (sign, one) other = Not (same) m = Mod (a, d) rest = Cast <to = 9> (m)
both = And (other, rest) less = Cast <to = 7> (both) floor = Sub (q, less) count = Add (floor, one)
"""


@pytest.mark.parametrize(("shift", "known"), [(-1, "(n + 31) // 32"), (0, "n // 32 + 1"), (-2, None)])
def test_a_quotient_that_torch_rounds_down_is_known_where_its_dividend_is_not_negative(
    shift: int, known: str | None
) -> None:
    made = model(
        f"g (float[n] x) => (int64[1] count) {{ {FLOORED} }}",
        shift=np.array([shift]),
        d=np.array([32]),
        one=np.array([1]),
    )
    (found,) = infer(made)["count"].data.ravel().tolist()
    assert (str(found) == known) == (known is not None)
    session = Session(made, threads=1)
    for size in (1, 2, 3, 32, 33, 34, 64, 65, 66):
        (count,) = session.run({"x": np.ones(size, np.float32)})["count"].tolist()
        assert count == (size + shift) // 32 + 1
        assert known is None or found.evaluate({"n": size}) == count
