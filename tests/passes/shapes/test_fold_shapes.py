from __future__ import annotations

import numpy as np
import onnx
import pytest
from rewriting import SIZES, check, constants, feeds_of, lines, model_of

from graphkit.model import Model
from graphkit.ops.tensor import Tensor, array_of
from graphkit.passes.clean_up.fold_constants import FoldShapes, element_numbers
from graphkit.shapes import symbol

PASS = FoldShapes()
INT64, INT32, UINT8, BOOL, FLOAT = 7, 6, 2, 9, 1


def shape_graph(nodes: str, output: str = "int64[K] y", inits: str = "") -> str:
    return f"g (float[N, 4, 8] x) => ({output}) <{inits}> {{ s = Shape (x) {nodes} }}"


KNOWN = {
    "one dim": (shape_graph("y = Gather (s, at)", inits="int64[1] at = {1}"), [4]),
    "a scalar": (shape_graph("y = Gather (s, at)", "int64 y", "int64 at = {2}"), 8),
    "a slice of a shape": (
        shape_graph("y = Slice (s, one, end)", inits="int64[1] one = {1}, int64[1] end = {3}"),
        [4, 8],
    ),
    "the end of a Shape": ("g (float[N, 4, 8] x) => (int64[K] y) { y = Shape <start = 1> (x) }", [4, 8]),
    "arithmetic that is rid of the batch": (
        shape_graph("n = Gather (s, at) y = Div (n, n)", inits="int64[1] at = {0}"),
        [1],
    ),
    "a comparison": (
        shape_graph("c = Gather (s, at) y = Equal (c, four)", "bool[K] y", "int64[1] at = {1}, int64[1] four = {4}"),
        [True],
    ),
    "of another type": (
        shape_graph("c = Gather (s, at) y = Cast <to = 6> (c)", "int32[K] y", "int64[1] at = {2}"),
        [8],
    ),
    "a Range": (
        shape_graph(
            "c = Gather (s, at) y = Range (zero, c, one)", inits="int64 at = {1}, int64 zero = {0}, int64 one = {1}"
        ),
        [0, 1, 2, 3],
    ),
    "a tensor filled with numbers": (
        shape_graph("c = Gather (s, at) y = ConstantOfShape <value = int64[1] {5}> (c)", inits="int64[1] at = {1}"),
        [5, 5, 5, 5],
    ),
    "no elements": (shape_graph("y = Slice (s, one, one)", inits="int64[1] one = {1}"), []),
    "Size": ("g (float[2, 3] x) => (int64 y) { y = Size (x) }", 6),
}


@pytest.mark.parametrize(("text", "expected"), KNOWN.values(), ids=KNOWN)
def test_what_is_the_same_at_all_dims_is_a_constant(text: str, expected: object) -> None:
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["y = Identity (y_value)"]
    assert constants(outcome.model) == {"y_value": expected}
    assert outcome.changes == ("1 shape tensor made constant",)


STAYS = {
    "a dim that is not a number": shape_graph("y = Gather (s, at)", inits="int64[1] at = {0}"),
    "one number and one that is none": shape_graph("y = Gather (s, at)", inits="int64[2] at = {0, 1}"),
    "floats": shape_graph("c = Gather (s, at) y = Cast <to = 1> (c)", "float[K] y", "int64[1] at = {0}"),
    "data": "g (int64[N] x) => (int64[N] y) { y = Neg (x) }",
    "a default that a caller may change": "g (float[N] x, int64[1] c = {3}) => (int64[1] y, float[N] z) "
    "{ y = Neg (c) z = Neg (x) }",
    "a Constant": "g (float[N] x) => (int64[1] y, float[N] z) { y = Constant <value_ints = [3]> () z = Neg (x) }",
    "what nothing reads": "g (float[N, 4] x) => (float[N, 4] y) { s = Shape <start = 1> (x) y = Neg (x) }",
}


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_it_stays(text: str) -> None:
    model = model_of(text)
    outcome = check(PASS, model)
    assert (lines(outcome.model), outcome.changes) == (lines(model), ())


def test_only_the_last_of_a_chain_becomes_a_constant() -> None:
    text = (
        "g (float[N, 4] x) => (float[N, 4] y) "
        "{ s = Shape <start = 1> (x) t = Add (s, s) e = Expand (x, s) y = Neg (e) }"
    )
    outcome = check(PASS, model_of(text))
    assert constants(outcome.model) == {"s_value": [4]}


