from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fusing import operators
from onnx import TensorProto, helper, numpy_helper
from rewriting import SIZES, check, constants, feeds_of, lines, model_of, reasons

from graphkit.model import Model, load
from graphkit.passes.clean_up import fold_constants
from graphkit.passes.clean_up.fold_constants import FoldConstants
from graphkit.runtime.session import Session

PASS = FoldConstants()
LEAST = -(2**63)
NO_RESULT = "it ends the process with SIGFPE, an integer division that has no result"
HUGE = 1 << 62


def with_tensor(model: Model, tensor: TensorProto) -> Model:
    model.proto.graph.initializer.append(tensor)
    return Model.from_proto(model.proto)


def missing(name: str, *dims: int) -> TensorProto:
    """Return a weight whose data file is not there."""
    tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="missing.bin")
    return tensor


# What is folded


def test_a_cone_of_constants_is_one_constant() -> None:
    text = (
        "g (float[N, 2] x) => (float[N, 2] y) <float[2] a = {4, 9}, float[2] b = {1, 2}> "
        "{ r = Sqrt (a) s = Add (r, b) y = Mul (x, s) }"
    )
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["y = Mul (x, s_value)"]
    assert constants(outcome.model) == {"s_value": [3.0, 5.0]}
    assert outcome.changes == ("1 constant result folded",)


CONSTANTS = {
    "a tensor": ("value = float[2] {1, 2}", [1.0, 2.0]),
    "a float": ("value_float = 2.5", 2.5),
    "floats": ("value_floats = [1.5, 2.5]", [1.5, 2.5]),
    "an int": ("value_int = 3", 3),
    "ints": ("value_ints = [3, 4]", [3, 4]),
}


@pytest.mark.parametrize(("form", "expected"), CONSTANTS.values(), ids=CONSTANTS)
def test_constant_nodes_are_initializers(form: str, expected: object) -> None:
    text = f"g (float[N] x) => (float[K] y) {{ c = Constant <{form}> () s = ReduceSum (x) y = Pow (s, c) }}"
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["s = ReduceSum (x)", "y = Pow (s, c_1)"]
    assert constants(outcome.model) == {"c_1": expected}
    assert outcome.changes == ("1 Constant node moved to the initializers",)


def test_every_output_of_a_node_is_a_constant() -> None:
    text = (
        "g (float[N] x) => (float[2] a, float[2] b, float[N] y) <float[4] c = {1, 2, 3, 4}> "
        "{ a, b = Split <axis = 0> (c) y = Neg (x) }"
    )
    outcome = check(PASS, model_of(text, opset=13))
    assert lines(outcome.model) == ["a = Identity (a_value)", "b = Identity (b_value)", "y = Neg (x)"]


def test_an_identity_that_gives_a_constant_its_name_stays() -> None:
    text = "g (float[N] x) => (float[1] a, float[N] y) <float[1] c = {4}> { a = Identity (c) y = Neg (x) }"
    assert not check(PASS, model_of(text)).changes


def test_what_an_output_and_a_name_of_an_output_need_is_folded() -> None:
    """An Identity takes the place of the Split, which gives `b` no longer."""
    text = """g (float[N] x) => (float[1] a, float[1] z, float[N] y) <float[2] c = {1, 2}> {
        d = Neg (c) a, b = Split (d) z = Identity (b) y = Abs (x)
    }"""
    outcome = check(PASS, model_of(text))
    assert lines(outcome.model) == ["a = Identity (a_value)", "z = Identity (b_value)", "y = Abs (x)"]


def test_what_only_moves_may_grow_as_far_as_it_frees_constants() -> None:
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    text = "g (float[N, 8] x) => (float[N, 8] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t) }"
    assert lines(check(FoldConstants(limit=100), model_of(text, w=weight)).model) == ["y = MatMul (x, t_value)"]


