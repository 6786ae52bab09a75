from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rewriting import SIZES, check, constants, feeds_of, lines, model_of

from graphkit.model import Model
from graphkit.passes.clean_up.redundant_nodes import MergeCommonSubexpressions
from graphkit.rewrite import Editor

PASS = MergeCommonSubexpressions()


def graph(nodes: str, inits: str = "", opset: int = 17) -> Model:
    return model_of(f"g (float[N, 4] x) => (y) <{inits}> {{ {nodes} }}", opset)


MERGED = {
    "nodes": (graph("a = Exp (x) b = Exp (x) y = Add (a, b)"), ["a = Exp (x)", "y = Add (a, a)"]),
    "chains": (
        graph("a = Exp (x) b = Exp (x) c = Neg (a) d = Neg (b) y = Add (c, d)"),
        ["a = Exp (x)", "c = Neg (a)", "y = Add (c, c)"],
    ),
    "attributes": (
        graph("a = Softmax <axis = 1> (x) b = Softmax <axis = 1> (x) y = Add (a, b)"),
        ["a = Softmax <axis: int = 1> (x)", "y = Add (a, a)"],
    ),
    "constants": (
        graph("a = Add (x, v) b = Mul (x, w) y = Add (a, b)", "float[1] v = {2}, float[1] w = {2}"),
        ["a = Add (x, v)", "b = Mul (x, v)", "y = Add (a, b)"],
    ),
    "Constant nodes": (
        graph(
            "v = Constant <value = float[1] "
            "{2}> () w = Constant <value = float[1] {2}> () a = Add (x, v) y = Mul (a, w)"
        ),
        ["v = Constant <value: tensor = float[1] {2}> ()", "a = Add (x, v)", "y = Mul (a, v)"],
    ),
    "inputs that are left out": (
        graph("a = Clip (x, , m) b = Clip (x, , m) y = Add (a, b)", "float m = {2}"),
        ['a = Clip (x, "", m)', "y = Add (a, a)"],
    ),
    "several outputs": (
        graph(
            "a, b = Split <axis = 1> (x, s) c, d = Split <axis = 1> (x, s) e = Add (a, d) y = Mul (c, e)",
            "int64[2] s = {2, 2}",
        ),
        ["a, b = Split <axis: int = 1> (x, s)", "e = Add (a, b)", "y = Mul (a, e)"],
    ),
}


@pytest.mark.parametrize(("model", "expected"), MERGED.values(), ids=MERGED)
def test_equal_things_are_one(model: Model, expected: list[str]) -> None:
    assert lines(check(PASS, model).model) == expected


