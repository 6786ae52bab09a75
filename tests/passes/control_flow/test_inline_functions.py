from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, helper, parser
from sessions import run

from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.passes.control_flow import inline_functions
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.rewrite.base import Outcome
from graphkit.runtime.onnxruntime_loader import runtime_version
from graphkit.save import save_models

HEADER = '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>'
DOMAIN = '<domain: "local", opset_import: ["" : 18, "local" : 1]>'
X = {"x": np.array([1.5, -2.0, 3.0], np.float32)}


def model_of(graph: str, *bodies: str) -> Model:
    return Model.from_proto(parser.parse_model(f"{HEADER}\n{graph}\n" + "\n".join(f"{DOMAIN} {f}" for f in bodies)))


def check(model: Model, feed: Mapping[str, np.ndarray] = X) -> Outcome:
    """Inline; the result must give what onnxruntime makes of the functions."""
    outcome = InlineFunctions().run(model)
    onnx.checker.check_model(outcome.model.proto, full_check=True)
    for one, two in zip(run(model, feed), run(outcome.model, feed), strict=True):
        np.testing.assert_array_equal(one, two)
    assert [value.name for value in outcome.model.graph.outputs] == [value.name for value in model.graph.outputs]
    assert not outcome.model.graph.problems
    return outcome


def operators(outcome: Outcome) -> list[str]:
    return [node.operator for node in all_nodes(outcome.model.scopes)]


ONE_CALL = "agraph (float[N] x) => (float[N] y) { [call] y = local.f (x) }"


def test_functions_in_functions_and_in_bodies_are_inlined() -> None:
    model = model_of(
        """agraph (float[N] x, bool c) => (float[N] y) {
            a = local.g (x)
            y = If (c) <then_branch = g1 () => (float[N] p) { p = local.f (a) },
                        else_branch = g2 () => (float[N] q) { q = Neg (a) }>
        }""",
        "f (v) => (r) { a = Abs (v)  r = Neg (a) }",
        "g (v) => (r) { u = local.f (v)  r = Add (u, v) }",
    )
    outcome = check(model, {**X, "c": np.array(True)})
    assert outcome.changes == ("2 calls of function 'f' inlined", "1 call of function 'g' inlined")
    assert operators(outcome) == ["Abs", "Neg", "Add", "If", "Abs", "Neg", "Neg"]
    assert not outcome.model.proto.functions
    assert [entry.domain for entry in outcome.model.proto.opset_import] == [""]


def test_names_that_clash_are_changed() -> None:
    model = model_of(
        "agraph (float[N] x) => (float[N] y) { a__1 = Neg (x)  a = Exp (a__1)  b = local.f (a)  y = Add (b, a__1) }",
        "f (v) => (r) { a = Abs (v)  a__1 = Neg (a)  r = Mul (a__1, v) }",
    )
    assert operators(check(model)) == ["Neg", "Exp", "Abs", "Neg", "Mul", "Add"]


def test_attributes_are_passed_given_or_not() -> None:
    model = model_of(
        """agraph (float[N] x) => (float[N] y) {
            a = local.f <slope = 2.0> (x)  b = local.f (a)  c = local.g <other = 5.0> (b)  d = local.g (c)
            y = local.h (d)
        }""",
        "f <slope: float = 3.0> (v) => (r) { n = Neg (v)  r = LeakyRelu <alpha: float = @slope> (n) }",
        "g <other: float = 4.0> (v) => (r) { r = local.f <slope: float = @other> (v) }",
        "h <alpha> (v) => (r) { n = Neg (v)  r = LeakyRelu <alpha: float = @alpha> (n) }",
    )
    outcome = check(model)
    slopes = [node.attributes["alpha"].f if node.attributes else None for node in outcome.model.graph.nodes]
    assert [slope for slope in slopes if slope is not None] == [2.0, 3.0, 5.0, 4.0]


