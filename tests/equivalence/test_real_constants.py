"""Constants that a proof or a rewrite computed, beside their exact values: how near they are is measured and told."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from graphkit.equivalence import check_equivalence
from graphkit.model import Model

HEAD = '<ir_version: 9, opset_import: ["" : 17]> agraph'
ROWS = "({0}[N, 2] x) => ({0}[N, 2] y)"
SCALED = "a = MatMul (x, w) y = Mul (a, c)"
RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.normal(size=(2, 2)).astype(np.float32), np.array([1.5, -0.7], np.float32)


def model(body: str, head: str = ROWS.format("float"), **weights: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(f"{HEAD} {head} {{ {body} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return Model.from_proto(proto)


@pytest.mark.parametrize(("off", "is_proven"), [(0.0, True), (5e-7, True), (2e-6, False), (1e-5, False)])
def test_a_computed_weight_agrees_with_its_exact_value_to_a_millionth(off: float, is_proven: bool) -> None:
    factor = np.float32(3.7)
    after = model("y = MatMul (x, w)", w=(WEIGHT.astype(np.float64) * factor * (1 + off)).astype(np.float32))
    found = check_equivalence(model(SCALED, w=WEIGHT, c=factor), after)
    assert found.is_proven is is_proven
    if is_proven:
        assert found.constants.count == 1
        assert found.constants.largest == pytest.approx(off, abs=6e-8)


def test_what_both_models_hold_is_equal_to_the_bit() -> None:
    pairs = {"y = MatMul (x, c)": WEIGHT, "y = Add (x, c)": BIAS, "y = Mul (x, c)": np.float32(0.3)}
    for body, number in pairs.items():
        near = np.nextafter(number, np.float32(9)).astype(np.float32)
        assert not check_equivalence(model(body, c=number), model(body, c=near)).proven


def test_float16_is_computed_in_no_proof() -> None:
    """The digits of a product of two of its numbers are too few to tell it from a wrong one."""
    head, weight, factor = ROWS.format("float16"), WEIGHT.astype(np.float16), np.float16(3.7)
    before = model(SCALED, head, w=weight, c=factor)
    assert not check_equivalence(before, model("y = MatMul (x, w)", head, w=weight * factor)).proven
    half = model(SCALED, head, w=weight, c=np.float16(0.5))
    assert check_equivalence(half, model("y = MatMul (x, w)", head, w=weight * np.float16(0.5))).is_proven


def test_small_errors_do_not_add_up() -> None:
    count, step = 40, 1.125
    steps = {f"b{at}": np.float32(step**at * (1 + at * 5e-7)) for at in range(1, count + 1)}
    shown = " ".join(f"o{at} = Mul (x, b{at})" for at in range(1, count + 1))
    head = f"(float[N] x) => ({', '.join(f'float[N] o{at}' for at in range(1, count + 1))}, float[N] y)"
    chained = " ".join(f"v{at} = Mul (v{at - 1}, s)" for at in range(1, count + 1))
    bodies = (f"{shown} v0 = Identity (x) {chained} y = Identity (v{count})", f"{shown} y = Mul (x, b{count})")
    found = check_equivalence(*(model(body, head, s=np.float32(step), **steps) for body in bodies))
    verdicts = {output.name: output.verdict for output in found.outputs}
    assert (verdicts["o1"], verdicts["y"]) == ("proven", "unknown")


SUM = "a = Add (x, c) b = Add (a, d) t = Tanh (b) u = Mul (t, s) y = Sub (u, e)"
ONE, OTHER = np.array([100, 100], np.float32), np.array([-99.9999, -99.9998], np.float32)
SCALE = np.full(2, 1e-4, np.float32)
LONG = RNG.normal(size=4096).astype(np.float32)
EDITED = np.concatenate([LONG[:1] + np.float32(0.03), LONG[1:]])
SUMMED = {"w": RNG.normal(size=(4096, 2)).astype(np.float32), "q": BIAS, "n": np.array([1, 4096])}
DECOYS = {  # a body, its head, constants of the original, and of a model with one of them edited
    "a number in a long sum": (
        "e = Expand (x, n) a = Add (e, b) p = MatMul (a, w) y = Add (p, q)", "(float[N, 1] x) => (float[K, L] y)",
        {"b": LONG, **SUMMED}, {"b": EDITED, **SUMMED}),
    "a number with the bytes of a sum": (
        SUM, ROWS.format("float"), {"c": ONE, "d": OTHER, "s": SCALE, "e": ONE + OTHER},
        {"c": ONE, "d": OTHER, "s": SCALE, "e": (ONE + OTHER) * np.float32(1.1)}),
    "a bias beside a sum that is 0": (
        "r = Relu (x) a = Add (r, c) b = Add (a, d) y = Add (b, e)", ROWS.format("float"),
        {"c": np.array([1, 1], np.float32), "d": np.array([-1, 2], np.float32), "e": np.array([5, 6], np.float32)},
        {"c": np.array([1e-7, 3], np.float32), "d": np.zeros(2, np.float32), "e": np.array([5, -60], np.float32)}),
    "addends that cancel out": (
        "a = Add (x, c) y = Sub (a, d)", ROWS.format("float"), {"c": np.float32(1e6), "d": np.float32(1e6)},
        {"c": np.float32(1e6), "d": np.float32(999999.5)}),
    "a scale of a product": (
        "p = MatMul (x, w) y = Mul (p, s)", ROWS.format("float"), {"w": WEIGHT, "s": np.float32(2.0**-22)},
        {"w": WEIGHT, "s": np.float32(2.0**-21)}),
}  # fmt: skip


@pytest.mark.parametrize("name", DECOYS)
def test_an_edited_constant_is_none_that_was_computed(name: str) -> None:
    body, head, first, second = DECOYS[name]
    before, after = model(body, head, **first), model(body, head, **second)
    assert not check_equivalence(before, after).proven
    assert check_equivalence(before, before).is_proven


def test_a_constant_that_a_sum_stands_for_is_exact_at_other_places() -> None:
    head = "(float[N, 2] x) => (float[K, L] y, float[M, O] z)"
    sums = "{} q = Tanh (x) u = Mul (q, s) v = Add (u, h) z = Add (v, t)"
    held, small = {"h": ONE - np.float32(99), "s": SCALE}, np.array([1e-4, 2e-4], np.float32)
    before = model(sums.format("r = Relu (x) y = Add (r, h)"), head, **held, t=small)
    text = sums.format("r = Relu (x) a = Add (r, c) y = Add (a, d)")
    parts = {"c": ONE, "d": np.full(2, -99, np.float32)}
    right, wrong = (model(text, head, **held, **parts, t=t) for t in (small, small * np.float32(1.2)))
    assert check_equivalence(before, right).is_proven
    assert [output.name for output in check_equivalence(before, wrong).proven] == ["y"]


def test_a_weight_without_channels_is_no_error() -> None:
    head = "(float[n, 2, 5, 5] x, float[n] v) => (float[n, 0, 3, 3] y, float[n] q)"
    text = "a = Conv (x, w) y = Mul (a, two) {}"
    numbers = {"w": np.zeros((0, 2, 3, 3), np.float32), "two": np.float32(2)}
    before = model(text.format("p = Mul (v, two) q = Mul (p, three)"), head, **numbers, three=np.float32(3))
    after = model(text.format("q = Mul (v, six)"), head, **numbers, six=np.float32(6))
    assert [output.exactness for output in check_equivalence(before, after).outputs][1] == "in exact arithmetic"


def test_overflow_and_what_is_lost_beside_large_numbers_are_left_to_the_runs() -> None:
    large = np.float32(1e30)
    for body in ("a = Mul (x, c) b = Mul (a, c) d = Div (b, c) y = Div (d, c)", "a = Add (x, c) y = Sub (a, c)"):
        found = check_equivalence(model(body, c=large), model("y = Identity (x)"))
        assert [output.exactness for output in found.outputs] == ["in exact arithmetic"]
