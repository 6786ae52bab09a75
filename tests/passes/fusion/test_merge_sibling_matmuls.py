from __future__ import annotations

import numpy as np
import pytest
from fusing import check_close, operators, random_model
from rewriting import constants, model_of

from graphkit.model import Model
from graphkit.passes.fusion.fuse_into_linear import MergeSiblingMatmuls

PASS = MergeSiblingMatmuls()
ROWS = "g (float[N, 7, 4] x) => (q, k, v) "
MATRIX = "g (float[N, 4] x) => (q, k, v) "
QKV = {"u": (4, 6), "w": (4, 2), "z": (4, 3)}
HEADS = {"u": (6, 4), "w": (2, 4), "z": (3, 4)}

MERGED = {
    "without biases": (
        random_model(ROWS + "{ q = MatMul (x, u) k = MatMul (x, w) v = MatMul (x, z) }", **QKV),
        ["MatMul", "Split"],
    ),
    "two": (
        random_model("g (float[N, 4] x) => (q, k) { q = MatMul (x, u) k = MatMul (x, w) }", u=(4, 6), w=(4, 2)),
        ["MatMul", "Split"],
    ),
    "with biases": (
        random_model(
            ROWS
            + "{ a = MatMul (x, u) q = Add (a, b) c = MatMul (x, w) k = Add (d, c) e = MatMul (x, z) v = Add (e, f) }",
            b=(6,),
            d=(1, 2),
            f=(),
            **QKV,
        ),
        ["MatMul", "Add", "Split"],
    ),
    "one without a bias": (
        random_model(
            ROWS + "{ a = MatMul (x, u) q = Add (a, b) k = MatMul (x, w) e = MatMul (x, z) v = Add (e, f) }",
            b=(6,),
            f=(3,),
            **QKV,
        ),
        ["MatMul", "Add", "Split"],
    ),
    "what is added is no bias": (
        random_model(
            ROWS + "{ a = MatMul (x, u) q = Add (a, a) k = MatMul (x, w) e = MatMul (x, z) v = Add (e, f) }",
            f=(7, 1),
            **QKV,
        ),
        ["MatMul", "Split", "Add", "Add"],
    ),
    "Gemm": (
        random_model(MATRIX + "{ q = Gemm (x, u, b) k = Gemm (x, w) v = Gemm (x, z, f) }", b=(6,), f=(1, 3), **QKV),
        ["Gemm", "Split"],
    ),
    "transposed Gemm": (
        random_model(
            MATRIX + "{ q = Gemm <transB = 1> (x, u, b) k = Gemm <transB = 1> (x, w) v = Gemm <transB = 1> (x, z) }",
            b=(6,),
            **HEADS,
        ),
        ["Gemm", "Split"],
    ),
    "sizes as an attribute": (
        random_model(ROWS + "{ q = MatMul (x, u) k = MatMul (x, w) v = MatMul (x, z) }", 11, **QKV),
        ["MatMul", "Split"],
    ),
}


@pytest.mark.parametrize(("model", "left"), MERGED.values(), ids=MERGED)
def test_they_are_merged(model: Model, left: list[str]) -> None:
    outcome = check_close(PASS, model)
    assert operators(outcome.model) == left
    assert not PASS.run(outcome.model).changes


def test_no_rows_are_merged_too() -> None:
    check_close(PASS, MERGED["with biases"][0], {"N": 0})


def test_weights_are_joined_by_columns() -> None:
    model = model_of(
        "g (float[N, 2] x) => (a, b) { a = MatMul (x, v) b = MatMul (x, w) }",
        v=np.array([[1], [2]], np.float32),
        w=np.array([[3, 4], [5, 6]], np.float32),
    )
    assert constants(PASS.run(model).model) == {"v_joined": [[1, 3, 4], [2, 5, 6]], "a_sizes": [1, 2]}


LAYERS = random_model(
    """g (float[N, 4] x) => (y) {
        a = MatMul (x, u) b = MatMul (x, w) c = Add (a, b) d = Relu (c)
        e = MatMul (d, w) f = MatMul (d, u) h = Add (f, e) y = Relu (h)
    }""",
    u=(4, 4),
    w=(4, 4),
)


