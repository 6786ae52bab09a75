from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.checker
import pytest
import sessions
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.clean_up.redundant_nodes import EliminateDeadCode
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.rewrite.base import run_passes

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f"{HEADER}\n{text}"))


def run(model: Model, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    onnx.checker.check_model(model.proto, full_check=True)
    return sessions.run(model, feed, sessions.ALL)


def check(model: Model, name: str, feed: Mapping[str, np.ndarray], shape: tuple[int, ...] = ()) -> dict[bool, Model]:
    """Specialize to both values; each result must give what the original gives. Return the results."""
    results = {}
    for flag in (False, True):
        outcome = run_passes(model, [SpecializeInput(name, flag), EliminateDeadCode()])
        results[flag] = outcome.model
        expected = run(model, {**feed, name: np.full(shape, flag)})
        for one, two in zip(expected, run(outcome.model, feed), strict=True):
            np.testing.assert_array_equal(one, two)
        assert not any(node.is_op("If") for node in outcome.model.graph.nodes)
        assert name not in [value.name for value in outcome.model.graph.inputs]
    return results


X = {"x": np.array([1.5, -2.0], np.float32)}


def test_the_chosen_branch_takes_the_place_of_the_if_with_nodes_before_and_after() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            before = Neg (x)
            chosen = If (flag) <
                then_branch = g1 () => (float[N] a) { a = Add (before, x) },
                else_branch = g2 () => (float[N] b) { t = Abs (before)  b = Neg (t) }
            >
            y = Sqrt (chosen)
        }""")
    results = check(model, "flag", X)
    assert [node.op_type for node in results[True].graph.nodes] == ["Neg", "Add", "Sqrt"]
    assert [node.op_type for node in results[False].graph.nodes] == ["Neg", "Abs", "Neg", "Sqrt"]


def test_outputs_of_the_if_keep_their_names() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    assert [list(node.proto.output) for node in check(model, "flag", X)[True].graph.nodes] == [["y"]]


def test_nested_ifs_on_the_same_condition_are_all_decided() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) {
                    inner = If (flag) <
                        then_branch = g3 () => (float[N] c) { c = Neg (x) },
                        else_branch = g4 () => (float[N] d) { d = Exp (x) }
                    >
                    a = Add (inner, x)
                },
                else_branch = g2 () => (float[N] b) {
                    inner = If (flag) <
                        then_branch = g5 () => (float[N] e) { e = Sin (x) },
                        else_branch = g6 () => (float[N] f) { f = Cos (x) }
                    >
                    b = Mul (inner, inner)
                }
            >
        }""")
    results = check(model, "flag", X)
    assert [node.op_type for node in results[True].graph.nodes] == ["Neg", "Add"]
    assert [node.op_type for node in results[False].graph.nodes] == ["Cos", "Mul"]