def test_inputs_and_outputs_may_be_left_out() -> None:
    model = model_of(
        "agraph (float[N] x, float h) => (float[N] y, float[N] z) { y, u = local.f (x)  , z = local.f (x, , h) }",
        "f (v, low, high) => (r, s) { r = Clip (v, low, high)  s = Neg (r) }",
    )
    assert operators(check(model, {**X, "h": np.array(1, np.float32)})) == ["Clip", "Clip", "Neg"]


def test_what_gives_back_an_input_that_is_left_out_goes() -> None:
    """No runtime loads such an Identity; functions have it for the sake of calls that give the input."""
    model = model_of(
        "g (float[N] x, bool c) => (float[N] y, float[N] z) { y = local.f (x, c) z = local.f (x, c, x) }",
        """f (a, c, low) => (b) {
            m = Identity (low)
            n = Identity (m)
            d = Clip (a, n)
            b = If (c) < then_branch = t () => (p) { o = Identity (n) p = Clip (d, o) },
                         else_branch = e () => (q) { q = Neg (d) } >
        }""",
    )
    outcome = InlineFunctions().run(model)
    nodes = [node.op_type for node in all_nodes(outcome.model.scopes)]
    assert nodes.count("Identity") == 3  # those of the call that gives the input
    low = {"x": np.array(1.0, np.float32), "c": np.array(True)}
    scalar = Model.from_proto(outcome.model.proto)
    for info in (*scalar.proto.graph.input[:1], *scalar.proto.graph.output):
        info.type.tensor_type.shape.ClearField("dim")
    assert [array.tolist() for array in run(scalar, low)] == [1.0, 1.0]


def test_an_output_may_be_an_input() -> None:
    model = model_of(
        "agraph (float[N] x) => (float[N] a, float[N] b) { a, b = local.f (x) }",
        "f (v) => (v, r) { v_0 = Neg (v)  r = Abs (v_0) }",
    )
    outcome = InlineFunctions().run(model)
    assert operators(outcome) == ["Neg", "Abs", "Identity"]
    for one, two in zip(run(outcome.model, X), (X["x"], np.abs(X["x"])), strict=True):  # it does not load the original
        np.testing.assert_array_equal(one, two)


def test_operator_sets_that_only_a_function_has_are_imported() -> None:
    proto = model_of(ONE_CALL, "f (v) => (r) { r = com.microsoft.Gelu (v) }").proto
    proto.functions[0].opset_import.append(helper.make_opsetid("com.microsoft", 1))
    outcome = check(Model.from_proto(proto))
    imports = {entry.domain: entry.version for entry in outcome.model.proto.opset_import}
    assert imports == {"": 18, "com.microsoft": 1}


@pytest.mark.skipif(runtime_version() < (1, 31), reason="onnxruntime 1.23 takes overloads of a function for one")
def test_overloads_are_told_apart() -> None:
    proto = model_of("agraph (float[N] x) => (float[N] y) { a = local.f (x)  y = local.f (a) }").proto
    for number, op in enumerate(("Abs", "Neg")):
        made = helper.make_function(
            "local", "f", ["v"], ["r"], [helper.make_node(op, ["v"], ["r"])], [helper.make_opsetid("", 18)]
        )
        made.overload = proto.graph.node[number].overload = str(number)
        proto.functions.append(made)
    assert operators(check(Model.from_proto(proto))) == ["Abs", "Neg"]


def test_nodes_are_named_after_their_calls_and_have_their_metadata() -> None:
    model = model_of(
        "agraph (float[N] x) => (float[N] y) { [layer] a = local.g (x)  y = local.f (a) }",
        "f (v) => (r) { [square] a = Mul (v, v)  r = Neg (a) }",
        "g (v) => (r) { [inner] u = local.f (v)  r = Exp (u) }",
    )
    for node, key, value in (
        (model.proto.graph.node[0], "scope", "model.layer"),
        (model.proto.graph.node[0], "kind", "outer"),
        (model.proto.functions[0].node[0], "kind", "own"),
    ):
        entry = node.metadata_props.add()
        entry.key, entry.value = key, value
    model.proto.functions[0].node[0].doc_string = "the square"
    nodes = check(Model.from_proto(model.proto)).model.proto.graph.node
    assert [node.name for node in nodes] == [
        "layer/inner/square", "layer/inner/Neg#1", "layer/Exp#1", "square__3", "",
    ]  # fmt: skip
    assert [{entry.key: entry.value for entry in node.metadata_props} for node in nodes[:3]] == [
        {"kind": "own", "scope": "model.layer"},
        {"scope": "model.layer", "kind": "outer"},
        {"scope": "model.layer", "kind": "outer"},
    ]
    assert nodes[0].doc_string == "the square"


