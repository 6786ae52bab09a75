"""Choices between finite numbers are sums of products: results are equal, however much the branches differ."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, constants, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.attention.mask_arithmetic import WhereToArithmetic

PASS = WhereToArithmetic()
FEEDS = [
    {
        "a": np.array([[1.5, -2e-30, 3e9], [0.1, 7, -1]], np.float32),
        "b": np.array([[-3e9, 1e9, 1e-9], [5, 0, 2]], np.float32),
        "c": np.array([[1, 0, 1], [0, 1, 0]], bool),
    }
]
GENERAL = [
    "y_if = Cast <to: int = 1> (c)",
    "y_else = Sub (one, y_if)",
    "y_true = Mul (a, y_if)",
    "y_false = Mul (b, y_else)",
    "y = Add (y_true, y_false)",
]


def graph(nodes: str, dtype: str = "float", **constants: object) -> Model:
    used = {name: value for name, value in constants.items() if name in nodes}
    inputs = [f"{dtype}[N, 3] a", f"{dtype}[N, 3] b", "bool[N, 3] c"]
    return model_of(f"g ({', '.join(inputs)}) => (y) {{ {nodes} }}", **used)


def test_a_choice_between_data() -> None:
    """Numbers that b + c * (a - b) would lose are kept."""
    assert lines(check(PASS, graph("y = Where (c, a, b)"), feeds=FEEDS).model) == GENERAL


def test_a_constant_condition() -> None:
    outcome = check(PASS, graph("y = Where (k, a, b)", k=np.array([True, False, True])), feeds=FEEDS)
    assert lines(outcome.model) == [
        "y_true = Mul (a, k_true)",
        "y_false = Mul (b, k_false)",
        "y = Add (y_true, y_false)",
    ]
    assert constants(outcome.model) == {"k_true": [1.0, 0.0, 1.0], "k_false": [0.0, 1.0, 0.0]}


def test_zeros_need_no_product() -> None:
    outcome = check(PASS, graph("y = Where (c, a, zero)", zero=np.float32(0)), feeds=FEEDS)
    assert lines(outcome.model) == ["y_if = Cast <to: int = 1> (c)", "y = Mul (a, y_if)"]
    outcome = check(PASS, graph("y = Where (c, zero, b)", zero=np.zeros((1, 3), np.float32)), feeds=FEEDS)
    assert lines(outcome.model)[-1] == "y = Mul (b, y_else)"


def test_zeros_that_make_the_result_larger() -> None:
    outcome = check(PASS, graph("y = Where (c, a, zero)", zero=np.zeros((2, 1, 1), np.float32)), feeds=FEEDS)
    assert lines(outcome.model)[-1] == "y = Add (y_true, y_false)"


@pytest.mark.parametrize("dtype", ["double", "float16"])
def test_other_floats(dtype: str) -> None:
    kind = np.float64 if dtype == "double" else np.float16
    feed = {"a": np.array([[1, -2, 3]], kind), "b": np.array([[9, 8, 7]], kind), "c": np.array([[1, 0, 1]], bool)}
    assert len(lines(check(PASS, graph("y = Where (c, a, b)", dtype), feeds=[feed]).model)) == 5


def test_several_shapes_broadcast() -> None:
    model = model_of("g (float[N, 1, 3] a, float[2, 1] b, bool[3] c) => (y) { y = Where (c, a, b) }")
    rng = np.random.default_rng(0)
    feed = {"a": rng.normal(size=(4, 1, 3)), "b": rng.normal(size=(2, 1)), "c": np.array([1, 0, 1])}
    kinds = {"a": np.float32, "b": np.float32, "c": bool}
    check(PASS, model, feeds=[{name: array.astype(kinds[name]) for name, array in feed.items()}])


def test_a_comparison_of_data() -> None:
    outcome = check(PASS, graph("d = Less (a, b) y = Where (d, a, b)"), feeds=FEEDS)
    assert not any("Where" in line for line in lines(outcome.model))


STAYS = {
    "integers": (graph("y = Where (c, a, b)", "int64"), "it chooses between integers or others"),
    "-inf": (graph("y = Where (c, a, low)", low=np.float32(-np.inf)), "'low' may be infinite or no number"),
    "no number": (graph("y = Where (c, nan, b)", nan=np.float32(np.nan)), "'nan' may be infinite or no number"),
    "-inf in a sum": (graph("s = Add (a, low) y = Where (c, s, b)", low=np.float32(-np.inf)), "'s' may be infinite"),
    "a logarithm": (graph("l = Log (a) y = Where (c, l, b)"), "'l' may be infinite or no number"),
    "a quotient": (graph("q = Div (a, b) y = Where (c, q, b)"), "'q' may be infinite or no number"),
    "a root": (graph("r = Sqrt (a) e = Neg (r) y = Where (c, b, e)"), "'e' may be infinite or no number"),
}


@pytest.mark.parametrize(("model", "reason"), STAYS.values(), ids=STAYS)
def test_what_stays(model: Model, reason: str) -> None:
    outcome = PASS.run(model)
    assert outcome.changes == ()
    assert len(outcome.declined) == 1
    assert reason in reasons(outcome)[0]
