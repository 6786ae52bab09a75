"""Graphs that no rewrite can understand: one error that names the node; reports and shapes tell what they can."""

from __future__ import annotations

import inspect
import re
import textwrap
from functools import partial

import onnx
import onnx.parser
import pytest
from builders import model_of

from graphkit.analysis.report import SECTION_NAMES, report
from graphkit.errors import ModelError, UsageError
from graphkit.model import Model
from graphkit.passes import PASSES
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.registry import parse_pipeline
from graphkit.rewrite.base import Pass
from graphkit.shapes import infer

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
EXAMPLE = re.compile(
    r"Before(?: \(opset (?P<opset>\d+)\))?:\n\n(?P<before>.*?)\n\n\s*After(?: `(?P<call>[^`]*)`)?:", re.S
)
TWICE = "g (float[N] x) => (float[N] y) { a = Abs (x) y = Neg (a) a = Abs (x) }"
BROKEN = {
    "'a' is defined twice": TWICE,
    "'x' is defined twice": "g (float[N] x) => (float[N] y) { x = Abs (x) y = Neg (x) }",
    "'b' is defined twice": """g (bool c, float[N] x) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] b) { b = Abs (x) b = Neg (x) },
                    else_branch = e () => (float[N] d) { d = Neg (x) }> }""",
    "'ghost' is never defined": "g (float[N] x) => (float[N] y) { y = Add (x, ghost) }",
    "'z' is never defined": "g (float[N] x) => (float[N] y, float[N] z) { y = Abs (x) }",
    "read each other in a circle": "g (float[N] x) => (float[N] y) { a = Add (x, y) y = Neg (a) }",
    "Transpose has 0 inputs and needs 1": "g (float[N] x) => (float[N] y) { y = Abs (x) z = Transpose () }",
    "Softmax has 2 inputs and takes 1": "g (float[N] x) => (float[N] y) { y = Softmax (x, x) }",
    "Constant has 2 outputs and takes 1": """g (float[N] x) => (float[N] y) {
        a, b = Constant <value_float = 1.0> () y = Add (x, a) }""",
    "Max leaves out its input 1": "g (float[N] x) => (float[N] y) { y = Max (x, , x) }",
    "'axes', which ReduceSum does not have": "g (float[N] x) => (float[N] y) { y = ReduceSum <axes = [0]> (x) }",
    "Concat lacks its attribute 'axis'": "g (float[N] x) => (float[N] y) { y = Concat (x, x) }",
    "Linear has 1 output and needs 3": "g (float[N] x) => (float[N] y) { y = Abs (x) q = DynamicQuantizeLinear (x) }",
    "has an attribute 'axis' of another kind": 'g (float[N] x) => (float[N] y) { y = Softmax <axis = "one"> (x) }',
    "Constant has 0 values and needs 1": "g (float[N] x) => (float[N] y) { a = Constant () y = Add (x, a) }",
    "Constant has 2 values and needs 1": """g (float[N] x) => (float[N] y) {
        a = Constant <value_float = 1.0, value_int = 1> () y = Add (x, a) }""",
    "has an attribute 'value_int' of another kind": """g (float[N] x) => (float[N] y) {
        a = Constant <value_int = float {1}> () y = Add (x, a) }""",
}


model = partial(model_of, opset=17, domains=("local",))


@pytest.mark.parametrize(("problem", "text"), BROKEN.items())
def test_folding_refuses_what_it_cannot_understand(problem: str, text: str) -> None:
    with pytest.raises(ModelError, match=problem):
        fold(model(text))


