from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from rewriting import check, constants, lines, model_of
from sessions import run

from graphkit.model import Model
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity

PASS = EliminateIdentity()


def graph(nodes: str, dtype: str = "float", inits: str = "") -> str:
    return f"g ({dtype}[N, 4] x) => ({dtype}[N, 4] y) <{inits}> {{ {nodes} y = Abs (b) }}"


def one(dtype: str, number: int | float) -> str:
    return f"{dtype}[1] c = {{{number}}}"


GONE = {
    "Identity": graph("b = Identity (x)"),
    "Dropout": graph("b = Dropout (x)"),
    "Dropout whose mask nothing reads": graph("b, mask = Dropout (x)"),
    "Dropout that is told not to train": graph("b = Dropout (x, r, t)", inits="float r = {0.5}, bool t = {0}"),
    "Cast to the same type": graph("b = Cast <to = 1> (x)"),
    "Transpose": graph("b = Transpose <perm = [0, 1]> (x)"),
    "Concat of one": graph("b = Concat <axis = 0> (x)"),
    "Max of one": graph("b = Max (x)"),
    "Min of one": graph("b = Min (x)"),
    "Sum of one": graph("b = Sum (x)"),
    "Mean of one": graph("b = Mean (x)"),
    "x + 0": graph("b = Add (x, c)", "int64", one("int64", 0)),
    "0 + x": graph("b = Add (c, x)", "int32", one("int32", 0)),
    "x - 0": graph("b = Sub (x, c)", "int64", one("int64", 0)),
    "x * 1": graph("b = Mul (x, c)", inits=one("float", 1.0)),
    "1 * x": graph("b = Mul (c, x)", inits=one("float", 1.0)),
    "x / 1": graph("b = Div (x, c)", inits=one("float", 1.0)),
    "x / 1 of integers": graph("b = Div (x, c)", "int64", one("int64", 1)),
    "x ** 1": graph("b = Pow (x, c)", inits=one("float", 1.0)),
    "x ** 1, an integer": graph("b = Pow (x, c)", inits=one("int64", 1)),
    "ones in each column": graph("b = Mul (x, c)", inits="float[4] c = {1, 1, 1, 1}"),
    "Tile": graph("b = Tile (x, c)", inits="int64[2] c = {1, 1}"),
    "Pad": graph("b = Pad (x, c)", inits="int64[4] c = {0, 0, 0, 0}"),
    "Pad by what is known to be 0": graph("s = Shape (x) d = Sub (s, s) p = Concat <axis = 0> (d, d) b = Pad (x, p)"),
    "Pad that would reflect": graph('b = Pad <mode = "reflect"> (x, c)', inits="int64[4] c = {0, 0, 0, 0}"),
    "Split into one": graph("b = Split <axis = 1> (x)"),
    "Split into one of a size": graph("b = Split <axis = 1> (x, c)", inits="int64[1] c = {4}"),
}
STAYS = {
    "Dropout that may train": "g (float[N, 4] x, bool t) => (float[N, 4] y) <float r = {0.0}> "
    "{ b = Dropout (x, r, t) y = Abs (b) }",
    "Dropout whose mask is read": "g (float[N, 4] x) => (float[N, 4] y) "
    "{ b, m = Dropout (x) f = Cast <to = 1> (m) y = Add (b, f) }",
    "Dropout whose mask is an output": "g (float[N, 4] x) => (float[N, 4] y, bool[N, 4] m) { y, m = Dropout (x) }",
    "Cast to another type": graph("d = Cast <to = 11> (x) b = Cast <to = 1> (d)"),
    "Transpose that moves": "g (float[N, 4] x) => (float[4, N] y) { b = Transpose <perm = [1, 0]> (x) y = Abs (b) }",
    "x + 0.0, for -0.0": graph("b = Add (x, c)", inits=one("float", 0.0)),
    "0 - x": graph("b = Sub (c, x)", "int64", one("int64", 0)),
    "1 / x": graph("b = Div (c, x)", inits=one("float", 1.0)),
    "1 ** x": graph("b = Pow (c, x)", inits=one("float", 1.0)),
    "another number": graph("b = Mul (x, c)", inits=one("float", 2.0)),
    "not all ones": graph("b = Mul (x, c)", inits="float[4] c = {1, 1, 2, 1}"),
    "ones that broadcast": graph("r = ReduceSum (x) b = Mul (r, c)", inits="float[1, 4] c = {1, 1, 1, 1}"),
    "a one that a caller may change": "g (float[N, 4] x, float[1] c = {1}) => (float[N, 4] y) "
    "{ b = Mul (x, c) y = Abs (b) }",
    "Tile that repeats": "g (float[N, 4] x) => (float[N, 8] y) <int64[2] c = {1, 2}> { b = Tile (x, c) y = Abs (b) }",
    "Split into one and none": "g (float[N, 4] x) => (float[N, 4] y, float[N, 0] z) <int64[2] c = {4, 0}> "
    "{ b, z = Split <axis = 1> (x, c) y = Abs (b) }",
    "Pad that pads": "g (float[N, 4] x) => (float[N, 5] y) <int64[4] c = {0, 0, 0, 1}> { b = Pad (x, c) y = Abs (b) }",
}