STAYS = {
    "other attributes": graph("a = Softmax <axis = 0> (x) b = Softmax <axis = 1> (x) y = Add (a, b)"),
    "other inputs": graph("a = Exp (x) b = Exp (a) y = Add (a, b)"),
    "the same inputs in another order": graph("a = Sub (x, c) b = Sub (c, x) y = Add (a, b)", "float[1] c = {1}"),
    "random numbers": graph("a = RandomNormalLike (x) b = RandomNormalLike (x) y = Add (a, b)"),
    "Dropout": graph("a = Dropout (x, r, t) b = Dropout (x, r, t) y = Add (a, b)", "float r = {0.5}, bool t = {1}"),
    "BiasDropout": graph(
        "a = com.microsoft.BiasDropout (x, c, , r, t) b = com.microsoft.BiasDropout (x, c, , r, t) y = Add (a, b)",
        "float[1] c = {1}, float r = {0.5}, bool t = {1}",
    ),
    "another number of outputs": graph("a, m = MaxPool <kernel_shape = [1]> (x) y = MaxPool <kernel_shape = [1]> (x)"),
    "outputs": model_of("g (float[N] x) => (a, b) { a = Exp (x) b = Exp (x) }"),
    "numbers of other types": graph(
        "a = Add (x, v) i = Cast <to = 1> (w) y = Mul (a, i)", "float[1] v = {0}, int32[1] w = {0}"
    ),
    "constants of other dims": graph("a = Add (x, v) y = Mul (a, w)", "float[1] v = {2}, float w = {2}"),
    "defaults that a caller may change": model_of(
        "g (float[N] x, float[1] v = {2}, float[1] w = {2}) => (y) { a = Add (x, v) y = Mul (a, w) }"
    ),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    assert not PASS.run(model).changes


def test_an_output_that_comes_second_stays_and_gives_nothing_up() -> None:
    text = "g (float[N] x) => (b, y) { a = Exp (x) b = Exp (x) y = Add (a, b) }"
    outcome = check(PASS, model_of(text))
    assert not outcome.changes


def test_operators_of_other_domains() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "custom" : 1]>
        g (float[N] x) => (float[N] y) {
            a = com.microsoft.Gelu (x) b = com.microsoft.Gelu (x) c = custom.Thing (a) d = custom.Thing (b)
            y = Add (c, d)
        }""")
    outcome = PASS.run(Model.from_proto(proto))
    assert lines(outcome.model) == [
        "a = com.microsoft.Gelu (x)",
        "c = custom.Thing (a)",
        "d = custom.Thing (a)",
        "y = Add (c, d)",
    ]


def test_a_body_reads_what_a_graph_around_it_computes_and_not_what_another_body_does() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) {
            a = Exp (x)
            i = If (c) < then_branch = t () => (float[N] q) { p = Exp (x) r = Sin (x) q = Add (p, r) },
                         else_branch = f () => (float[N] w) { u = Exp (x) v = Sin (x) w = Mul (u, v) } >
            y = Add (i, a)
        }""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    text = lines(check(PASS, model, feeds=feeds).model)[1]
    assert "q = Add (a, r)" in text
    assert "w = Mul (a, v)" in text


def test_what_comes_after_a_body_is_not_read_in_it() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) {
            i = If (c) < then_branch = t () => (float[N] q) { p = Exp (x) q = Neg (p) },
                         else_branch = f () => (float[N] w) { w = Neg (x) } >
            a = Exp (x)
            y = Add (i, a)
        }""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    assert not check(PASS, model, feeds=feeds).changes


def test_constants_of_bodies_are_merged_with_those_around() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) <float[1] k = {2}> {
            i = If (c) < then_branch = t () => (float[N] q) <float[1] v = {2}> { q = Mul (x, v) },
                         else_branch = f () => (float[N] w) <float[1] v = {2}> { w = Add (x, v) } >
            y = Add (i, k)
        }""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    outcome = check(PASS, model, feeds=feeds)
    assert "q = Mul (x, k)" in lines(outcome.model)[0]
    assert outcome.changes == ("2 duplicate constants merged",)


def test_sparse_constants_are_not_compared() -> None:
    model = graph("a = Add (x, v) y = Mul (a, w)")
    for name, places in (("v", [1, 3]), ("w", [0, 3])):
        values = helper.make_tensor(name, TensorProto.FLOAT, [2], [5.0, 6.0])
        indices = helper.make_tensor("", TensorProto.INT64, [2], places)
        model.proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert not PASS.run(Model.from_proto(model.proto)).changes


@pytest.mark.parametrize(("offset", "is_merged"), [(0, True), (8, False)])
def test_constants_in_files_are_equal_where_they_lie_at_the_same_place(offset: int, is_merged: bool) -> None:
    model = graph("a = Add (x, v) y = Mul (a, w)")
    for name, place in (("v", 0), ("w", offset)):
        tensor = model.proto.graph.initializer.add(name=name, dims=[1], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", str(place)), ("length", "4")):
            tensor.external_data.add(key=key, value=value)
    assert bool(PASS.run(Model.from_proto(model.proto)).changes) is is_merged


def test_strings_are_compared() -> None:
    text = """g (string[1] x) => (y, z) <string[1] v = {"a"}, string[1] w = {"a"}> {
        y = Concat <axis = 0> (x, v) z = Concat <axis = 0> (w, x) }"""
    outcome = PASS.run(model_of(text))
    assert lines(outcome.model)[1] == "z = Concat <axis: int = 0> (v, x)"


def test_large_constants_are_not_compared() -> None:
    big = np.ones(1 << 16, np.float32)
    outcome = PASS.run(model_of("g (float[N, 65536] x) => (y) { a = Add (x, v) y = Mul (a, w) }", v=big, w=big))
    assert set(constants(outcome.model)) == {"v", "w"}


def test_a_shape_whose_numbers_another_one_has_is_that_one() -> None:
    """The Shape of a Range is the length that it counts up to; that of another input of one name may differ."""
    model = model_of(
        "agraph (float[N] x, float[N] z) => (y, q) { n = Shape (x) m = Squeeze (n) r = Range (zero, m, one) "
        "s = Shape (r) y = Expand (half, s) t = Shape (z) q = Expand (half, t) }",
        zero=np.int64(0), one=np.int64(1), half=np.float32([0.5]),
    )  # fmt: skip
    result = check(MergeCommonSubexpressions(), model).model
    assert [line for line in lines(result) if "Expand" in line] == ["y = Expand (half, n)", "q = Expand (half, t)"]


def test_numbers_that_follow_from_no_input_are_computed_once() -> None:
    """As many boxes as TopK gives are those that it was asked for, and one number is no list to choose it from."""
    model = model_of(
        "agraph (float[N] x) => (y, z) { i = NonZero (x) s = Shape <start = 1> (i) g = Gather (s, zero) "
        "u = Unsqueeze (g, axis) k = Min (u, nine) v = Squeeze (i, axis) f = Cast <to = 1> (v) t, w = TopK (f, k) "
        "n = Shape (t) y = Expand (half, n) z = Identity (w) }",
        zero=np.int64(0), axis=np.array([0]), nine=np.array([9]), half=np.float32(0.5),
    )  # fmt: skip
    left = lines(check(MergeCommonSubexpressions(), model).model)
    assert [line for line in left if "Min" in line or "half" in line] == ["k = Min (s, nine)", "y = Expand (half, k)"]


def test_numbers_of_another_dtype_or_with_others_behind_them_are_others() -> None:
    model = model_of(
        "agraph (float[N] x) => (y, z, w) { i = NonZero (x) s = Shape <start = 1> (i) c = Cast <to = 6> (s) "
        "y = Add (c, one) t = Concat <axis = 0> (s, three) z = Expand (half, t) u = Concat <axis = 0> (s, four) "
        "w = Expand (half, u) }",
        one=np.array([1], np.int32), three=np.array([3]), four=np.array([4]), half=np.float32(0.5),
    )  # fmt: skip
    assert not check(MergeCommonSubexpressions(), model).changes


def test_nodes_that_an_edit_of_this_round_makes_equal_are_one_and_others_that_it_takes_are_not() -> None:
    """What is taken as it is may be a graph output soon, and gets no reader."""
    model = graph(
        "a = Clip (x, , m) b = Clip (x, n) c = Neg (x) d = Neg (x) e = Add (a, b) f = Add (c, d) y = Add (e, f)",
        "float m = {2}, float n = {2}",
    )
    editor, (first, second, taken, *_) = Editor(model), model.nodes
    editor.set_inputs(first, {1: "low"})
    editor.set_inputs(second, {1: "low", 2: model.graph.values["m"]})
    editor.take(taken)
    PASS.edit(editor)
    assert "e = Add (a, a)" in lines(editor.result())
    assert "f = Add (c, d)" in lines(editor.result())