def test_bodies_read_the_results_in_the_main_graph() -> None:
    model = model_of("""
        g (float[N] x, bool c) => (float[N] y) <float[1] w = {4}> {
            y = If (c) <
                then_branch = t () => (float[N] a) { r = Sqrt (w) a = Mul (x, r) },
                else_branch = f () => (float[1] b) { k = Constant <value = float[1] {9}> () b = Sqrt (k) } >
        }""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    (text,) = lines(check(PASS, model, feeds=feeds).model)
    assert "a = Mul (x, r_value)" in text
    assert "b = Identity (b_value)" in text


def test_matrices_are_multiplied_as_they_would_be_at_run_time() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(size).astype(np.float32) for size in ((8, 512), (512, 2)))
    text = "g (float[N] x) => (float[8, 2] m, float[N] y) { m = MatMul (a, b) y = Neg (x) }"
    assert check(PASS, model_of(text, a=a, b=b)).changes == ("1 constant result folded",)


def test_below_ir_version_4() -> None:
    text = "g (float[N] x) => (float[N] y) { c = Constant <value = float[1] {4}> () r = Sqrt (c) y = Mul (x, r) }"
    outcome = check(PASS, model_of(text, opset=11, ir=3))
    assert lines(outcome.model) == [
        "r_value = Constant <value: tensor = float[1] r_value {2}> ()",
        "y = Mul (x, r_value)",
    ]


def test_weights_that_stay_in_the_file_are_read_from_it(tmp_path: Path) -> None:
    weight = np.arange(1024, dtype=np.float32)
    model = model_of("g (float[N, 1024] x) => (float[N, 1024] y) { r = Sqrt (w) y = Mul (x, r) }", w=weight)
    onnx.save(model.proto, tmp_path / "m.onnx")
    outcome = PASS.run(load(tmp_path / "m.onnx", threshold=16))
    np.testing.assert_array_equal(constants(outcome.model)["r_value"], np.sqrt(weight))


def test_float16_is_calculated_with_where_that_is_asked_for() -> None:
    text = "g (float16[N] x) => (float16[M] y) <float16[1] a = {4}> { b = Sqrt (a) y = Concat <axis = 0> (x, b) }"
    assert lines(check(FoldConstants(half=True), model_of(text)).model) == ["y = Concat <axis: int = 0> (x, b_value)"]


def test_what_only_moves_float16_is_no_arithmetic() -> None:
    text = "g (float[N] x) => (float[N] z, float16[K, 1, 2, 2] y) { z = Neg (x) y = DepthToSpace <blocksize = 2> (a) }"
    outcome = check(PASS, model_of(text, a=np.arange(4, dtype=np.float16).reshape(1, 4, 1, 1)))
    assert constants(outcome.model) == {"y_value": [[[[0, 1], [2, 3]]]]}


# What is not


def both(nodes: str, inits: str = "", output: str = "float[K] y", opset: int = 17) -> Model:
    return model_of(f"g (float[N] x) => (float[N] z, {output}) <{inits}> {{ z = Neg (x) {nodes} }}", opset)


DECLINED = {
    "the least integer by -1": (
        both("d = Div (a, b) y = Cast <to = 1> (d)", f"int64[1] a = {{{LEAST}}}, int64[1] b = {{-1}}"),
        f"Cast#2: {NO_RESULT}",
    ),
    "a product over no elements": (
        both('y = Einsum <equation = "c,abc->b"> (p, q)', "float[1] p = {1}, float[2, 0, 0] q = {}"),
        f"Einsum#1: {NO_RESULT}",
    ),
    "float16 arithmetic": (
        both("y = Sqrt (a)", "float16[1] a = {4}", "float16[K] y"),
        "Sqrt#1: its float16 arithmetic is left to the runtime",
    ),
    "a result of no known size": (
        with_tensor(both("y = NonZero (a)", "", "int64[1, K] y"), numpy_helper.from_array(np.ones(600, "f4"), "a")),
        "NonZero#1: it depends only on constants, but the size of its result is unknown",
    ),
    "strings": (
        both("y = Identity (a) w = StringNormalizer (a)", 'string[1] a = {"A"}', "string[K] w"),
        "StringNormalizer#2: it depends only on constants, but the size of its result is unknown",
    ),
    "a dtype that no one knows": (
        with_tensor(both("y = Neg (w)"), TensorProto(name="w", dims=[1], data_type=99, raw_data=b"1234")),
        "Neg#1: it depends only on constants, but the size of its result is unknown",
    ),
    "a file that is missing": (
        with_tensor(both("s = Sqrt (w) t = Neg (s) y = Abs (t)"), missing("w", 3)),
        "Abs#3: missing.bin, tensor 'w': its data file is missing - put it there",
    ),
}


@pytest.mark.parametrize(("model", "reason"), DECLINED.values(), ids=DECLINED)
def test_it_is_declined(model: Model, reason: str) -> None:
    outcome = PASS.run(model)
    assert reason in reasons(outcome)
    assert (lines(outcome.model), outcome.changes) == (lines(model), ())


@pytest.mark.slow
def test_constants_that_end_the_process_spoil_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many do, no more are tried: each costs a process."""
    monkeypatch.setattr(fold_constants, "MAX_DEATHS", 3)
    traps = " ".join(f"d{at} = Div (least, minus) f{at} = Cast <to = 1> (d{at})" for at in range(4))
    text = (
        f"g (float[N] x) => (float[N] y) <int64[1] least = {{{LEAST}}}, int64[1] minus = {{-1}}, float[1] four = {{4}}>"
        f" {{ r = Sqrt (four) {traps} y = Sum (x, r, f0, f1, f2, f3) }}"
    )
    outcome = PASS.run(model_of(text))
    assert constants(outcome.model)["r_value"] == [2.0]
    why = [NO_RESULT, NO_RESULT, "it is not computed, because other constants end the process that computes them"]
    assert [reason.split(": ")[1] for reason in reasons(outcome)] == [*why, why[-1]]


BOMBS = {
    "ConstantOfShape": both("y = ConstantOfShape (s)", f"int64[3] s = {{{HUGE}, {HUGE}, 9}}", "float[A, B, C] y"),
    "Expand": both("y = Expand (a, s)", f"float[1] a = {{1}}, int64[2] s = {{{HUGE}, 9}}", "float[A, B] y"),
    "Tile": both("y = Tile (a, s)", f"float[1] a = {{1}}, int64[1] s = {{{HUGE}}}"),
    "Range": both("y = Range (a, s, a)", f"int64 a = {{1}}, int64 s = {{{HUGE}}}", "int64[K] y"),
    "Pad": both("y = Pad (a, s)", f"float[1] a = {{1}}, int64[2] s = {{0, {1 << 40}}}"),
    "OneHot": both(
        "y = OneHot (a, d, v)", f"int64[1] a = {{1}}, int64 d = {{{1 << 40}}}, float[2] v = {{0, 1}}", "float[1, K] y"
    ),
    "Resize": both(
        "y = Resize (a, , , s)", f"float[1, 1] a = {{1}}, int64[2] s = {{{1 << 20}, {1 << 20}}}", "float[A, B] y"
    ),
    "a step on the way": both(
        "e = Expand (a, s) y = ReduceSum (e)", f"float[1] a = {{1}}, int64[2] s = {{{1 << 30}, 9}}", "float[A, B] y"
    ),
}


@pytest.mark.parametrize("model", BOMBS.values(), ids=BOMBS)
def test_what_would_be_huge_is_not_even_tried(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_constants, "run_nodes", lambda *_: pytest.fail("it was run"))
    outcome = PASS.run(model)
    assert (lines(outcome.model), outcome.changes) == (lines(model), ())
    assert "its constant result is larger than 1,048,576 bytes" in reasons(outcome)[0]


def test_the_limit_is_an_option() -> None:
    text = (
        "g (float[N, 64] x) => (float[N, 64] y) <int64[1] s = {64}> "
        "{ c = ConstantOfShape <value = float[1] {2}> (s) y = Mul (x, c) }"
    )
    assert check(FoldConstants(limit=256), model_of(text)).changes
    outcome = check(FoldConstants(limit=255), model_of(text))
    assert reasons(outcome) == ["ConstantOfShape#0: its constant result is larger than 255 bytes"]


WIDE = """g (float[N, 64] x) => (float[N, 64] y RESULT)
    <float[1, 64] w = {FILL}, int64[2] s = {512, 64}, int64 i = {3}> {
    e = Expand (w, s) a = Neg (e) row = Gather (a, i) MORE y = Add (x, row) }"""


def wide(result: str = "", more: str = "") -> Model:
    fill = ", ".join(str(number) for number in range(64))
    return model_of(WIDE.replace("FILL", fill).replace("RESULT", result).replace("MORE", more))


def test_a_small_result_is_computed_by_way_of_larger_ones() -> None:
    outcome = check(FoldConstants(limit=256), wide())
    assert operators(outcome.model) == ["Add"]
    assert reasons(outcome) == []


def test_a_larger_result_that_something_else_reads_stays_and_reads_constants() -> None:
    """Not the one before it, which is computed for the small one alone."""
    outcome = check(FoldConstants(limit=256), wide(", float[N, 512] z", "t = Transpose (a) z = MatMul (x, t)"))
    assert operators(outcome.model) == ["Expand", "Neg", "Transpose", "MatMul", "Add"]
    assert reasons(outcome) == [
        f"{node}: its constant result is larger than 256 bytes" for node in ("Expand#0", "Neg#1", "Transpose#2")
    ]


def test_so_many_larger_results_are_not_computed_for_a_small_one() -> None:
    many = " ".join(f"b{number} = Neg ({'a' if number == 0 else f'b{number - 1}'})" for number in range(80))
    model = wide(", float[64] z", f"{many} z = Gather (b79, i)")
    outcome = check(FoldConstants(limit=256), model)
    assert reasons(outcome)[-1].endswith("its constant result is larger than 256 bytes")
    assert operators(outcome.model)[-1] == "Add"


def test_a_large_weight_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    size = fold_constants.MAX_READ // 4 + 1
    model = with_tensor(both("r = ReduceSum (w) y = Reshape (r, s)", "int64[1] s = {1}"), missing("w", size))
    monkeypatch.setattr(fold_constants, "run_nodes", lambda *_: pytest.fail("it was run"))
    assert not PASS.run(model).changes


STAYS = {
    "quantised weights": both("y = DequantizeLinear (a, s)", "int8[2] a = {1, 2}, float s = {0.5}"),
    "random numbers": both("y = RandomNormalLike (a)", "float[2] a = {1, 2}"),
    "a body": both(
        "y = If (c) < then_branch = t () => (float[1] a) "
        "{ a = Sqrt (w) }, else_branch = f () => (float[1] b) { b = Neg (w) } >",
        "bool c = {1}, float[1] w = {4}",
    ),
    "a default that a caller may change": model_of(
        "g (float[N] x, float[1] c = {4}) => (float[N] y) { r = Sqrt (c) y = Mul (x, r) }"
    ),
    "another domain": both("y = com.microsoft.Gelu (a)", "float[2] a = {1, 2}"),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    outcome = PASS.run(model)
    assert [line.split(" (")[0] for line in lines(outcome.model)][:1] == [line.split(" (")[0] for line in lines(model)][
        :1
    ]
    assert {line.split(" ")[2] for line in lines(model)} == {line.split(" ")[2] for line in lines(outcome.model)}


def test_sparse_constants_are_left() -> None:
    model = both("y = Sqrt (w)")
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [4.0, 9.0])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [1, 3])
    model.proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    outcome = PASS.run(Model.from_proto(model.proto))
    assert lines(outcome.model) == lines(model)
    assert reasons(outcome) == ["Sqrt#1: tensor 'w': it is a constant of a form that is not read"]


