from __future__ import annotations

import pytest
from rewriting import check, constants, lines, model_of

from graphkit.model import Model
from graphkit.passes.shapes.simplify_reshape import CancelReshapes

PASS = CancelReshapes()
INITS = """
    int64[2] flat = {-1, 4}, int64[3] back = {-1, 5, 4}, int64[1] axis = {0}, float two = {2},
    float[4] row = {1, 2, 3, 4}
"""


def graph(nodes: str, head: str = "(float[N, 5, 4] x) => (y)") -> Model:
    return model_of(f"g {head} <{INITS}> {{ {nodes} }}")


REGIONS = {
    "a branch that comes together again": (
        "a = Reshape (x, flat) b = Sigmoid (a) c = Mul (a, two) d = Mul (b, c) e = Reshape (d, back)",
        "float[N, 5, 4] x",
        ["b_flat = Sigmoid (x)", "c_flat = Mul (x, two)", "d_flat = Mul (b_flat, c_flat)"],
    ),
    "two tensors": (
        "a = Reshape (x, flat) b = Reshape (z, flat) c = Add (b, a) e = Reshape (c, back)",
        "float[N, 5, 4] x, float[N, 5, 4] z",
        ["c_flat = Add (z, x)"],
    ),
    "Unsqueeze and Squeeze": (
        "a = Unsqueeze (x, axis) b = Relu (a) e = Squeeze (b, axis)",
        "float[N, 5, 4] x",
        ["b_flat = Relu (x)"],
    ),
    "an operator of another domain": (
        "a = Reshape (x, flat) b = com.microsoft.QuickGelu (a) e = Reshape (b, back)",
        "float[N, 5, 4] x",
        ["b_flat = com.microsoft.QuickGelu (x)"],
    ),
}


@pytest.mark.parametrize(("nodes", "inputs", "left"), REGIONS.values(), ids=REGIONS)
def test_both_reshapes_go(nodes: str, inputs: str, left: list[str]) -> None:
    outcome = check(PASS, graph(f"{nodes} y = Neg (e)", f"({inputs}) => (y)"))
    name = left[-1].split(" ")[0]
    assert lines(outcome.model) == [*left, f"y = Neg ({name})"]


def test_a_result_that_others_read_is_reshaped_for_them() -> None:
    outcome = check(
        PASS,
        graph(
            """a = Reshape (x, flat) b = Reshape (z, flat) c = Add (a, b) d = Reshape (c, back) e = Relu (d)
            f = ReduceSum (c) y = Mul (e, f)""",
            "(float[N, 5, 4] x, float[N, 5, 4] z) => (y)",
        ),
    )
    assert lines(outcome.model) == [
        "c_flat = Add (x, z)",
        "c = Reshape (c_flat, c_shape)",
        "e = Relu (c_flat)",
        "f = ReduceSum (c)",
        "y = Mul (e, f)",
    ]
    assert constants(outcome.model)["c_shape"] == [-1, 4]
    assert outcome.changes == ("2 Reshapes around elementwise nodes removed",)


KEPT = {
    "nothing in between": graph("a = Reshape (x, flat) y = Reshape (a, back)"),
    "a constant of several elements": graph("a = Reshape (x, flat) b = Mul (a, row) c = Reshape (b, back) y = Neg (c)"),
    "no dims before": graph("a = Reshape (x, flat) b = Relu (a) y = Neg (b)", "(float[N, 5, 4] x) => (float[M, 4] y)"),
    "as many as before": graph(
        "a = Reshape (x, flat) r = ReduceSum (a) b = Relu (a) c = Reshape (b, back) d = Mul (b, r) y = Neg (c)",
        "(float[N, 5, 4] x) => (y, d)",
    ),
    "other rows": graph(
        "a = Reshape (x, flat) b = Add (a, z) c = Reshape (b, back) y = Neg (c)",
        "(float[N, 5, 4] x, float[M, 4] z) => (float[K, 5, 4] y)",
    ),
    "no elementwise node": graph("a = Reshape (x, flat) b = Softmax (a) c = Reshape (b, back) y = Neg (c)"),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model