@pytest.mark.parametrize("text", GONE.values(), ids=GONE)
def test_it_goes(text: str) -> None:
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["y = Abs (x)"]
    assert outcome.changes == ("1 node without effect removed",)


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_it_stays(text: str) -> None:
    model = model_of(text)
    outcome = check(PASS, model)
    assert (lines(outcome.model), outcome.changes) == (lines(model), ())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    ("node", "zeros", "is_removed"),
    [
        ("y = Sub (x, c)", [0.0] * 5, True),
        ("y = Sub (x, c)", [0.0], True),
        ("y = Sub (x, c)", [-0.0], False),
        ("y = Sub (x, c)", [0.0, 0.0, -0.0, 0.0, 0.0], False),
        ("y = Sub (c, x)", [0.0], False),
        ("y = Add (x, c)", [-0.0], True),
        ("y = Add (c, x)", [-0.0] * 5, True),
        ("y = Add (x, c)", [0.0], False),
    ],
)
def test_zeros_go_whose_sign_changes_no_zero(node: str, zeros: list[float], is_removed: bool, dtype: type) -> None:
    name = {np.float32: "float", np.float64: "double", np.float16: "float16"}[dtype]
    model = model_of(f"g ({name}[N, 5] x) => ({name}[N, 5] y) {{ {node} }}", c=np.array(zeros, dtype))
    x = np.array([[np.nan, np.inf, -0.0, 0.0, 1.5], [-np.inf, -0.0, -0.0, -0.0, 6e-8]], dtype)
    outcome = check(PASS, model, feeds=[{"x": x}])
    assert (lines(outcome.model) == ["y = Identity (x)"]) is is_removed
    (before,), (after,) = run(model, {"x": x}), run(outcome.model, {"x": x})
    np.testing.assert_array_equal(np.signbit(before[:, 1:]), np.signbit(after[:, 1:]))


def test_zeros_that_make_a_tensor_larger_stay() -> None:
    model = model_of("g (float[N, 1] x) => (y) { y = Sub (x, c) }", c=np.zeros((1, 4), np.float32))
    assert PASS.run(model).model is model


@pytest.mark.parametrize(
    ("opset", "node"), [(10, "b = Pad <pads = [0, 0, 0, 0]> (x)"), (18, "b = Pad (x, none, , none)")]
)
def test_pads_may_be_an_attribute_or_of_some_axes(opset: int, node: str) -> None:
    model = model_of(graph(node, inits="int64[0] none = {}"), opset)
    assert lines(check(PASS, model).model) == ["y = Abs (x)"]


def test_pads_that_are_an_input_stay() -> None:
    model = model_of("g (float[N, 4] x, int64[4] p) => (float[M, K] y) { b = Pad (x, p) y = Abs (b) }")
    assert not PASS.run(model).changes