@pytest.mark.parametrize(
    "dtype", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.BFLOAT16, TensorProto.INT4]
)
def test_what_only_moves_elements_of_other_dtypes_is_folded(dtype: int) -> None:
    name = TensorProto.DataType.Name(dtype).lower()
    text = "g (float[N] x) => (float[3, 1] z) { y = Transpose <perm = [1, 0]> (w) z = Cast <to = 1> (y) }"
    model = with_tensor(model_of(text, opset=21, ir=10), helper.make_tensor("w", dtype, [1, 3], [1, 2, 3]))
    moved = FoldConstants(limit=2 if name == "int4" else 6).run(model).model
    assert lines(moved) == ["z = Cast <to: int = 1> (y_value)"]
    assert constants(moved)["y_value"] == [[1], [2], [3]]
    np.testing.assert_array_equal(Session(moved).run({"x": np.zeros(1, np.float32)})["z"], [[1], [2], [3]])


def test_constants_of_equal_bytes_and_other_types_are_two() -> None:
    text = (
        "g (float[N] x) => (int32[2] y, float[2] z, float[N] w) <int32[2] a = {0, 0}, float[2] b = {0, 0}> "
        "{ y = Neg (a) z = Sqrt (b) w = Abs (x) }"
    )
    assert constants(check(PASS, model_of(text)).model) == {"y_value": [0, 0], "z_value": [0.0, 0.0]}