def test_attributes_that_a_runtime_had_before_onnx_had_the_operator_are_kept() -> None:
    text = (
        "g (float[1, 2, 3, 3] x) => (float[1, 2, 3, 3] y) { y = MeanVarianceNormalization <across_channels = 1> (x) }"
    )
    (node,) = fold(model_of(text, 8, ir=3)).model.graph.nodes
    assert node.attr("across_channels", 0) == 1


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name())
def test_every_pass_refuses_its_own_example_with_a_node_that_stands_twice(kind: type[Pass]) -> None:
    match = EXAMPLE.search(inspect.getdoc(kind) or "")
    assert match is not None
    proto = onnx.parser.parse_model(HEADER + textwrap.dedent(match["before"]))
    proto.opset_import[0].version = int(match["opset"] or 17)
    proto.graph.node.append(proto.graph.node[-1])
    (step,) = parse_pipeline(match["call"] or kind.name())
    with pytest.raises(ModelError, match="is defined twice - no runtime loads such a graph"):
        step.run(Model.from_proto(proto))


@pytest.mark.parametrize("text", BROKEN.values())
def test_reports_and_shapes_tell_what_they_can(text: str) -> None:
    made = model(text)
    assert report(made).sections.keys() == set(SECTION_NAMES)
    named = {name for node in made.proto.graph.node for name in node.output}
    assert {value.name for value in infer(made)} >= named | {value.name for value in made.proto.graph.input}


def test_an_attribute_is_given_once() -> None:
    proto = model("g (float[2, 2] x) => (float[2, 2] y) { y = Softmax <axis = 0> (x) }").restore()
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    with pytest.raises(ModelError, match="Softmax has two attributes of one name"):
        fold(Model.from_proto(proto))


def test_only_a_node_of_a_function_refers_to_the_attributes_of_its_call() -> None:
    text = """g (float[2, 2] x) => (float[2, 2] y) { y = local.F <by = 0> (x) }
        <domain: "local", opset_import: ["": 17]> F <by> (x) => (y) { y = Softmax <axis : int = @by> (x) }"""
    proto = onnx.parser.parse_model(HEADER + text)
    Model.from_proto(proto).check_soundness()
    proto.graph.node.append(proto.functions[0].node[0])
    proto.graph.node[-1].output[0] = "z"
    with pytest.raises(ModelError, match="takes its attribute 'axis' from the call of a function, and is in none"):
        fold(Model.from_proto(proto))


def test_nodes_in_any_order_are_sound() -> None:
    assert fold(model("g (float[N] x) => (float[N] y) { y = Neg (a) a = Abs (x) }")).model.graph.nodes


def test_an_operator_that_onnx_does_not_know_may_have_any_form() -> None:
    model("g (float[N] x) => (float[N] y) { y = Gelu2 <axis = 1.5> () }").check_soundness()


def test_an_operator_has_its_form_in_opsets_before_it_too() -> None:
    older = onnx.parser.parse_model(
        HEADER.replace("17", "9") + "g (float[N] x) => (float[N] y) { y = Abs (x) = ScatterND (x, x, x) }"
    )
    with pytest.raises(ModelError, match="ScatterND has 0 outputs and needs 1"):
        fold(Model.from_proto(older))


def test_a_name_may_mean_another_value_in_a_body() -> None:
    text = """g (bool c, float[N] x) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] b) { b = Abs (x) },
                    else_branch = e () => (float[N] b) { b = Neg (x) }> }"""
    model(text).check_soundness()


@pytest.mark.parametrize("call", ["drop-unused-inputs", "specialize-input{input=flag,value=1}"])
def test_an_input_goes_with_the_dead_nodes_that_read_it(call: str) -> None:
    (step,) = parse_pipeline(call)
    text = "g (float[N] x, int64[M] flag) => (float[N] y) { y = Neg (x) dead = Cast <to = 1> (flag) }"
    made = Model.from_proto(step.run(model(text)).model.proto)
    made.check_soundness()
    assert [node.op_type for node in made.graph.nodes] == ["Neg"]


@pytest.mark.parametrize("value", [128, -129])
def test_a_number_that_an_input_cannot_be(value: int) -> None:
    (step,) = parse_pipeline(f"specialize-input{{input=flag,value={value}}}")
    with pytest.raises(UsageError, match=f"input 'flag' is int8 - it cannot be {value}"):
        step.run(model("g (int8 flag) => (int8 y) { y = Neg (flag) }"))
