from __future__ import annotations

import numpy as np
import pytest
from fusing import operators
from rewriting import check, lines, model_of

from graphkit.model import Model
from graphkit.passes.state.decode_step import SqueezeTokenAxis

PASS = SqueezeTokenAxis()
WEIGHTS = {
    "w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
    "b": np.array([1, -2, 3, 0.5], np.float32),
    "row": np.array([[3, 1, -1, 2]], np.float32),
    "plane": np.array([[[3, 1, -1, 2]]], np.float32),
    "table": np.arange(20, dtype=np.float32).reshape(5, 4),
    "last": np.array([2]),
    "before_last": np.array([1]),
    "heads": np.array([0, 2, 1, 2]),
    "ahead": np.array([1]),
    "flat": np.array([0, 1, 4]),
    "exact": np.array([0, 4]),
}
SIZES = ({"N": 1}, {"N": 3}, {"N": 0})
PRODUCTS = (
    "p1 = MatMul (x, w) s1 = Add (p1, b) p2 = MatMul (s1, w) s2 = Add (b, p2) p3 = MatMul (s2, w) s3 = Add (p3, b)"
)


def graph(nodes: str, inputs: str = "(float[N, 1, 4] x)", outputs: str = "y", **changed: np.ndarray) -> Model:
    known = {**WEIGHTS, **changed}
    words = set(nodes.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: value for name, value in known.items() if name in words}
    return model_of(f"agraph {inputs} => ({outputs}) {{ {nodes} }}", **used)


def test_products_of_a_token_have_two_axes() -> None:
    outcome = check(PASS, graph(f"{PRODUCTS} y = Relu (s3)"), SIZES)
    assert lines(outcome.model) == [
        "x_squeezed = Squeeze (x, token_axis)",
        "p1_squeezed = MatMul (x_squeezed, w)",
        "s1_squeezed = Add (p1_squeezed, b)",
        "p2_squeezed = MatMul (s1_squeezed, w)",
        "s2_squeezed = Add (b, p2_squeezed)",
        "p3_squeezed = MatMul (s2_squeezed, w)",
        "s3_squeezed = Add (p3_squeezed, b)",
        "y_squeezed = Relu (s3_squeezed)",
        "y = Unsqueeze (y_squeezed, token_axis)",
    ]
    assert outcome.changes == ("7 nodes freed of a token axis of 1",)


AROUND = {
    "a number": "y = Mul (s3, s3)",
    "a row": "y = Add (s3, row)",
    "a constant of three axes": "y = Add (s3, plane)",
    "a reduction of the last axis": "m = ReduceSum (s3, last) y = Sub (s3, m)",
    "a mean, its axes an attribute": "m = ReduceMean <axes = [-1]> (s3) y = Sub (s3, m)",
    "a Softmax": "y = Softmax (s3)",
    "a Softmax of an axis that counts from the start": "y = LogSoftmax <axis = 2> (s3)",
    "a norm": "y = LayerNormalization (s3, b, b)",
}


@pytest.mark.parametrize("nodes", AROUND.values(), ids=AROUND)
def test_nodes_that_treat_the_axis_as_a_batch_do_without_it(nodes: str) -> None:
    more = "p4 = MatMul (s3, w) s4 = Add (p4, b)"
    outcome = check(PASS, graph(f"{PRODUCTS} {more} {nodes.replace('s3', 's4')}"), SIZES)
    assert lines(outcome.model)[-1] == "y = Unsqueeze (y_squeezed, token_axis)"


def test_rows_of_a_table_and_reshapes_on_the_way_need_nothing() -> None:
    nodes = f"""x = Gather (table, i) {PRODUCTS} h = Reshape (s3, heads) n = Neg (h) x2 = Reshape (n, flat)
        q1 = MatMul (x2, w) r1 = Add (q1, b) q2 = MatMul (r1, w) r2 = Add (q2, b) y = Reshape (r2, exact)"""
    feeds = [{"i": np.array([[4], [0], [2]])}, {"i": np.array([[1]])}]
    outcome = check(PASS, graph(nodes, "(int64[N, 1] i)"), feeds=feeds)
    left = operators(outcome.model)
    assert left.count("Squeeze") == 1  # of the ids
    assert "Unsqueeze" not in left
    assert lines(outcome.model)[0] == "i_squeezed = Squeeze (i, token_axis)"


