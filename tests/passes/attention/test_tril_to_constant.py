"""Triangles of constants are constants, those of data are products: results are equal."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from rewriting import assert_same, check, constants, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.attention.mask_arithmetic import TrilToConstant
from graphkit.passes.clean_up.fold_constants import FoldConstants

PASS = TrilToConstant()
DTYPES = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL]


@pytest.mark.cases(28)
@pytest.mark.parametrize("dtype", [*DTYPES, TensorProto.INT32, TensorProto.INT8, TensorProto.FLOAT16])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -9, -2, 0, 1, 7])
def test_the_triangle_of_a_constant(dtype: int, upper: int, k: int | None) -> None:
    array = np.arange(1, 25).reshape(2, 3, 4).astype(helper.tensor_dtype_to_np_dtype(dtype))
    text = f"g () => (y) {{ y = Trilu <upper = {upper}> (x{', k' if k is not None else ''}) }}"
    given = {"x": array} if k is None else {"x": array, "k": np.int64(k)}
    outcome = PASS.run(model_of(text, **given))
    expected = (np.triu if upper else np.tril)(array, k or 0)
    assert constants(outcome.model) == {"y_value": expected.tolist()}
    assert lines(outcome.model) == ["y = Identity (y_value)"]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-9, -1, 0, 2, 9])
def test_the_triangle_of_data(dtype: int, upper: int, k: int) -> None:
    kind = {1: "float", 11: "double", 7: "int64", 9: "bool"}[dtype]
    text = f"g ({kind}[N, 3, 5] x) => ({kind}[N, 3, 5] y) {{ y = Trilu <upper = {upper}> (x, k) }}"
    outcome = check(PASS, model_of(text, k=np.int64(k)))
    assert lines(outcome.model) == [f"y = {'And' if dtype == TensorProto.BOOL else 'Mul'} (x, triangle)"]


BIG = 1030  # a float mask of this size is larger than a megabyte, which fold-constants leaves
RANGE = np.arange(BIG)
MASKS = {
    "ConstantOfShape and Trilu": "s = Trilu <upper = 0> (ones)",
    "Less": "c = Less (q, k) s = Where (c, low, zero)",
    "LessOrEqual": "c = LessOrEqual (k, q) s = Where (c, zero, low)",
    "Greater": "c = Greater (k, q) s = Cast <to = 1> (c)",
    "GreaterOrEqual": "c = GreaterOrEqual (q, k) d = Not (c) s = Cast <to = 1> (d)",
    "Sub": "d = Sub (k, q) c = Less (d, one) s = Where (c, zero, low)",
    "a window": "c = LessOrEqual (k, q) d = Sub (q, width) e = Greater (k, d) f = And (c, e) s = Where (f, zero, low)",
    "a slice of a buffer": "c = Slice (buffer, start, end, axes) s = Where (c, zero, low)",
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("nodes", MASKS.values(), ids=MASKS)
def test_large_masks_of_positions(nodes: str) -> None:
    text = f"""g (float[{BIG}] x) => (y) {{ r = Range (none, length, one) k = Cast <to = 7> (r) q = Unsqueeze (k, last)
    ones = ConstantOfShape <value = float[1] {{1}}> (square) {nodes} y = MatMul (x, s) }}"""
    model = model_of(
        text,
        none=np.int64(0),
        length=np.int64(BIG),
        one=np.int64(1),
        width=np.int64(9),
        last=np.int64([-1]),
        square=np.int64([BIG, BIG]),
        low=np.float32(-100),
        zero=np.float32(0),
        buffer=np.tril(np.ones((BIG + 9, BIG + 9), bool)),
        start=np.int64([0, 9]),
        end=np.int64([BIG, BIG + 9]),
        axes=np.int64([0, 1]),
    )
    first = FoldConstants().run(model).model
    outcome = PASS.run(first)
    assert [line.split(" ")[2] for line in lines(outcome.model)] == ["MatMul"]
    assert len(lines(first)) > 1
    assert_same(model, outcome.model, [{"x": np.eye(BIG, dtype=np.float32)[7]}])


def test_products_of_weights_are_for_fold_constants() -> None:
    """Only masks may become large: two factors of a matrix are smaller than it."""
    text = f"g (float[{BIG}] x) => (y) {{ w = Mul (a, b) y = MatMul (x, w) }}"
    column = np.ones((BIG, 1), np.float32)
    model = model_of(text, a=column, b=column.T.copy())
    assert PASS.run(model).changes == ()


STAYS = {
    "a runtime diagonal": (
        model_of("g (float[3, 3] x, int64 k) => (float[3, 3] y) { y = Trilu (x, k) }"),
        "its diagonal is not a constant",
    ),
    "a size that is not fixed": (
        model_of("g (float[N, L, L] x) => (float[N, L, L] y) { y = Trilu (x) }"),
        "its matrices have no fixed size",
    ),
    "ones of a size that is not fixed": (
        model_of(
            """g (float[L, L] x) => (float[L, L] y) { s = Shape (x) o = ConstantOfShape <value = float[1] {1}> (s)
            t = Trilu (o) y = Mul (x, t) }"""
        ),
        "its matrices have no fixed size",
    ),
    "a size beyond all memory": (
        model_of("g (float[99999999, 99999999] x) => (y) { y = Trilu (x) }"),
        "the constant would be larger than 67,108,864 bytes",
    ),
    "data that may be infinite": (
        model_of("g (float[3, 3] x) => (float[3, 3] y) { l = Log (x) y = Trilu (l) }"),
        "its data may be infinite, and 0 times that is no number",
    ),
    "a constant with infinity": (
        model_of(
            "g (float[3, 3] x) => (float[3, 3] y) { m = Max (x, low) y = Trilu (m) }",
            low=np.full((3, 3), np.inf, np.float32),
        ),
        "its data may be infinite, and 0 times that is no number",
    ),
}


@pytest.mark.parametrize(("model", "reason"), STAYS.values(), ids=STAYS)
def test_what_stays(model: Model, reason: str) -> None:
    outcome = PASS.run(model)
    assert outcome.changes == ()
    assert [text.partition(": ")[2] for text in reasons(outcome)] == [reason]


def test_a_constant_above_the_limit_stays() -> None:
    model = model_of("g () => (y, z) { y = Trilu (x) z = Trilu <upper = 0> (x) }", x=np.ones((8, 8), np.float32))
    assert reasons(TrilToConstant(limit=255).run(model))[:1] == [
        "Trilu#0: its constant result is larger than 255 bytes"
    ]
    data = model_of("g (float[8, 8] x) => (float[8, 8] y) { y = Trilu (x) }")
    assert reasons(TrilToConstant(limit=255).run(data)) == ["Trilu#0: the constant would be larger than 255 bytes"]
