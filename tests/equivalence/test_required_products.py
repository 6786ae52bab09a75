"""Products of dims that the original's nodes require to be another number."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.sizes import RequiredProducts
from graphkit.model import Model
from graphkit.shapes import Expr, floor_div, parse

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
ROWS, COLUMNS = parse("h // 2"), parse("w // 2")


@pytest.mark.parametrize(
    ("equal", "expr", "expected"),
    [
        ((ROWS * COLUMNS + 1, Expr.of(17)), ROWS * COLUMNS, "16"),
        ((Expr.of(17), ROWS * COLUMNS + 1), parse("n") * ROWS * COLUMNS * 32 + 3, "512*n + 3"),
        ((ROWS * COLUMNS, Expr.of(16)), ROWS * ROWS * COLUMNS * COLUMNS, "256"),
        ((ROWS * COLUMNS, Expr.of(16)), floor_div(ROWS * COLUMNS + parse("n"), Expr.of(3)), "(n + 1) // 3 + 5"),
        (
            (ROWS * COLUMNS, parse("16*((h + 7) // 8)*((w + 7) // 8)")),
            ROWS * COLUMNS,
            "16*((h + 7) // 8)*((w + 7) // 8)",
        ),
        ((ROWS * COLUMNS, Expr.of(16)), ROWS + COLUMNS, "h // 2 + w // 2"),  # its factors alone are not known
        ((ROWS, Expr.of(4)), ROWS, "h // 2"),  # the engine knows what follows for `h`
        ((2 * ROWS * COLUMNS, Expr.of(32)), ROWS * COLUMNS, "(h // 2)*(w // 2)"),  # none of its coefficients is 1
        ((parse("h") * parse("w"), Expr.of(16)), parse("h") * parse("w"), "h*w"),  # dims of inputs keep their names
        ((ROWS * COLUMNS, ROWS * COLUMNS * parse("n")), ROWS * COLUMNS, "(h // 2)*(w // 2)"),  # it would have no end
    ],
)
def test_a_product_is_what_it_must_be(equal: tuple[Expr, Expr], expr: Expr, expected: str) -> None:
    assert str(RequiredProducts([equal]).expr(expr)) == expected


TALL, WIDE = parse("(h + 1) // 2"), parse("(w + 1) // 2")  # at least 1, as what is divided by has to be
WINDOWS = 4 * parse("(h + 7) // 8") * parse("(w + 7) // 8")


@pytest.mark.parametrize(
    ("dividend", "divisor", "expected"),
    [
        (WINDOWS, TALL, "(w + 1) // 2"),
        (parse("n") * WINDOWS * 6, WIDE, "6*n*((h + 1) // 2)"),
        (parse("n") * 8, parse("n"), "8"),
        (WINDOWS + 1, TALL, "(4*((h + 7) // 8)*((w + 7) // 8) + 1) // ((h + 1) // 2)"),
        (parse("(h + 7) // 8"), TALL, "((h + 7) // 8) // ((h + 1) // 2)"),
        (WINDOWS, parse("h // 2"), "(4*((h + 7) // 8)*((w + 7) // 8)) // (h // 2)"),
        (Expr.of(0), TALL, "0"),
    ],
)
def test_a_required_product_is_divided_by_its_factors(dividend: Expr, divisor: Expr, expected: str) -> None:
    assert str(RequiredProducts([(TALL * WIDE, WINDOWS)]).expr(floor_div(dividend, divisor))) == expected


def test_a_chain_of_required_products_is_divided() -> None:
    chain = [(TALL * WIDE, 4 * ROWS * COLUMNS), (ROWS * COLUMNS, WINDOWS)]
    assert str(RequiredProducts(chain).expr(floor_div(4 * WINDOWS, TALL))) == "(w + 1) // 2"


def test_what_may_be_0_divides_nothing() -> None:
    quotient = floor_div(WINDOWS, ROWS)
    assert RequiredProducts([(ROWS * COLUMNS, WINDOWS)]).expr(quotient) == quotient


def test_what_is_0_is_no_factor() -> None:
    quotient = floor_div(parse("n"), TALL)
    assert RequiredProducts([(TALL * WIDE, Expr.of(0))]).expr(quotient) == quotient


EXPRS = st.recursive(
    st.sampled_from([ROWS, COLUMNS, parse("n"), Expr.of(1), Expr.of(3), ROWS * COLUMNS]),
    lambda inner: st.one_of(
        st.builds(Expr.__add__, inner, inner),
        st.builds(Expr.__mul__, inner, inner),
        st.builds(lambda expr: floor_div(expr, Expr.of(2)), inner),
    ),
    max_leaves=6,
)


@given(EXPRS, st.integers(0, 9), st.integers(0, 9), st.integers(0, 5), st.integers(0, 3))
def test_nothing_changes_where_the_original_runs(expr: Expr, height: int, width: int, number: int, more: int) -> None:
    sizes = {"h": height, "w": width, "n": number}
    product = (height // 2) * (width // 2)
    found = RequiredProducts([(ROWS * COLUMNS + more, Expr.of(product + more))]).expr(expr)
    assert found.evaluate(sizes) == expr.evaluate(sizes)


QUOTIENTS = st.recursive(
    st.sampled_from([TALL, WIDE, parse("n"), Expr.of(3), TALL * WIDE, parse("windows")]),
    lambda inner: st.one_of(
        st.builds(Expr.__add__, inner, inner),
        st.builds(Expr.__mul__, inner, inner),
        st.builds(floor_div, inner, st.sampled_from([TALL, WIDE, Expr.of(2)])),
    ),
    max_leaves=6,
)


@given(QUOTIENTS, st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
def test_quotients_are_the_same_where_the_original_runs(expr: Expr, height: int, width: int, number: int) -> None:
    sizes = {"h": height, "w": width, "n": number, "windows": ((height + 1) // 2) * ((width + 1) // 2)}
    found = RequiredProducts([(TALL * WIDE, parse("windows"))]).expr(expr)
    assert found.evaluate(sizes) == expr.evaluate(sizes)


PATCHES = """{head} agraph (float[N, 8, H, W] x) => (float[N, 8, P] y)
<int64[3] folded = {{0, 8, {last}}}, int64[3] flat = {{0, 8, -1}}> {{
    pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    patches = Reshape (pooled, {target})
    {rest}
}}"""
REQUIRED = "y = MatMul (patches, weight)"
READ_IN_BODIES = """rows = MatMul (patches, weight) many = Size (x) most = Constant <value_int = 999> ()
is_large = Less (most, many) y = If (is_large) <
    then_branch = b1 () => (float[N, 8, P] z) { z = Abs (rows) },
    else_branch = b2 () => (float[N, 8, P] v) { v = Relu (rows) }