def test_columns_of_a_table_are_looked_up_with_their_axis() -> None:
    nodes = f"x = Gather <axis = 1> (table, i) {PRODUCTS} y = Relu (s3)"
    outcome = check(PASS, graph(nodes, "(int64[1, 4] i)"), feeds=[{"i": np.array([[3, 0, 2, 2]])}])
    assert "x_squeezed = Squeeze (x, token_axis)" in lines(outcome.model)


def test_what_something_else_reads_keeps_the_axis_for_it() -> None:
    more = "p4 = MatMul (s3, w) s4 = Add (p4, b) t = Transpose <perm = [1, 0, 2]> (s4) y = Relu (s4)"
    outcome = check(PASS, graph(f"{PRODUCTS} {more}", outputs="y, t"), SIZES)
    assert "s4 = Unsqueeze (s4_squeezed, token_axis)" in lines(outcome.model)


STAYING = {
    "two products, which an entry and an exit eat up": (
        "p1 = MatMul (x, w) s1 = Add (p1, b) p2 = MatMul (s1, w) y = Add (p2, b)",
        "(float[N, 1, 4] x)",
    ),
    "products without a bias": (
        "a = MatMul (x, w) c = MatMul (a, w) d = MatMul (c, w) y = MatMul (d, w)",
        "(float[N, 1, 4] x)",
    ),
    "an axis that may be longer": (f"{PRODUCTS} y = Relu (s3)", "(float[N, L, 4] x)"),
    "an axis that is two": (f"{PRODUCTS} y = Relu (s3)", "(float[N, 2, 4] x)"),
    "four axes": (f"{PRODUCTS} y = Relu (s3)", "(float[N, 1, 1, 4] x)"),
}


@pytest.mark.parametrize(("nodes", "inputs"), STAYING.values(), ids=STAYING)
def test_a_region_that_gains_nothing_stays(nodes: str, inputs: str) -> None:
    model = graph(nodes, inputs)
    assert PASS.run(model).model is model


OUTSIDE = {
    "a reduction over the token": "y = ReduceSum (s3, before_last)",
    "a reduction that drops its axis": "y = ReduceSum <keepdims = 0> (s3, last)",
    "a Softmax over the token": "y = Softmax <axis = 1> (s3)",
    "a product of two tensors": "y = MatMul (s3, z)",
    "a matrix that is one row a token": "y = Add (s3, more)",
}


@pytest.mark.parametrize("nodes", OUTSIDE.values(), ids=OUTSIDE)
def test_other_nodes_keep_the_axis(nodes: str) -> None:
    more = "p4 = MatMul (s3, w) s4 = Add (p4, b) p5 = MatMul (s4, w) s5 = Add (p5, b)"
    text = f"{PRODUCTS} {more} {nodes.replace('s3', 's5')}"
    inputs = "(float[N, 1, 4] x, float[N, 4, 2] z, float[2, 4] more)"
    outcome = check(PASS, graph(text, inputs), SIZES)
    last = [line.replace(": int", "") for line in lines(outcome.model) if line.startswith("y = ")]
    assert last == [nodes.replace("s3", "s5")]
    assert "s5 = Unsqueeze (s5_squeezed, token_axis)" in lines(outcome.model)


def test_older_operator_sets_stay() -> None:
    model = model_of(
        f"agraph (float[N, 1, 4] x) => (y) {{ {PRODUCTS} y = Relu (s3) }}",
        12,
        **{name: WEIGHTS[name] for name in ("w", "b")},
    )
    assert PASS.run(model).model is model
