from __future__ import annotations

import onnx
from onnx import TensorProto, helper, parser

from graphkit.model import Model
from graphkit.passes.clean_up.redundant_nodes import DropEmptyOutputs, DropUnusedInputs, EliminateDeadCode
from graphkit.passes.control_flow.merged_decoders import StripMergedSuffixes

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f"{HEADER}\n{text}"))


def ops(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def test_dead_code_goes_in_chains_and_in_bodies() -> None:
    model = model_of("""
        agraph (float[N] x, bool c) => (float[N] y) {
            u = Neg (x)
            v = Abs (u)
            y = If (c) <
                then_branch = g1 () => (float[N] a) { d = Sin (x)  a = Exp (x) },
                else_branch = g2 () => (float[N] b) { b = Neg (x) }
            >
        }""")
    result = EliminateDeadCode().run(model)
    assert result.changes == ("3 nodes removed",)
    assert ops(result.model) == ["If"]
    assert [node.op_type for node in result.model.graph.nodes[0].bodies["then_branch"].nodes] == ["Exp"]


def test_what_only_a_body_reads_stays() -> None:
    model = model_of("""
        agraph (float[N] x, bool c) => (float[N] y) <float[1] w = {2.0}, float[1] unused = {3.0}> {
            p = Neg (x)
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Mul (p, w) },
                else_branch = g2 () => (float[N] b) { b = Neg (p) }
            >
        }""")
    result = EliminateDeadCode().run(model).model
    assert ops(result) == ["Neg", "If"]
    assert [value.name for value in result.graph.initializers] == ["w"]


def test_functions_that_nothing_calls_go_and_those_called_by_others_stay() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[N] x) => (float[N] y) { dead = local.orphan (x)  y = local.outer (x) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        outer (v) => (w) { w = local.inner (v) }
        <domain: "local", opset_import: ["" : 17]>
        inner (v) => (w) { d = Abs (v)  w = Neg (v) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        orphan (v) => (w) { w = local.deep (v) }
        <domain: "local", opset_import: ["" : 17]>
        deep (v) => (w) { w = Neg (v) }
    """)
    result = EliminateDeadCode().run(Model.from_proto(proto)).model.proto
    assert [function.name for function in result.functions] == ["outer", "inner"]
    assert [node.op_type for node in result.functions[1].node] == ["Neg"]


def test_a_model_that_needs_all_that_it_has_stays_the_same_one() -> None:
    model = model_of("""
        agraph (float[N] x, bool c) => (float[N] y) <float[N] p, float[1] w = {2.0}> {
            p = Neg (x)
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Mul (p, w) },
                else_branch = g2 () => (float[N] b) { b = Neg (p) }
            >
        }""")
    assert EliminateDeadCode().run(model).model is model


def test_types_of_what_is_nowhere_go_though_all_nodes_stay() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Abs (x) }")
    model.proto.graph.value_info.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ["N"]))
    assert not EliminateDeadCode().run(model).model.proto.graph.value_info


def test_types_and_annotations_of_what_is_gone_go_too() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { u = Neg (x)  y = Abs (x) }")
    model.proto.graph.value_info.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ["N"]))
    model.proto.graph.quantization_annotation.add(tensor_name="u")
    graph = EliminateDeadCode().run(model).model.proto.graph
    assert not graph.value_info
    assert not graph.quantization_annotation


def test_a_scale_that_an_annotation_names_stays_with_it() -> None:
    model = model_of(
        "agraph (float[N] x) => (float[N] y) <float s = {1.0}, float t = {1.0}> { u = Neg (x)  y = Abs (x) }"
    )
    for tensor, scale in (("x", "s"), ("u", "t")):
        annotation = model.proto.graph.quantization_annotation.add(tensor_name=tensor)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)
    graph = EliminateDeadCode().run(model).model.proto.graph
    assert [tensor.name for tensor in graph.initializer] == ["s"]
    assert [annotation.tensor_name for annotation in graph.quantization_annotation] == ["x"]


def test_what_is_alive_does_not_depend_on_the_order_of_nodes() -> None:
    model = model_of("""
        agraph (float[N] x, bool c) => (float[N] y) {
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Exp (p)  q = Sin (x) },
                else_branch = g2 () => (float[N] b) { b = Neg (r)  r = Abs (x) }
            >
            p = Abs (u)
            u = Neg (x)
            unused = Exp (x)
        }""")
    result = EliminateDeadCode().run(model)
    assert result.changes == ("2 nodes removed",)
    assert ops(result.model) == ["If", "Abs", "Neg"]
    assert [len(body.nodes) for body in result.model.graph.nodes[0].bodies.values()] == [1, 2]


def test_a_default_of_an_input_stays_with_the_input() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Abs (x) }")
    model.proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]))
    model.proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0]))
    fresh = Model.from_proto(model.proto)
    assert [t.name for t in EliminateDeadCode().run(fresh).model.proto.graph.initializer] == ["w"]
    dropped = DropUnusedInputs().run(fresh).model.proto.graph
    assert [info.name for info in dropped.input] == ["x"]
    assert not dropped.initializer


def test_empty_outputs_are_seen_as_constant_initializer_and_through_identity() -> None:
    model = model_of("""
        agraph (float[N] x) => (float[N] y, float[0] a, float[0] b, float[0] c) <float[0] b = {}> {
            y = Neg (x)
            a = Constant <value = float[0] {}> ()
            t = Constant <value = float[0] {}> ()
            i = Identity (t)
            c = Identity (i)
        }""")
    result = DropEmptyOutputs().run(model)
    assert [value.name for value in result.model.graph.outputs] == ["y"]
    assert result.changes == ("3 outputs dropped: a, b, c",)


def test_an_output_that_is_only_sometimes_empty_stays() -> None:
    model = model_of("agraph (float[0] x, float[N] z) => (float[0] y, float[N] v) { y = Neg (x)  v = Neg (z) }")
    assert DropEmptyOutputs().run(model).model is model


def test_a_model_without_unused_inputs_is_given_back() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert DropUnusedInputs().run(model).model is model


def test_a_model_without_outputs_keeps_the_inputs_that_its_nodes_read() -> None:
    outcome = DropUnusedInputs().run(model := model_of("agraph (float[N] x) => () { y = Neg (x) }"))
    assert outcome.model is model
    assert "the graph has no outputs" in str(outcome.declined[0])


def test_suffixes_stay_where_the_short_name_is_taken_and_say_so() -> None:
    model = model_of("""
        agraph (float[N] x) => (float[N] y)
        <float[1] w_merged_0 = {2.0}, float[1] v_merged_0 = {3.0}, float[1] u_merged = {4.0}> {
            w = Add (x, w_merged_0)
            t = Add (w, v_merged_0)
            y = Add (t, u_merged)
        }""")
    result = StripMergedSuffixes().run(model)
    assert [value.name for value in result.model.graph.initializers] == ["w_merged_0", "v", "u"]
    assert [str(declined) for declined in result.declined] == ["w_merged_0: 'w' is in use"]


def test_suffixes_inside_names_of_a_quantiser_go_too() -> None:
    model = model_of("""
        agraph (uint8[N] x) => (float[N] y) <float s_merged_0_scale = {2.0}, uint8 s_merged_0_zero_point = {3}> {
            y = DequantizeLinear (x, s_merged_0_scale, s_merged_0_zero_point)
        }""")
    result = StripMergedSuffixes().run(model).model
    assert list(result.graph.nodes[0].proto.input) == ["x", "s_scale", "s_zero_point"]


def test_renamed_weights_are_renamed_in_bodies() -> None:
    model = model_of("""
        agraph (float[N] x, bool c) => (float[N] y) <float[1] w_merged_0 = {2.0}> {
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = Add (x, w_merged_0) },
                else_branch = g2 () => (float[N] b) { b = Mul (x, w_merged_0) }
            >
        }""")
    result = StripMergedSuffixes().run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    assert [value.name for value in result.graph.initializers] == ["w"]
