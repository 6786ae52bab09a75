"""Typed access to attributes, and the tensor of every form of Constant."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from onnx import AttributeProto, SparseTensorProto, TensorProto, helper

from graphkit.graph.declared_types import TensorType, declared_type
from graphkit.graph.view import Node, Scope, Value, attribute_value, build_scopes
from graphkit.model import Model
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
NODE = 'y = custom.Op <axis = -2, alpha = 0.5, mode = "linear", perm = [1, 0], fill = int64[1] {7}> ()'


def node(text: str = NODE) -> Node:
    return main(f"g () => (y) {{ {text} }}").nodes[0]


def main(text: str) -> Scope:
    return build_scopes(onnx.parser.parse_model(f"{HEADER} {text}"))[0]


def constant(form: str) -> Value:
    value = node(f"y = Constant <{form}> ()").outputs[0]
    assert value is not None
    return value


def test_an_attribute_is_of_the_type_of_its_default() -> None:
    one = node()
    assert (one.attr("axis", 0), one.attr("alpha", 1.0), one.attr("mode", "")) == (-2, 0.5, "linear")
    assert one.attr("perm", ()) == (1, 0)
    fill = one.attr("fill", TensorProto)
    assert fill is not None
    assert list(fill.int64_data) == [7]


def test_an_attribute_that_is_not_given_is_its_default_or_unknown() -> None:
    one = node()
    assert (one.attr("a", 3), one.attr("b", 0.5), one.attr("c", "x"), one.attr("d", (4,))) == (3, 0.5, "x", (4,))
    assert (one.attr("a", int), one.attr("b", float), one.attr("c", str), one.attr("d", tuple)) == (None,) * 4
    assert one.attr("e", SparseTensorProto) is None


@pytest.mark.parametrize("default", [1, 1.0, "", (1,), int, float, str, tuple, TensorProto])
def test_an_attribute_of_another_kind_is_unknown(default: int) -> None:
    assert node("y = custom.Op <axis = [1.5]> ()").attr("axis", default) is None


def test_an_attribute_that_the_call_of_a_function_gives_is_unknown() -> None:
    model = onnx.parser.parse_model(f"""{HEADER}
        g (float[N, M] x) => (y) {{ y = local.F <order = [1, 0]> (x) }}
        <domain: "local", opset_import: ["" : 17]>
        F <order> (x) => (y) {{ a = Transpose <perm: ints = @order> (x) c = Constant <value_ints: ints = @order> ()
                               y = Reshape (a, c) }}""")
    _, function = build_scopes(model)
    transpose, ordered = function.nodes[:2]
    assert (transpose.attr("perm", ()), transpose.attr("perm", tuple)) == (None, None)
    assert (ordered.constant, ordered.outputs[0].is_constant if ordered.outputs[0] else None) == (None, True)


def test_a_model_of_ir_version_1_does_not_write_kinds_down() -> None:
    attribute = AttributeProto(name="axis", i=2)
    found = attribute_value(attribute, 0), attribute_value(attribute, 0.0), attribute_value(attribute, ())
    assert found == (2, None, None)


def test_text_that_is_not_utf8_is_read() -> None:
    assert attribute_value(AttributeProto(name="mode", type=AttributeProto.STRING, s=b"a\xff"), "") == "a\ufffd"


@pytest.mark.parametrize(
    ("form", "array"),
    [
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
        ("value_int = 3", np.array(3)),
        ("value_ints = [1, 2]", np.array([1, 2])),
        ("value_float = 0.1", np.array(0.1, np.float32)),
        ("value_floats = [0.1, 2.5]", np.array([0.1, 2.5], np.float32)),
        ('value_string = "a"', np.array("a", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
    ],
)
def test_every_dense_form_of_a_constant_has_its_tensor(form: str, array: np.ndarray) -> None:
    value = constant(form)
    assert value.is_constant
    assert value.constant is not None
    found = onnx.numpy_helper.to_array(value.constant)
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert declared_type(value) == TensorType(value.constant.data_type, array.shape)
    assert value.constant is value.constant


def test_an_empty_list_is_a_tensor_without_elements() -> None:
    attribute = AttributeProto(name="value_ints", type=AttributeProto.INTS)
    proto = onnx.NodeProto(op_type="Constant", output=["y"], attribute=[attribute])
    tensor = build_scopes(helper.make_model(helper.make_graph([proto], "g", [], [])))[0].nodes[0].constant
    assert tensor is not None
    assert (tensor.data_type, list(tensor.dims)) == (TensorProto.INT64, [0])


def test_a_sparse_constant_has_a_type_and_no_tensor() -> None:
    values = helper.make_tensor("", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [0])
    proto = helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(values, indices, [1 << 40]))
    value = build_scopes(helper.make_model(helper.make_graph([proto], "g", [], [])))[0].nodes[0].outputs[0]
    assert value is not None
    assert (value.is_constant, value.constant) == (True, None)
    assert declared_type(value) == TensorType(TensorProto.FLOAT, (1 << 40,))


@pytest.mark.parametrize("form", ["value_int = 1, value_float = 1.0", "value_int = float[1] {1}", "value = 3", "a = 1"])
def test_a_constant_without_one_value_of_its_kind_has_no_tensor(form: str) -> None:
    value = constant(form)
    assert (value.is_constant, value.constant, declared_type(value)) == (True, None, None)


def test_another_operator_has_no_constant() -> None:
    assert node("y = custom.Constant <value_int = 1> ()").constant is None


@pytest.mark.parametrize("form", ["value_float = 1.0", "value = float {1}", "value_floats = [1.0]"])
def test_a_pass_reads_a_constant_of_any_form(form: str) -> None:
    text = f"g (float[N] x) => (float[N] y) {{ a = Neg (x) one = Constant <{form}> () b = Mul (a, one) y = Abs (b) }}"
    outcome = EliminateIdentity().run(Model.from_proto(onnx.parser.parse_model(f"{HEADER} {text}")))
    assert [one.op_type for one in outcome.model.graph.nodes] == ["Neg", "Abs"]
