from __future__ import annotations

import pytest
from fusing import check_close, operators, random_model
from rewriting import reasons

from graphkit.model import Model
from graphkit.passes.fusion.fuse_into_linear import MatmulAddToGemm

PASS = MatmulAddToGemm()
MATRIX = "g (float[N, 4] x) => (y) "
PUT_TOGETHER = {
    "a bias": random_model(MATRIX + "{ a = MatMul (x, w) y = Add (a, b) }", w=(4, 6), b=(6,)),
    "a bias first": random_model(MATRIX + "{ a = MatMul (x, w) y = Add (b, a) }", w=(4, 6), b=(1, 6)),
    "one number": random_model(MATRIX + "{ a = MatMul (x, w) y = Add (a, b) }", w=(4, 6), b=()),
    "nothing is constant": random_model(
        "g (float[N, 4] x, float[4, M] w, float[N, M] b) => (y) { a = MatMul (x, w) y = Add (a, b) }"
    ),
    "a column": random_model("g (float[N, 4] x, float[N, 1] b) => (y) { a = MatMul (x, w) y = Add (a, b) }", w=(4, 6)),
}


@pytest.mark.parametrize("model", PUT_TOGETHER.values(), ids=PUT_TOGETHER)
def test_it_is_a_gemm(model: Model) -> None:
    assert operators(check_close(PASS, model, {"N": 3, "M": 2}).model) == ["Gemm"]


def test_no_rows_are_a_gemm_too() -> None:
    check_close(PASS, PUT_TOGETHER["a bias"], {"N": 0})


KEPT = {
    "what is added has more dims": (
        random_model(MATRIX + "{ a = MatMul (x, w) y = Add (a, b) }", w=(4, 6), b=(2, 1, 6)),
        ["Add#1: what it adds may have more dims than the product"],
    ),
    "what is added is larger": (
        random_model("g (float[1, 4] x, float[N, 6] b) => (y) { a = MatMul (x, w) y = Add (a, b) }", w=(4, 6)),
        ["Add#1: what it adds may be larger than the product"],
    ),
    "others read the product": (
        random_model(MATRIX + "{ a = MatMul (x, w) c = Add (a, b) y = Mul (a, c) }", w=(4, 6), b=(6,)),
        ["Add#1: what 'MatMul#0' gives is read elsewhere too"],
    ),
    "the product is an output": (
        random_model("g (float[N, 4] x) => (y, a) { a = MatMul (x, w) y = Add (a, b) }", w=(4, 6), b=(6,)),
        ["Add#1: what 'MatMul#0' gives is read elsewhere too"],
    ),
    "batches": (random_model("g (float[N, 7, 4] x) => (y) { a = MatMul (x, w) y = Add (a, b) }", w=(4, 6), b=(6,)), []),
    "integers": (
        random_model("g (int32[N, 4] x, int32[4, 6] w, int32[6] b) => (y) { a = MatMul (x, w) y = Add (a, b) }"),
        [],
    ),
    "an unknown rank": (
        random_model(
            "g (float[N, 4] x, int64[k] t) => (float[n, 6] y) { r = Reshape (x, t) a = MatMul (r, w) y = Add (a, b) }",
            w=(4, 6),
            b=(6,),
        ),
        [],
    ),
}


@pytest.mark.parametrize(("model", "expected"), KEPT.values(), ids=KEPT)
def test_it_stays(model: Model, expected: list[str]) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert reasons(outcome) == expected
