from __future__ import annotations

import numpy as np
import pytest
from fusing import operators
from rewriting import check, constants, lines, model_of, reasons

from graphkit.options import FoldingOptions
from graphkit.passes.clean_up.fold_constants import SoftmaxToConstant
from graphkit.passes.fold_pipeline import fold

PASS = SoftmaxToConstant()


def graph(node: str, dims: str = "2, 3, 1", dtype: str = "float") -> str:
    return f"g ({dtype}[{dims}] x) => (y) {{ a = {node} (x) y = Neg (a) }}"


@pytest.mark.parametrize(
    ("text", "opset", "dims"),
    [
        (graph("Softmax"), 17, (2, 3, 1)),
        (graph("Softmax <axis = 0>", "1, 4"), 13, (1, 4)),
        (graph("Softmax <axis = -2>", "2, 1, 4", "double"), 17, (2, 1, 4)),
        (graph("Softmax", dtype="float16"), 17, (2, 3, 1)),
        (graph("Softmax", "2, 1, 1"), 11, (2, 1, 1)),
        (graph("Softmax", "0, 1"), 17, (0, 1)),
    ],
)
def test_it_is_constant(text: str, opset: int, dims: tuple[int, ...]) -> None:
    outcome = check(PASS, model_of(text, opset), sizes=[{}])
    assert lines(outcome.model) == ["y = Neg (a_ones)"]
    assert constants(outcome.model) == {"a_ones": np.ones(dims).tolist()}
    assert outcome.changes == ("1 Softmax node of one element made constant",)


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        (graph("Softmax", "2, 1, 3"), 17),
        (graph("Softmax", "2, 1, 3"), 11),  # over 3 elements, as one axis
        (graph("Softmax", "2, N"), 17),
    ],
)
def test_it_stays(text: str, opset: int) -> None:
    outcome = PASS.run(model := model_of(text, opset))
    assert (outcome.model, outcome.declined) == (model, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (graph("Softmax", "N, 1"), "Softmax#0: it gives ones, but not always equally many"),
        (
            graph("Softmax", "600, 600, 1"),
            "Softmax#0: it gives more than 1,048,576 bytes of ones, or ones of another type",
        ),
    ],
)
def test_it_is_declined(text: str, reason: str) -> None:
    outcome = PASS.run(model := model_of(text))
    assert outcome.model is model
    assert reasons(outcome) == [reason]


def test_an_output_keeps_its_name() -> None:
    model = model_of("g (float[2, 1] x) => (float[2, 1] y) { y = Softmax (x) }")
    assert lines(check(PASS, model, sizes=[{}]).model) == ["y = Identity (y_ones)"]


def test_only_a_fold_that_fuses_removes_the_scores() -> None:
    model = model_of(
        "g (float[2, 4] q, float[1, 4] k, float[1, 3] v) => (y) "
        "{ t = Transpose (k) s = MatMul (q, t) w = Softmax (s) y = MatMul (w, v) }"
    )
    assert operators(fold(model).model) == ["Transpose", "MatMul", "Softmax", "MatMul"]
    assert operators(fold(model, options=FoldingOptions(fuse=True)).model) == ["MatMul"]
