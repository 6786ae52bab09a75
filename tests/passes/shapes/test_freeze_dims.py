from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, helper
from rewriting import assert_same, feeds_of, model_of

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import FreezeDims

TEXT = """g (float[N, L] x, float[N, "L + 1"] z, float[M] w) => (float[N, L] y, float[N, Q] v) {
    y = Neg (x)
    v = Abs (z)
    rows = Concat <axis = 1> (x, z)
}"""


def frozen(model: Model, **options: object) -> Model:
    result = FreezeDims(**options).run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    return result


def declared(model: Model) -> dict[str, list[int | str | None]]:
    """Return the declared dims of inputs, outputs and values between."""
    graph = model.proto.graph
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in info.type.tensor_type.shape.dim
        ]
        for info in (*graph.input, *graph.output, *graph.value_info)
    }


def test_a_symbol_is_frozen_wherever_it_stands() -> None:
    found = declared(frozen(model_of(TEXT), dims=(("L", 4),)))
    assert found == {"x": ["N", 4], "z": ["N", 5], "w": ["M"], "y": ["N", 4], "v": ["N", "Q"]}


def test_an_input_gives_its_symbols_numbers() -> None:
    found = declared(frozen(model_of(TEXT), inputs=(("z", (2, 4)),)))
    assert found == {"x": [2, 3], "z": [2, 4], "w": ["M"], "y": [2, 3], "v": [2, "Q"]}


def test_a_dim_without_a_name_is_frozen_by_the_name_of_its_input() -> None:
    model = model_of("g (float[N, L] x) => (float[N, L] y) { y = Neg (x) }")
    model.proto.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    assert declared(frozen(Model.from_proto(model.proto), dims=(("x.1", 4),)))["x"] == ["N", 4]


def test_an_input_without_rank_gets_one() -> None:
    model = model_of("g (float[] u, float[N] x) => (float[] y, float[N] z) { y = Neg (u) z = Neg (x) }")
    outcome = FreezeDims(inputs=(("u", (2, 3)),)).run(model)
    assert declared(outcome.model) == {"u": [2, 3], "x": ["N"], "y": [], "z": ["N"]}
    assert outcome.changes == ("u is 2x3",)


def test_values_between_follow() -> None:
    model = model_of("g (float[N, L] x) => (float[A, B] y) { a = Neg (x) y = Concat <axis = 1> (a, x) }")
    for name, dims in (("a", ["N", "L"]), ("gone", ["N"])):
        model.proto.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    found = declared(frozen(Model.from_proto(model.proto), dims=(("L", 4),)))
    assert found == {"x": ["N", 4], "y": ["A", "B"], "a": ["N", 4], "gone": ["N"]}


def test_a_wrong_declaration_of_a_frozen_symbol_is_put_right() -> None:
    model = model_of("g (float[N, past] x, float[N, 1] n) => (float[N, past] y) { y = Concat <axis = 1> (x, n) }")
    assert declared(frozen(model, dims=(("past", 0),)))["y"] == ["N", 1]


def test_what_the_engine_does_not_know_is_left_open() -> None:
    model = model_of("g (float[N] x) => (int64[1, N] y) { y = NonZero (x) }")
    assert declared(frozen(model, dims=(("N", 4),)))["y"] == [1, None]


def test_bodies_follow() -> None:
    model = model_of("""
        g (float[N, L] x) => (float[N, L] y) <int64 two = {2}, bool true = {1}> {
            y = Loop (two, true, x) < body = b (int64 i, bool go, float[N, L] s) => (bool on, float[N, L] t)
                { on = Identity (go) t = Neg (s) } >
        }""")
    result = frozen(model, dims=(("N", 3),))
    body = result.proto.graph.node[0].attribute[0].g
    shapes = [[dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim] for info in body.input]
    assert shapes == [[], [], [3, "L"]]
    assert [dim.dim_value for dim in body.output[1].type.tensor_type.shape.dim] == [3, 0]
    assert_same(model, result, [feeds_of(model, {"N": 3, "L": length}) for length in (1, 4)])