def test_one_that_fails_does_not_spoil_the_others() -> None:
    nodes = "a = Sqrt (c) y = Neg (a) b = Sqrt (w) v = Neg (b)"
    model = with_tensor(both(nodes, "float[1] c = {4}", "float[K] y, float[K] v"), missing("w", 3))
    outcome = PASS.run(model)
    assert constants_of(outcome.model) == {"y_value": [-2.0]}
    assert [line for line in lines(outcome.model) if "Sqrt" in line] == ["b = Sqrt (w)"]


def constants_of(model: Model) -> dict[str, object]:
    inline = [tensor for tensor in model.proto.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    return {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in inline}


def test_all_results_together_are_bounded() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["size"], [f"c{number}"]) for number in range(300)]
    for number, node in enumerate(nodes):
        node.attribute.append(helper.make_attribute("value", helper.make_tensor("", TensorProto.FLOAT, [1], [number])))
    outputs = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output]
    size = helper.make_tensor("size", TensorProto.INT64, [1], [1 << 13])
    graph = helper.make_graph(nodes, "g", [], outputs, [size])
    model = Model.from_proto(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]))
    outcome = FoldConstants(1 << 15).run(model)
    assert outcome.changes == ("64 constant results folded",)
    assert len(outcome.declined) == 300 - 64
    assert outcome.declined[0].reason == "constant results would add more than 2,097,152 bytes to the model"