@pytest.mark.parametrize("dtype", ["bool"])
@pytest.mark.parametrize(("op", "neutral", "other"), [("And", 1, 0), ("Or", 0, 1)])
def test_the_neutral_element_of_logic(dtype: str, op: str, neutral: int, other: int) -> None:
    text = "g ({0}[N, 4] x) => ({0}[N, 4] y) <{0}[1] c = {{{1}}}> {{ b = {2} (x, c) y = Not (b) }}"
    assert lines(check(PASS, model_of(text.format(dtype, neutral, op))).model) == ["y = Not (x)"]
    assert len(lines(check(PASS, model_of(text.format(dtype, other, op))).model)) == 2


def test_an_input_without_rank_shows_no_dims() -> None:
    model = model_of(graph("b = Mul (x, c)", inits=one("float", 1.0)))
    model.proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert not PASS.run(Model.from_proto(model.proto)).changes


def test_a_cast_whose_type_is_a_text_is_not_read() -> None:
    cast = helper.make_node("Cast", ["x"], ["b"], to="FLOAT")  # as below opset 6
    graph = helper.make_graph([cast, helper.make_node("Abs", ["b"], ["y"])], "g", [], [])
    graph.input.append(helper.make_value_info("x", helper.make_sequence_type_proto(onnx.TypeProto())))
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 5)])
    assert not PASS.run(Model.from_proto(model)).changes


def test_a_constant_in_a_missing_file_is_not_read() -> None:
    model = model_of("g (float[N, 4] x) => (float[N, 4] y) { b = Mul (x, c) y = Abs (b) }")
    tensor = model.proto.graph.initializer.add(name="c", dims=[1], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="missing.bin")
    assert not PASS.run(Model.from_proto(model.proto)).changes


# Names of outputs


def test_the_tensor_before_takes_the_name_of_an_output() -> None:
    outcome = check(PASS, model_of("g (float[N] x) => (float[N] y) { a = Neg (x) y = Identity (a) }"))
    assert lines(outcome.model) == ["y = Neg (x)"]


@pytest.mark.parametrize("reader", ["a", "y"])
def test_an_output_that_would_be_read_as_well_keeps_its_node(reader: str) -> None:
    """onnxruntime's GemmTransposeFusion removes the Transpose of an output that a Gemm reads: it then loads no more."""
    model = model_of(f"""
        g (float[3, 4] x) => (float[4, 3] y, float[2, 4] z) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> {{
            a = Transpose <perm = [1, 0]> (x)
            y = Identity (a)
            g = Gemm ({reader}, w)
            z = Transpose <perm = [1, 0]> (g)
        }}""")
    assert not check(PASS, model).changes
    onnxruntime.InferenceSession(model.proto.SerializeToString())


def test_a_cache_that_is_read_elsewhere_takes_the_name_of_an_output() -> None:
    nodes = "a = Concat <axis = 0> (x, z) y = Identity (a) w = Neg (a)"
    model = model_of(f"g (float[N] x, float[N] z) => (float[M] y, float[M] w) {{ {nodes} }}")
    assert lines(check(PASS, model).model) == ["y = Concat <axis: int = 0> (x, z)", "w = Neg (y)"]