def test_weights_inside_branches_move_to_the_graph() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) <float[1] w = {2.0}> { a = Mul (x, w) },
                else_branch = g2 () => (float[N] b) <float[1] w = {3.0}> { b = Add (x, w) }
            >
        }""")
    results = check(model, "flag", X)
    assert [value.name for value in results[True].graph.initializers] == ["w"]


@pytest.mark.parametrize(
    "condition",
    [
        "c = Identity (flag)",
        "n = Not (flag)  c = Not (n)",
        "i = Cast <to = 7> (flag)  c = Cast <to = 9> (i)",
        "c = Not (flag)",
        "i = Cast <to = 7> (flag)  one = Constant <value = int64 {1}> ()  c = Equal (i, one)",
        "t = Constant <value = bool {1}> ()  c = Xor (flag, t)",
    ],
)
def test_the_condition_may_be_behind_other_operators(condition: str) -> None:
    model = model_of(f"""
        agraph (float[N] x, bool flag) => (float[N] y) {{
            {condition}
            y = If (c) <
                then_branch = g1 () => (float[N] a) {{ a = Neg (x) }},
                else_branch = g2 () => (float[N] b) {{ b = Abs (x) }}
            >
        }}""")
    results = check(model, "flag", X)
    assert all(len(result.graph.nodes) == 1 for result in results.values())


def test_a_condition_of_shape_one_behind_squeeze_is_decided() -> None:
    model = model_of("""
        agraph (float[N] x, bool[1] flag) => (float[N] y) {
            c = Squeeze (flag)
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    check(model, "flag", X, shape=(1,))


def test_branches_that_share_local_names_do_not_clash_with_each_other_or_the_graph() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y, float[N] z) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { t = Neg (x)  a = Exp (t) },
                else_branch = g2 () => (float[N] a) { t = Abs (x)  a = Sin (t) }
            >
            z = If (flag) <
                then_branch = g3 () => (float[N] a) { t = Cos (x)  a = Mul (t, t) },
                else_branch = g4 () => (float[N] a) { t = Sin (x)  a = Add (t, x) }
            >
        }""")
    results = check(model, "flag", X)
    names = [name for node in results[True].graph.nodes for name in node.proto.output]
    assert len(names) == len(set(names)) == 4


def test_outputs_that_have_no_node_of_their_own_get_an_identity() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y, float[N] z, float[1] v) {
            y, z, v = If (flag) <
                then_branch = g1 () => (float[N] a, float[N] a, float[1] w) <float[1] w = {2.0}> { a = Neg (x) },
                else_branch = g2 () => (float[N] b, float[N] b, float[1] w) <float[1] w = {3.0}> { b = Abs (x) }
            >
        }""")
    # onnxruntime 1.31 loses an output of an If whose branch gives one value twice: run the reference here.
    for flag in (False, True):
        result = SpecializeInput("flag", flag).run(model).model
        expected = ReferenceEvaluator(model.proto).run(None, {**X, "flag": np.array(flag)})
        for one, two in zip(expected, ReferenceEvaluator(result.proto).run(None, X), strict=True):
            np.testing.assert_array_equal(one, two)
        assert [node.op_type for node in result.graph.nodes][1:] == ["Identity", "Identity"]


def test_an_if_in_the_body_of_a_function_is_left_alone_but_one_around_the_call_is_decided() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { a = local.double (x) },
                else_branch = g2 () => (float[N] b) { b = local.negate (x) }
            >
        }
        <domain: "local", opset_import: ["" : 17]>
        double (v) => (w) { w = Add (v, v) }
        <domain: "local", opset_import: ["" : 17]>
        negate (v) => (w) { w = Neg (v) }
    """)
    results = check(Model.from_proto(proto), "flag", X)
    assert [function.name for function in results[True].proto.functions] == ["double"]
    assert [function.name for function in results[False].proto.functions] == ["negate"]


def test_an_undecided_if_stays_and_is_declined_with_the_reason() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag, bool other) => (float[N] y) {
            y = If (other) <
                then_branch = g1 () => (float[N] a) {
                    a = If (flag) <
                        then_branch = g3 () => (float[N] c) { c = Neg (x) },
                        else_branch = g4 () => (float[N] d) { d = Exp (x) }
                    >
                },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    outcome = SpecializeInput("flag", True).run(model)
    assert [str(declined) for declined in outcome.declined] == ["If#0: its condition does not follow from 'flag' alone"]
    for other in (False, True):
        feed = {**X, "other": np.array(other)}
        expected = run(model, {**feed, "flag": np.array(True)})
        np.testing.assert_array_equal(expected[0], run(outcome.model, feed)[0])


def test_names_in_a_branch_do_not_shadow_those_of_a_body_that_stays() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag, bool other) => (float[N] y) {
            s = If (flag) <
                then_branch = g1 () => (float[N] a) { t = Neg (x)  a = Exp (t) },
                else_branch = g2 () => (float[N] a) { t = Abs (x)  a = Sin (t) }
            >
            y = If (other) <
                then_branch = g3 () => (float[N] c) { t = Cos (s)  c = Neg (t) },
                else_branch = g4 () => (float[N] d) { t = Sin (s)  d = Neg (t) }
            >
        }""")
    outcome = SpecializeInput("flag", True).run(model)
    feed = {**X, "other": np.array(True)}
    np.testing.assert_array_equal(run(model, {**feed, "flag": np.array(True)})[0], run(outcome.model, feed)[0])