def test_names_of_nodes_stay_unique() -> None:
    """Or onnxruntime does not load the model."""
    model = model_of(
        "agraph (float[N] x) => (float[N] y) { [call] a = local.f (x)  [other] y = Exp (a) }",
        "f (v) => (r) { [square] a = Mul (v, v)  r = Neg (a) }",
    )
    model.proto.graph.node[1].name = "call/square"
    names = [node.name for node in check(Model.from_proto(model.proto)).model.proto.graph.node]
    assert names == ["square__1", "call/Neg#1", "call/square"]


def test_what_is_around_the_calls_stays() -> None:
    proto = model_of(ONE_CALL.replace("[call]", "z = Neg (x)"), "f (v) => (r) { r = Abs (v) }").proto
    proto.doc_string, proto.graph.doc_string, proto.producer_name = "model", "graph", "exporter"
    for holder in (proto, proto.graph):
        entry = holder.metadata_props.add()
        entry.key, entry.value = "key", "value"
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N"]))
    result = check(Model.from_proto(proto)).model.proto
    assert (result.doc_string, result.graph.doc_string, result.producer_name) == ("model", "graph", "exporter")
    assert result.metadata_props == proto.metadata_props
    assert result.graph.metadata_props == proto.graph.metadata_props
    assert result.graph.node[0] == proto.graph.node[0]