>"""
BRANCH = """many = Size (x) most = Constant <value_int = 999> () is_large = Less (most, many) y = If (is_large) <
    then_branch = b1 () => (float[N, 8, P] z) {{ z = MatMul (patches, weight) }},
    else_branch = b2 () => (float[N, 8, P] v) {{ v = Relu (patches) }}
>"""


@pytest.mark.parametrize(
    ("rest", "last", "is_proven"),
    [
        (REQUIRED, 16, True),
        (READ_IN_BODIES, 16, True),
        (REQUIRED, 4, False),
        ("y = Relu (patches)", 16, False),  # nothing requires it
        ("unread = MatMul (patches, weight) y = Relu (patches)", 16, False),  # what does, onnxruntime leaves out
        (BRANCH.replace("{{", "{").replace("}}", "}"), 16, False),  # a branch may not run
    ],
)
def test_a_dim_that_is_required_may_be_written(rest: str, last: int, *, is_proven: bool) -> None:
    def model(target: str) -> Model:
        proto = onnx.parser.parse_model(PATCHES.format(head=HEAD, last=last, target=target, rest=rest))
        proto.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32), "weight"))
        return Model.from_proto(proto)

    found = check_equivalence(model("flat"), model("folded"))
    assert found.is_proven == is_proven, str(found)