def test_equal_constants_are_one() -> None:
    text = (
        "g (float[N, 4] x) => (float[N, 4] y) "
        "{ s = Shape <start = 1> (x) t = Shape <start = -1> (x) a = Expand (x, s) y = Expand (a, t) }"
    )
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["a = Expand (x, s_value)", "y = Expand (a, s_value)"]


def test_a_name_that_is_taken_gets_a_number() -> None:
    text = (
        "g (float[N, 4] x) => (int64[1] y) <int64[1] y_value = {1}> { s = Shape <start = 1> (x) y = Add (s, y_value) }"
    )
    assert lines(check(PASS, model_of(text)).model) == ["y = Identity (y_value_1)"]


def test_bodies_read_constants_of_the_main_graph() -> None:
    model = model_of(
        """
        g (float[N, 4] x, bool c) => (float[N, 4] y) {
            y = If (c) <
                then_branch = t () => (float[N, 4] a) { s = Shape <start = 1> (x) a = Expand (x, s) },
                else_branch = f () => (float[1] b) { b0 = Shape <start = 1> (x) b = Cast <to = 1> (b0) } >
        }"""
    )
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    outcome = check(PASS, model, feeds=feeds)
    assert constants(outcome.model) == {"s_value": [4]}
    assert "Shape" not in lines(outcome.model)[0]


def test_the_output_of_a_body_is_made_there() -> None:
    model = model_of(
        """
        g (float[N, 4] x) => (int64[1] y, int64[M, 1] z) <int64 two = {2}, bool true = {1}, int64[1] zero = {0}> {
            y, z = Loop (two, true, zero) < body = b (int64 i, bool go, int64[1] s) => (bool on, int64[1] t, int64[1] u)
                { on = Identity (go) u = Shape <start = 1> (x) t = Add (s, u) } >
        }"""
    )
    (text,) = lines(check(PASS, model).model)
    assert "u = Identity (u_value)" in text
    assert "t = Add (s, u_value)" in text


def test_the_counter_of_a_loop_is_no_number() -> None:
    model = model_of("""
        g (float[N, 4] x) => (int64 y) <int64 two = {2}, bool true = {1}, int64 zero = {0}> {
            y = Loop (two, true, zero) < body = b (int64 i, bool go, int64 s) => (bool on, int64 t)
                { on = Identity (go) t = Add (s, i) } >
        }""")
    assert not check(PASS, model).changes


def test_one_output_of_several() -> None:
    text = """g (float[N, 4] x) => (int64[1] a, int64[1] y) <int64[2] one = {1, 1}> {
        s = Shape (x) a, b = Split <axis = 0> (s, one) y = Neg (b) }"""
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model)[-1] == "y = Identity (y_value)"
    assert lines(outcome.model)[1] == "a, b = Split <axis: int = 0> (s, one)"


def test_functions_are_left_but_what_a_call_gives_is_known() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N, 4] x) => (int64[1] y) { y = local.f (x) }
        <domain: "local", opset_import: ["" : 17]>
        f (v) => (w) { w = Shape <start = 1> (v) }
    """)
    outcome = check(PASS, Model.from_proto(proto))
    assert lines(outcome.model) == ["y = Identity (y_value)"]


def test_below_ir_version_4_constants_are_nodes() -> None:
    model = model_of(
        "g (float[N, 4] x) => (int64[1] y) { s = Shape (x) i = Constant <value = int64[1] {1}> () y = Gather (s, i) }",
        11,
        3,
    )
    outcome = check(PASS, model)
    assert lines(outcome.model) == [
        "y_value = Constant <value: tensor = int64[1] y_value {4}> ()",
        "y = Identity (y_value)",
    ]


def test_a_number_outside_of_its_dtype_is_left() -> None:
    tensor = Tensor(UINT8, (1,), array_of([300]))
    assert element_numbers(tensor) is None


@pytest.mark.parametrize("dtype", [INT64, INT32, UINT8, BOOL])
def test_numbers_have_the_dtype_of_the_tensor(dtype: int) -> None:
    array = element_numbers(Tensor(dtype, (1,), array_of([1])))
    assert array is not None
    assert array.dtype == onnx.helper.tensor_dtype_to_np_dtype(dtype)


def test_symbols_and_floats_are_no_numbers() -> None:
    assert element_numbers(Tensor(INT64, (1,), array_of([symbol("n")]))) is None
    assert element_numbers(Tensor(FLOAT, (1,), array_of([1.0]))) is None