def test_an_output_that_a_body_would_read_keeps_its_node() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y, float[N] w) {
            a = Neg (x)
            y = Identity (a)
            w = If (c) < then_branch = t () => (float[N] e) { e = Exp (y) },
                         else_branch = f () => (float[N] i) { i = Sin (a) } >
        }""")
    feeds = [{"x": np.ones(3, np.float32), "c": np.array(flag)} for flag in (True, False)]
    assert not check(PASS, model, feeds=feeds).changes


def test_an_output_that_is_an_input_or_a_constant_keeps_its_node() -> None:
    text = "g (float[N] x) => (float[N] y, float[1] z) <float[1] c = {2}> { y = Identity (x) z = Identity (c) }"
    assert not check(PASS, model_of(text)).changes


def test_a_tensor_that_is_two_outputs_keeps_its_name() -> None:
    text = "g (float[N] x) => (float[N] y, float[N] z) { a = Neg (x) y = Identity (a) z = Identity (a) }"
    assert not check(PASS, model_of(text)).changes


def test_a_cast_that_gives_an_output_leaves_its_name_to_the_tensor_before() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Neg (x) y = Cast <to = 1> (a) }"
    assert lines(check(PASS, model_of(text)).model) == ["y = Neg (x)"]


def test_a_name_that_a_body_defines_too_is_not_given() -> None:
    """The If reads `a`, which would be called `y` there, and `y` is another tensor in it."""
    model = model_of("""
        g (float[N] x, bool c) => (float[N] z) {
            a = Neg (x)
            i = If (c) < then_branch = t () => (float[N] r) <float[1] y = {3}> { r = Mul (a, y) },
                         else_branch = f () => (float[N] e) { e = Exp (a) } >
            y = Identity (a)
            z = Add (i, y)
        }""")
    model.proto.graph.output.add().CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"]))
    model = Model.from_proto(model.proto)
    feeds = [{"x": np.ones(3, np.float32), "c": np.array(flag)} for flag in (True, False)]
    assert not check(PASS, model, feeds=feeds).changes


# Bodies


def test_a_body_makes_its_outputs_itself() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) {
            a = Neg (x)
            y = If (c) < then_branch = t () => (float[N] r) { r = Cast <to = 1> (a) },
                         else_branch = f () => (float[N] e) { i = Identity (a) e = Exp (i) } >
        }""")
    feeds = [{"x": np.ones(3, np.float32), "c": np.array(flag)} for flag in (True, False)]
    (_, branch) = lines(check(PASS, model, feeds=feeds).model)
    assert "r = Identity (a)" in branch
    assert "e = Exp (a)" in branch


def test_a_tensor_whose_name_means_another_in_a_body_is_not_read_there() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) {
            a = Neg (x)
            b = Identity (a)
            d = Abs (b)
            i = If (c) < then_branch = t () => (float[N] r) <float[1] a = {3}> { r = Mul (b, a) },
                         else_branch = f () => (float[N] e) { e = Exp (b) } >
            y = Add (i, d)
        }""")
    feeds = [{"x": np.ones(3, np.float32), "c": np.array(flag)} for flag in (True, False)]
    assert not check(PASS, model, feeds=feeds).changes


def test_the_state_of_a_loop_that_stays_is_passed_on_by_a_node() -> None:
    model = model_of("""
        g (float[N] x) => (float[N] y) <int64 three = {3}, bool true = {1}> {
            y = Loop (three, true, x) < body = b (int64 i, bool go, float[N] s) => (bool on, float[N] t)
                { on = Identity (go) d = Identity (s) t = Neg (d) } >
        }""")
    (text,) = lines(check(PASS, model).model)
    assert "on = Identity (go)" in text
    assert "t = Neg (s)" in text


def test_a_scan_keeps_what_it_gives_each_step() -> None:
    model = model_of("""
        g (float[N, 3] x) => (float[N, 3] y) {
            y = Scan (x) < num_scan_inputs = 1, body = b (float[3] s) => (float[3] t) { t = Identity (s) } >
        }""")
    assert not check(PASS, model).changes


def test_functions_stay() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N] x) => (float[N] y) { y = local.f (x) }
        <domain: "local", opset_import: ["" : 17]>
        f (v) => (w) { i = Identity (v) w = Neg (i) }
    """)
    assert not check(PASS, Model.from_proto(proto)).changes


def test_constants_that_were_neutral_are_gone() -> None:
    outcome = check(PASS, model_of(graph("b = Mul (x, c)", inits=one("float", 1.0))))
    assert constants(outcome.model) == {}


def test_what_a_split_gives_may_be_an_output_that_others_read() -> None:
    model = model_of(
        "g (float[N, 4] x) => (float[N, 2] y, float[2, N] z) "
        "{ a, b = Split <axis = 1> (x) y = Identity (b) z = Transpose <perm = [1, 0]> (b) }",
        13,
    )
    assert lines(check(PASS, model).model) == [
        "a, y = Split <axis: int = 1> (x)",
        "z = Transpose <perm: ints = [1, 0]> (y)",
    ]