def test_layers_that_share_weights_share_the_joined_one() -> None:
    outcome = check_close(PASS, LAYERS)
    assert operators(outcome.model) == ["MatMul", "Split", "Add", "Relu"] * 2
    assert [tensor.name for tensor in outcome.model.proto.graph.initializer] == ["u_joined", "a_sizes"]


def test_a_weight_of_one_layer_is_not_joined_with_those_of_two() -> None:
    outcome = check_close(
        PASS,
        random_model(
            """g (float[N, 4] x) => (y, z) {
                a = MatMul (x, u) b = MatMul (x, w) z = MatMul (x, v) c = Add (a, b)
                e = MatMul (c, w) f = MatMul (c, u) y = Add (f, e)
            }""",
            u=(4, 4),
            v=(4, 4),
            w=(4, 4),
        ),
    )
    assert sorted(operators(outcome.model)) == ["Add", "Add", "MatMul", "MatMul", "MatMul", "Split", "Split"]


KEPT = {
    "weights that another layer reads transposed": random_model(
        """g (float[N, 4] x) => (y, z) {
            a = Gemm (x, u) b = Gemm (x, w) c = Add (a, b)
            y = Gemm <transB = 1> (c, u) z = Gemm <transB = 1> (c, w)
        }""",
        u=(4, 4),
        w=(4, 4),
    ),
    "a weight that a layer of its own reads too": random_model(
        "g (float[N, 4] x) => (q, k, z) { q = MatMul (x, u) k = MatMul (x, w) a = Relu (x) z = MatMul (a, w) }",
        u=(4, 4),
        w=(4, 4),
    ),
    "another tensor": random_model(
        "g (float[N, 4] x, float[N, 4] o) => (q, k) { q = MatMul (x, u) k = MatMul (o, w) }", u=(4, 6), w=(4, 2)
    ),
    "weights at run time": random_model(
        "g (float[N, 4] x, float[4, 2] w) => (q, k) { q = MatMul (x, u) k = MatMul (x, w) }", u=(4, 6)
    ),
    "a weight that others read": random_model(
        "g (float[N, 4] x) => (q, k) { q = MatMul (x, u) k = MatMul (x, u) }", u=(4, 6)
    ),
    "weights on the left": random_model(
        "g (float[4, N] x) => (q, k) { q = MatMul (u, x) k = MatMul (w, x) }", u=(6, 4), w=(2, 4)
    ),
    "batches of weights": random_model(
        "g (float[N, 7, 4] x) => (q, k) { q = MatMul (x, u) k = MatMul (x, w) }", u=(1, 4, 6), w=(1, 4, 2)
    ),
    "transposed on one side only": random_model(
        "g (float[N, 4] x) => (q, k) { q = Gemm (x, u) k = Gemm <transB = 1> (x, w) }", u=(4, 6), w=(2, 4)
    ),
    "a scaled Gemm": random_model(
        "g (float[N, 4] x) => (q, k) { q = Gemm <alpha = 2.0> (x, u) k = Gemm (x, w) }", u=(4, 6), w=(4, 2)
    ),
    "one bias of two is more nodes": random_model(
        "g (float[N, 4] x) => (q, k) { q = MatMul (x, u) k = Gemm (x, w) }", u=(4, 6), w=(4, 2)
    ),
    "a bias at run time": random_model(
        "g (float[N, 4] x, float[2] b) => (q, k) { q = Gemm (x, u) k = Gemm (x, w, b) }", u=(4, 6), w=(4, 2)
    ),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model


def test_other_graphs_are_not_siblings() -> None:
    model = random_model(
        """g (float[N, 4] x, bool f) => (float[N, 6] q, float[N, 6] y) {
            q = MatMul (x, u)
            y = If (f) <then_branch = t () => (float[N, 6] p) { p = MatMul (x, w) },
                        else_branch = e () => (float[N, 6] r) { r = MatMul (x, z) }>
        }""",
        u=(4, 6),
        w=(4, 6),
        z=(4, 6),
    )
    assert PASS.run(model).model is model