def test_an_input_that_is_read_besides_becomes_a_constant() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y, float w) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
            w = Cast <to = 1> (flag)
        }""")
    results = check(model, "flag", X)
    assert [value.name for value in results[True].graph.initializers] == ["flag"]


def test_an_integer_input_decides_through_a_comparison() -> None:
    model = model_of("""
        agraph (float[N] x, int64 mode) => (float[N] y) {
            two = Constant <value = int64 {2}> ()
            c = Greater (mode, two)
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    for mode, op in ((1, "Abs"), (3, "Neg")):
        outcome = run_passes(model, [SpecializeInput("mode", mode), EliminateDeadCode()])
        assert [node.op_type for node in outcome.model.graph.nodes] == [op]


def test_doc_strings_metadata_types_and_annotations_move_along() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) <float[N] t> { t = Neg (x)  a = Exp (t) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    body = model.proto.graph.node[0].attribute[0].g
    body.node[0].doc_string = "negates"
    body.node[0].metadata_props.add(key="k", value="v")
    if not body.value_info:
        body.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, ["N"]))
    annotation = body.quantization_annotation.add(tensor_name="t")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="a")
    graph = SpecializeInput("flag", True).run(model).model.proto.graph
    assert graph.node[0].doc_string == "negates"
    assert [(entry.key, entry.value) for entry in graph.node[0].metadata_props] == [("k", "v")]
    assert [info.name for info in graph.value_info] == ["t"]
    (moved,) = graph.quantization_annotation
    assert (moved.tensor_name, moved.quant_parameter_tensor_names[0].value) == ("t", "y")


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = model_of("""
        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }""")
    before = model.proto.SerializeToString(deterministic=True)
    SpecializeInput("flag", True).run(model)
    assert model.proto.SerializeToString(deterministic=True) == before


def test_an_input_that_does_not_exist_is_named() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    with pytest.raises(UsageError, match=r"no input 'flag' - there are x"):
        SpecializeInput("flag", True).run(model)


def test_a_model_without_outputs_is_left_with_the_input_that_its_nodes_read() -> None:
    model = model_of("agraph (float[N] x, int64[1] axes) => () { y = Unsqueeze (x, axes) }")
    outcome = SpecializeInput("axes", 0).run(model)
    assert outcome.model is model
    assert "the graph has no outputs" in str(outcome.declined[0])


def test_a_condition_that_is_an_initializer_decides() -> None:
    text = """agraph (float[N] x, bool flag) => (float[N] y) <bool c = {1}> {
        y = If (c) <
            then_branch = g1 () => (float[N] a) { a = Neg (x) },
            else_branch = g2 () => (float[N] b) { b = Abs (x) }
        >
    }"""
    result = SpecializeInput("flag", value=False).run(model_of(text)).model
    assert [node.op_type for node in result.graph.nodes] == ["Neg"]


def test_a_sparse_default_of_the_input_goes_with_it() -> None:
    proto = model_of("agraph (int64[3] x) => (int64[3] y) { y = Neg (x) }").proto
    values = helper.make_tensor("x", TensorProto.INT64, [1], [7])
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("", TensorProto.INT64, [1], [2]), [3])
    )
    result = SpecializeInput("x", 5).run(Model.from_proto(proto)).model
    assert not result.proto.graph.sparse_initializer
    assert [list(tensor.dims) for tensor in result.proto.graph.initializer] == [[3]]


def test_an_input_too_large_for_a_constant_is_refused() -> None:
    model = model_of("agraph (int64[4611686018427387904] x) => (int64[N] y) { y = Neg (x) }")
    with pytest.raises(UsageError, match=r"input 'x' is read, and its shape .* is too large for a constant"):
        SpecializeInput("x", 5).run(model)


def test_only_booleans_and_integers_can_be_bound() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    with pytest.raises(UsageError, match=r"input 'x' is float32 - only a boolean or an integer can be bound"):
        SpecializeInput("x", True).run(model)


def test_an_input_of_open_shape_that_is_still_read_cannot_become_a_constant() -> None:
    model = model_of("agraph (int64[N] n) => (int64[N] y) { y = Neg (n) }")
    with pytest.raises(UsageError, match=r"input 'n' is read at a shape that is not fixed: \[N\]"):
        SpecializeInput("n", 3).run(model)
