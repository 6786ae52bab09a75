"""Passes that spell an operator with others: Neg, Pow, Reciprocal, LayerNormalization, Gelu."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, lines, model_of, reasons
from sessions import run

from graphkit.model import Model
from graphkit.passes.npu.decompose_operators import (
    DivideBeforeErf,
    GeluToTanh,
    LayerNormToPrimitives,
    NegToMul,
    PowToMul,
    ReciprocalToDiv,
)
from graphkit.passes.shapes.simplify_slice import SliceStepsToReshape
from graphkit.rewrite.base import Pass
from graphkit.shapes import infer


def graph(nodes: str, data: str = "float[2, 3, 4] x", inits: str = "", opset: int = 17) -> Model:
    return model_of(f"g ({data}) => (y) <{inits}> {{ {nodes} }}", opset)


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def error(step: Pass, model: Model, feed: dict[str, np.ndarray]) -> float:
    """Return the largest difference that a pass makes."""
    after = step.run(model).model
    assert after is not model
    return max(float(np.abs(one - two).max()) for one, two in zip(run(model, feed), run(after, feed), strict=True))


@pytest.mark.parametrize("data", ["float[2, 3] x", "double[2, 3] x", "float x", "float[0, 2] x", "float[N] x"])
def test_neg_is_a_mul(data: str) -> None:
    outcome = check(NegToMul(), graph("y = Neg (x)", data))
    assert operators(outcome.model) == ["Mul"]


def test_signs_of_zero_stay() -> None:
    values = np.array([0.0, -0.0, np.inf, np.nan], np.float32)
    model = graph("a = Neg (x) y = Reciprocal (a)", "float[4] x")
    check(NegToMul(), model, feeds=[{"x": values}])


def test_neg_of_integers_stays() -> None:
    outcome = check(NegToMul(), graph("y = Neg (x)", "int32[2] x"))
    assert reasons(outcome) == ["Neg#0: it is not known to be a Neg of floats of a known rank"]


@pytest.mark.parametrize(
    "data", ["float[2, 3] x", "double[2] x", "float16[3] x", "float x", "float[0, 2] x", "float[N] x"]
)
def test_a_reciprocal_is_a_div_of_1(data: str) -> None:
    outcome = check(ReciprocalToDiv(), graph("y = Reciprocal (x)", data))
    assert lines(outcome.model) == ["y = Div (one, x)"]


SLICE = "<int64[1] a = {{{}}}, int64[1] e = {{{}}}, int64[1] axis = {{{}}}, int64[1] n = {{{}}}>"


def strided(dims: str, *cut: int) -> Model:
    return model_of(f"g (float[{dims}] x) => (y) {SLICE.format(*cut)} {{ y = Slice (x, a, e, axis, n) }}")


@pytest.mark.parametrize(
    ("dims", "cut"),
    [("1, 2, 6", (1, 9, -1, 2)), ("2, 6, 3", (0, 6, 1, 3)), ("6, 2", (-5, 6, 0, 3)), ("4", (1, 4, 0, 4))],
)
def test_every_nth_element_is_one_of_a_group(dims: str, cut: tuple[int, ...]) -> None:
    model = check(SliceStepsToReshape(), strided(dims, *cut)).model
    assert [node.op_type for node in model.graph.nodes] == ["Reshape", "Slice", "Reshape"]
    assert all(len(infer(model)[value].dims or ()) <= 4 for value in model.graph.values.values())


def test_every_nth_element_of_two_axes_is_one_of_a_group_of_each() -> None:
    """As a Swin merges patches."""
    text = """g (float[1, 4, 6, 5] x) => (float[1, 2, 2, 5] y)
    <int64[2] a = {1, 2}, int64[2] e = {9, 9}, int64[2] axes = {1, 2}, int64[2] n = {2, 3}> {
        y = Slice (x, a, e, axes, n)
    }"""
    model = check(SliceStepsToReshape(), model_of(text)).model
    assert [node.op_type for node in model.graph.nodes] == ["Reshape", "Slice", "Reshape", "Slice", "Reshape"]


@pytest.mark.parametrize(
    ("dims", "cut"),
    [("N, 6", (0, 6, 1, 2)), ("2, 7", (0, 7, 1, 2)), ("2, 6", (2, 6, 1, 2)), ("2, 6", (0, 4, 1, 2)),
     ("2, 6", (5, -9, 1, -1)), ("2, 6", (0, 4, 1, 1)), ("0, 6", (0, 6, 1, 2))],
)  # fmt: skip
def test_some_of_every_nth_element_stay(dims: str, cut: tuple[int, ...]) -> None:
    model = strided(dims, *cut)
    assert SliceStepsToReshape().run(model).model is model


@pytest.mark.parametrize("seed", [0, 1])
def test_a_reciprocal_and_a_div_of_1_round_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = np.exp2(rng.integers(-149, 127, 4096)).astype(np.float32)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38], np.float32)
    values = np.concatenate([scales * rng.normal(1, 0.5, 4096).astype(np.float32), ends])
    check(ReciprocalToDiv(), graph("y = Reciprocal (x)", "float[N] x"), feeds=[{"x": values}])


@pytest.mark.parametrize(
    ("power", "expected"),
    [("float p = {2}", ["Mul"]), ("int64[1] p = {3}", ["Mul", "Mul"]), ("float p = {1}", ["Identity"])],
)
def test_pow_is_products(power: str, expected: list[str]) -> None:
    outcome = check(PowToMul(), graph("y = Pow (x, p)", inits=power))
    assert operators(outcome.model) == expected


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("y = Pow (x, p)", inits="float p = {0.5}"), "its exponent is not a constant 1, 2 or 3"),
        (graph("y = Pow (x, p)", "float[2] x, float p"), "its exponent is not a constant 1, 2 or 3"),
        (graph("y = Pow (x, p)", "int32[2] x", "int32 p = {2}"), "its base is not a float"),
        (graph("y = Pow (x, p)", "float[1] x", "float[2] p = {2, 2}"), "its exponent has dims that its base lacks"),
    ],
)  # fmt: skip
def test_other_pows_stay(model: Model, reason: str) -> None:
    outcome = check(PowToMul(), model)
    assert reasons(outcome) == [f"Pow#0: {reason}"]


SCALE = "float[4] s = {1, 2, 3, 4}"
IN_USE, OTHER_DTYPE = "its mean or deviation is in use", "it computes in another dtype than that of its data"
NORMALIZED = {
    "last axis": graph("y = LayerNormalization (x, s, b)", inits=f"{SCALE}, float[4] b = {{4, 3, 2, 1}}"),
    "no bias": graph("y = LayerNormalization (x, s)", inits=SCALE),
    "two axes": graph("y = LayerNormalization <axis = 1> (x, s)", inits=SCALE),
    "opset 18": graph("y = LayerNormalization <axis = -2> (x, s)", inits=SCALE, opset=18),
    "no mean": graph("y = SimplifiedLayerNormalization <epsilon = 0.1> (x, s)", inits=SCALE),
    "RMSNormalization": graph("y = RMSNormalization <epsilon = 0.1> (x, s)", inits=SCALE, opset=23),
    "residual": graph("y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.1> (x, x, s, s)", inits=SCALE),
    "residual, in use": graph(
        "a, m, d, t = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, x, s, b, s) y = Add (a, t)",
        inits=f"{SCALE}, float[4] b = {{4, 3, 2, 1}}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", NORMALIZED.values(), ids=NORMALIZED)
def test_normalizations_are_spelled_out(model: Model) -> None:
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    assert error(LayerNormToPrimitives(), model, feed) <= LayerNormToPrimitives.largest_error
    assert set(operators(LayerNormToPrimitives().run(model).model)) <= {
        "ReduceMean",
        "Sub",
        "Mul",
        "Add",
        "Sqrt",
        "Div",
    }


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("y, m, d = LayerNormalization (x, s)", inits=SCALE), None),
        (graph("a, m, d = LayerNormalization (x, s) y = Add (a, m)", inits=SCALE), IN_USE),
        (graph("y = LayerNormalization (x, s)", "float16[2, 4] x", "float16[4] s = {1, 2, 3, 4}"), OTHER_DTYPE),
    ],
)  # fmt: skip
def test_normalizations_that_do_more_stay(model: Model, reason: str | None) -> None:
    outcome = LayerNormToPrimitives().run(model)
    assert [text.split(": ")[1] for text in reasons(outcome)] == ([reason] if reason else [])
    assert (outcome.model is model) == bool(reason)


INITS = "float root = {1.41421354}, float inverse = {0.70710677}, float one = {1}, float half = {0.5}, float two = {2}"
GELUS = {
    "x (1 + erf) / 2": "a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)",
    "half of x first": "a = Mul (x, inverse) b = Erf (a) c = Add (one, b) h = Mul (half, x) y = Mul (h, c)",
    "x over two": "a = Mul (inverse, x) b = Erf (a) c = Add (one, b) h = Div (x, two) y = Mul (c, h)",
    "half of the sum first": "a = Div (x, root) b = Erf (a) c = Add (b, one) h = Mul (c, half) y = Mul (h, x)",
}


@pytest.mark.parametrize("nodes", GELUS.values(), ids=GELUS)
def test_a_spelled_gelu_is_computed_by_tanh(nodes: str) -> None:
    feed = {"x": np.linspace(-8, 8, 24000, dtype=np.float32).reshape(1000, 24)}
    model = graph(nodes, "float[1000, 24] x", INITS)
    assert 4e-4 < error(GeluToTanh(), model, feed) <= GeluToTanh.largest_error
    after = operators(GeluToTanh().run(model).model)
    assert "Erf" not in after
    assert "Tanh" in after


def test_an_erf_is_of_a_quotient_where_it_was_of_a_product() -> None:
    model = graph("a = Mul (x, c) b = Erf (a) y = Mul (b, x)", "float[1000] x", "float c = {0.70710678}")
    feed = {"x": np.linspace(-6, 6, 1000, dtype=np.float32)}
    assert error(DivideBeforeErf(), model, feed) <= DivideBeforeErf.largest_error
    outcome = DivideBeforeErf().run(model)
    assert operators(outcome.model) == ["Div", "Erf", "Mul"]
    assert DivideBeforeErf().run(outcome.model).model is outcome.model


@pytest.mark.parametrize("nodes", ["a = Mul (x, c) y = Erf (a)", "y = Erf (x)", "a = Mul (x, x) y = Erf (a)"])
def test_another_erf_stays(nodes: str) -> None:
    model = graph(nodes, "float[10] x", "float c = {0.5}")
    assert DivideBeforeErf().run(model).model is model


def test_a_gelu_is_told_to_approximate() -> None:
    model = graph("y = Gelu (x)", "float[1000] x", opset=20)
    feed = {"x": np.linspace(-8, 8, 1000, dtype=np.float32)}
    assert 4e-4 < error(GeluToTanh(), model, feed) <= GeluToTanh.largest_error
    outcome = GeluToTanh().run(model)
    assert lines(outcome.model) == ['y = Gelu <approximate: string = "tanh"> (x)']
    assert GeluToTanh().run(outcome.model).model is outcome.model


def test_a_gelu_of_onnxruntime_is_spelled_out() -> None:
    model = graph("y = com.microsoft.Gelu (x)", "float[1000] x")
    feed = {"x": np.linspace(-8, 8, 1000, dtype=np.float32)}
    assert 4e-4 < error(GeluToTanh(), model, feed) <= GeluToTanh.largest_error
    assert operators(GeluToTanh().run(model).model) == ["Mul", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"]


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Erf (x)",
        "a = Div (x, two) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)",
        "a = Div (x, root) b = Erf (a) c = Add (b, two) d = Mul (x, c) y = Mul (d, half)",
        "a = Div (x, root) b = Erf (a) c = Add (b, one) z = Exp (x) d = Mul (z, c) y = Mul (d, half)",
        "a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Add (d, b)",
        "a = Div (x, root) b = Erf (a) y = Add (b, one)",
    ],
)
def test_an_erf_of_something_else_stays(nodes: str) -> None:
    model = graph(nodes, inits=INITS)
    outcome = GeluToTanh().run(model)
    assert outcome.model is model
    assert [text.split(": ")[1] for text in reasons(outcome)] == ["it is not the Erf of a Gelu"]
