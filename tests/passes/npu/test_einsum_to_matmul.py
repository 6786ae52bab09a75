from __future__ import annotations

import pytest
from fusing import check_close, operators
from rewriting import model_of, reasons

from graphkit.model import Model
from graphkit.passes.npu.decompose_operators import EinsumToMatmul

PASS = EinsumToMatmul()


def einsum(equation: str, inputs: str) -> Model:
    return model_of(f'g ({inputs}) => (y) {{ y = Einsum <equation = "{equation}"> (a, b) }}')


EQUATIONS = {
    "as a MatMul": ("bij,bjk->bik", "float[N, 3, 4] a, float[N, 4, 5] b", ["MatMul"]),
    "heads behind": (
        "bqhd,bkhd->bhqk",
        "float[N, 3, 2, 4] a, float[N, 5, 2, 4] b",
        ["Transpose", "Transpose", "MatMul"],
    ),
    "an ellipsis": (
        "...qhd,...khd->...hqk",
        "float[2, 3, 3, 2, 4] a, float[2, 3, 5, 2, 4] b",
        ["Transpose", "Reshape", "Transpose", "Reshape", "MatMul", "Reshape"],
    ),
    "two axes summed": (
        "nabc,dbc->nad",
        "float[N, 3, 4, 2] a, float[5, 4, 2] b",
        ["Reshape", "Transpose", "Reshape", "MatMul", "Reshape"],
    ),
    "an ellipsis of one tensor": (
        "...ij,jk->...ik",
        "float[N, 3, 4] a, float[4, 5] b",
        ["Reshape", "MatMul", "Reshape"],
    ),
    "without a result": ("ij,kj", "float[N, 3] a, float[4, 3] b", ["Transpose", "MatMul"]),
    "the result turned": ("ij,jk->ki", "float[N, 3] a, float[3, 4] b", ["MatMul", "Transpose"]),
    "nothing summed": ("i,j->ij", "float[N] a, float[3] b", ["Reshape", "Reshape", "MatMul"]),
}


@pytest.mark.parametrize(("equation", "inputs", "left"), EQUATIONS.values(), ids=EQUATIONS)
def test_it_is_a_matmul(equation: str, inputs: str, left: list[str]) -> None:
    outcome = check_close(PASS, einsum(equation, inputs))
    assert sorted(operators(outcome.model)) == sorted(left)


TWICE = "an axis occurs twice in a tensor, or is summed up in one tensor alone"
KEPT = {
    "a diagonal": ("ii,ij->ij", "float[3, 3] a, float[3, 4] b", TWICE),
    "a sum of one tensor": ("ij,k->ik", "float[N, 3] a, float[4] b", TWICE),
    "lengths that may differ": ("ij,jk->ik", "float[N, M] a, float[K, 4] b", "axes of one name have other lengths"),
    "integers": ("ij,jk->ik", "int64[N, 3] a, int64[3, 4] b", "its dims are not known, or it is not of floats"),
    "ellipses of other ranks": (
        "...ij,...jk->...ik",
        "float[2, 3, N, 3] a, float[3, 3, 4] b",
        "its equation is not understood: ...ij,...jk->...ik",
    ),
}


@pytest.mark.parametrize(("equation", "inputs", "reason"), KEPT.values(), ids=KEPT)
def test_it_stays(equation: str, inputs: str, reason: str) -> None:
    model = model_of(f'g ({inputs}) => (float[P, Q] y) {{ y = Einsum <equation = "{equation}"> (a, b) }}')
    outcome = PASS.run(model)
    assert outcome.model is model
    assert [text.partition(": ")[2] for text in reasons(outcome)] == [reason]