def test_names_of_dims_in_a_function_are_not_those_of_the_graph() -> None:
    proto = model_of(ONE_CALL, "f (v) => (r) { a = Concat <axis = 0> (v, v)  r = Neg (a) }").proto
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "M"
    proto.functions[0].value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N"]))
    (info,) = check(Model.from_proto(proto)).model.proto.graph.value_info
    assert (info.name, info.type.tensor_type.elem_type) == ("a__1", TensorProto.FLOAT)
    assert not info.type.tensor_type.shape.dim[0].dim_param


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    weight = np.arange(3000, dtype=np.float32)
    proto = model_of(
        "agraph (float[3000] x) => (float[3000] y) { a = Add (x, w)  y = local.f (a) }", "f (v) => (r) { r = Neg (v) }"
    ).proto
    constant = helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(weight * 2))
    proto.functions[0].node.insert(0, constant)
    proto.functions[0].node[1].CopyFrom(helper.make_node("Mul", ["v", "k"], ["r"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    path.write_bytes(proto.SerializeToString())
    model = load(path)
    outcome = InlineFunctions().run(model)
    assert operators(outcome) == ["Add", "Constant", "Mul"]
    assert outcome.model.proto.ByteSize() < 2000
    save_models({out: outcome.model}, weights="inline")
    feed = {"x": np.ones(3000, np.float32)}
    for one, two in zip(run(Model.from_proto(proto), feed), run(load(out, threshold=10**9), feed), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_model_without_functions_is_given_back() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert InlineFunctions().run(model).model is model


def declined(model: Model) -> list[str]:
    outcome = InlineFunctions().run(model)
    assert outcome.model is model
    return [str(one) for one in outcome.declined]


def test_a_function_of_another_opset_stays() -> None:
    proto = model_of(ONE_CALL, "f (v) => (r) { r = Neg (v) }").proto
    proto.functions[0].opset_import[0].version = 17
    assert declined(Model.from_proto(proto)) == ["function f: it needs version 17 of the operators, the model has 18"]


def test_what_calls_a_function_that_stays_is_inlined() -> None:
    model = model_of(ONE_CALL, "f (v) => (r) { a = Abs (v)  r = local.g (a) }", "g (v) => (r) { r = Neg (v) }")
    model.proto.functions[1].opset_import[0].version = 17
    outcome = InlineFunctions().run(model)
    assert [node.operator for node in outcome.model.graph.nodes] == ["Abs", "local.g"]
    assert [str(one) for one in outcome.declined] == [
        "function g: it needs version 17 of the operators, the model has 18"
    ]
    assert [(f.domain, f.name) for f in outcome.model.proto.functions] == [("local", "g")]
    assert [entry.domain for entry in outcome.model.proto.opset_import] == ["", "local"]


def test_what_a_function_that_stays_calls_stays_too() -> None:
    text = """agraph (float[N] x) => (float[N] y) {{ a = local.f (x) y = local.{} (a) }}
    {older} f (v) => (r) {{ r = local.g (v) }}
    {domain} g (v) => (r) {{ r = local.h (v) }}
    {domain} h (v) => (r) {{ r = Neg (v) }}"""
    older = DOMAIN.replace(': 18, "l', ': 17, "l')
    for last, changes in (("g", ("1 call of function 'g' inlined",)), ("f", ())):
        model = Model.from_proto(parser.parse_model(HEADER + text.format(last, older=older, domain=DOMAIN)))
        outcome = check(model)
        assert outcome.changes == changes
        assert [str(each) for each in outcome.declined] == [
            "function f: it needs version 17 of the operators, the model has 18"
        ]
        assert [each.name for each in outcome.model.proto.functions] == ["f", "g", "h"]
        again = InlineFunctions().run(outcome.model)
        assert again.model is outcome.model
        assert not again.changes


def test_a_function_that_calls_itself_stays() -> None:
    model = model_of(ONE_CALL, "f (v) => (r) { r = local.g (v) }", "g (v) => (r) { r = local.f (v) }")
    (reason,) = declined(model)
    assert reason in ("functions: function 'f' calls itself", "functions: function 'g' calls itself")


def test_functions_of_millions_of_nodes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [f"f{i} (v) => (r) {{ a = local.f{i + 1} (v)  r = local.f{i + 1} (a) }}" for i in range(40)]
    call = ONE_CALL.replace("local.f", "local.f0")
    assert declined(model_of(call, *bodies, "f40 (v) => (r) { r = Neg (v) }")) == [
        "functions: their nodes would be more than 1,000,000"
    ]
    monkeypatch.setattr(inline_functions, "MAX_NODES", 2)
    twice = "agraph (float[N] x) => (float[N] y) { a = local.f (x) y = local.f (a) }"
    assert declined(model_of(twice, "f (v) => (r) { a = Neg (v)  r = Neg (a) }"))
    assert InlineFunctions().run(model_of(ONE_CALL, "f (v) => (r) { a = Neg (v)  r = Neg (a) }")).changes
    monkeypatch.setattr(inline_functions, "MAX_NODES", 1)
    assert declined(model_of(ONE_CALL, "f (v) => (r) { a = Neg (v)  r = Neg (a) }"))


def test_an_attribute_that_may_be_missing_where_there_is_a_default_stays() -> None:
    model = model_of(
        ONE_CALL,
        "f <slope> (v) => (r) { r = local.g <by: float = @slope> (v) }",
        "g <by: float = 3.0> (v) => (r) { r = LeakyRelu <alpha: float = @by> (v) }",
    )
    assert declined(model) == ["functions: 'f' may have no 'slope', and 'g' has a default"]


def test_a_call_that_does_not_fit_is_an_error() -> None:
    model = model_of(ONE_CALL.replace("(x) }", "(x, x) }"), "f (v) => (r) { r = Neg (v) }")
    with pytest.raises(ModelError, match=r"its functions cannot be inlined: .*actual"):
        InlineFunctions().run(model)


def test_two_functions_of_one_name_are_an_error() -> None:
    model = model_of(ONE_CALL, "f (v) => (r) { r = Neg (v) }", "f (v) => (r) { r = Abs (v) }")
    with pytest.raises(ModelError, match="its functions cannot be inlined"):
        InlineFunctions().run(model)