def test_the_state_of_a_loop_may_grow_past_the_number_that_it_declares() -> None:
    model = model_of("""
        g (float[N] x) => (float[N, G] y) <int64 two = {2}, bool true = {1}, int64[1] one = {1}> {
            first = Unsqueeze (x, one)
            y = Loop (two, true, first) < body = b (int64 i, bool go, float[N, 1] s) => (bool on, float[N, 2] t)
                { on = Identity (go) t = Concat <axis = 1> (s, s) } >
        }""")
    result = frozen(model, dims=(("N", 3),))
    body = result.proto.graph.node[1].attribute[0].g
    states = (body.input[2], body.output[1])
    assert [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in states] == [[3, 0], [3, 0]]
    assert_same(model, result, [feeds_of(model, {"N": 3})])


def test_a_number_of_a_value_between_that_holds_at_other_sizes_is_left_open() -> None:
    model = model_of("g (float[N, L] x) => (float[N, L] y) { a = Neg (x) y = Neg (a) }")
    model.proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 11]))
    found = declared(frozen(Model.from_proto(model.proto), dims=(("N", 2), ("L", 7))))
    assert found == {"x": [2, 7], "y": [2, 7], "a": [2, None]}


def test_numbers_sequences_and_what_else_is_declared_stay() -> None:
    text = "g (seq(float[N]) s, float[N, 2] x) => (float[N, 2] y) { y = Neg (x) }"
    model = model_of(text)
    result = frozen(model, dims=(("N", 4),))
    assert result.proto.graph.input[0] == model.proto.graph.input[0]
    assert declared(result)["x"] == [4, 2]


def test_without_numbers_the_model_is_given_back() -> None:
    model = model_of(TEXT)
    assert FreezeDims().run(model).model is model
    assert FreezeDims(inputs=(("w", (3,)),)).run(FreezeDims(dims=(("M", 3),)).run(model).model).changes == ()


ERRORS = {
    "a symbol that is none": ({"dims": (("Q", 1),)}, "no input has a dim 'Q' - there are L, M, N"),
    "an input that is none": ({"inputs": (("q", (1,)),)}, "there is no input 'q' - there are x, z, w"),
    "another rank": ({"inputs": (("x", (1,)),)}, "input 'x' has 2 dims - 1 has 1"),
    "two inputs that contradict": (
        {"inputs": (("x", (2, 3)), ("z", (3, 4)))},
        "a dim of input 'z' is N, which is 2 as given elsewhere - it cannot be 3 too",
    ),
    "a symbol and an input": (
        {"dims": (("N", 3),), "inputs": (("x", (2, 3)),)},
        "a dim of input 'x' is N, which is 3 as given elsewhere - it cannot be 2 too",
    ),
    "less than nothing": ({"inputs": (("z", (2, 0)),)}, "'L' is -1, out of its range - give it another range"),
    "no batch": ({"dims": (("N", 0),)}, "'N' is 0, out of its range - give it another range"),
    "too much": ({"dims": (("N", 2**63),)}, "'N' is 9223372036854775808 - a size is less than 2^63"),
    "a range that is none": (
        {"ranges": (("N", 3, 2),)},
        "the range of 'N' is 3 to 2, which holds no size - give another range",
    ),
    "a range below the least size": (
        {"ranges": (("N", None, 0),)},
        "the range of 'N' is 1 to 0, which holds no size - give another range",
    ),
    "out of the range that is given": (
        {"dims": (("N", 3),), "ranges": (("N", 4, None),)},
        "'N' is 3, out of its range - give it another range",
    ),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_what_does_not_fit_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        FreezeDims(**options).run(model_of(TEXT))
    assert str(error.value) == message


def test_a_range_may_let_a_dim_be_empty() -> None:
    options = {"inputs": (("z", (2, 1)),), "ranges": (("L", 0, None),)}
    assert declared(frozen(model_of(TEXT), **options))["x"] == [2, 0]


def test_the_frozen_model_gives_the_same() -> None:
    model = model_of(TEXT)
    feed = {"x": np.ones((2, 3), "f4"), "z": np.ones((2, 4), "f4"), "w": np.ones(1, "f4")}
    assert_same(model, frozen(model, dims=(("N", 2), ("L", 3))), [feed])
