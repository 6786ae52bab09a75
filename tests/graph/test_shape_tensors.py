from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.parser
import pytest

from graphkit.graph.dataflow import ShapeTensors
from graphkit.graph.view import Value, all_scopes
from graphkit.model import Model

CHAIN = """
g (float[N,4] x) => (float[M] y) <int64 first = {0}, int64[1] front = {0}, int64[1] rest = {-1}> {
    shape = Shape(x)
    size = Gather(shape, first)
    row = Unsqueeze(size, front)
    target = Concat <axis = 0> (row, rest)
    y = Reshape(x, target)
}
"""
SCALING = """
g (float[N,4] x) => (float[N,4] y) <int64 last = {1}> {
    shape = Shape(x)
    size = Gather(shape, last)
    real = Cast <to = 1> (size)
    root = Sqrt(real)
    y = Div(x, root)
}
"""
POSITIONS = """
g (int64[B,S] ids, float[64,8] table) => (float[S,8] y) <int64 zero = {0}, int64 one = {1}> {
    shape = Shape(ids)
    length = Gather(shape, one)
    positions = Range(zero, length, one)
    y = Gather(table, positions)
}
"""
EXPAND = """
g (float[1,4] x, float[A,B] like) => (float[A,B] y) <int64[2] given = {-1, 4}, int64[2] minus = {-1, -1}> {
    shape = Shape(like)
    length = Shape(shape)
    ones = ConstantOfShape <value = int64[1] {1}> (length)
    unknown = Equal(given, minus)
    target = Where(unknown, ones, given)
    y = Expand(x, target)
}
"""
BRANCHES = """
g (float[N,4] x, bool flag) => (float[M] y) <int64 zero = {0}, int64[1] rest = {-1}> {
    shape = Shape(x)
    size = Gather(shape, zero)
    empty = Equal(size, zero)
    target = If (CONDITION) <
        then_branch = t () => (int64[1] one) { one = Identity(rest) },
        else_branch = e () => (int64[2] two) { two = Shape(x) }
    >
    y = Reshape(x, target)
}
"""


def shapes(graph: str) -> tuple[Model, ShapeTensors]:
    header = '<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>'
    model = Model.from_proto(onnx.parser.parse_model(f"{header} {graph}"))
    return model, model.shape_tensors


def names(values: Iterable[Value]) -> set[str]:
    return {value.name for value in values}


def shape_names(model: Model) -> set[str]:
    values = (value for scope in all_scopes(model.scopes) for value in scope.values.values())
    return names(value for value in values if model.shape_tensors.is_shape(value))


def test_constants_are_static() -> None:
    assert names(shapes(CHAIN)[1].static) == {"first", "front", "rest"}


def test_a_chain_from_shape_is_derived() -> None:
    assert names(shapes(CHAIN)[1].derived) == {"first", "front", "rest", "shape", "size", "row", "target"}


def test_what_leads_to_a_shape_input_feeds() -> None:
    assert names(shapes(CHAIN)[1].feeding) == {"first", "front", "rest", "shape", "size", "row", "target"}


def test_a_chain_from_shape_to_reshape_is_shape_tensors() -> None:
    assert shape_names(shapes(CHAIN)[0]) == {"first", "front", "rest", "shape", "size", "row", "target"}


def test_a_chain_rests_on_the_tensor_that_it_measures() -> None:
    model, found = shapes(CHAIN)
    assert names(found.sources(model.graph.values["target"])) == {"x"}


def test_a_shape_of_several_parts_rests_on_each_tensor_that_they_measure() -> None:
    model, found = shapes(
        """g (float[A] a, float[B] b, float[C] c) => (y) {
            p = Shape(a)  q = Shape(b)  r = Concat <axis = 0> (p, q)  s = Shape(c)
            target = Concat <axis = 0> (p, s, r, p)  y = Reshape(a, target)
        }"""
    )
    assert names(found.sources(model.graph.values["target"])) == {"a", "b", "c"}


def test_a_constant_rests_on_nothing() -> None:
    model, found = shapes(CHAIN)
    assert found.sources(model.graph.values["rest"]) == frozenset()


def test_data_rests_on_itself() -> None:
    model, found = shapes(CHAIN)
    assert names(found.sources(model.graph.values["y"])) == {"y"}


def test_the_nodes_of_a_chain_work_on_shapes() -> None:
    model, found = shapes(CHAIN)
    working = [node.op_type for node in model.graph.nodes if found.works_on_shapes(node)]
    assert working == ["Shape", "Gather", "Unsqueeze", "Concat"]


def test_size_measures_as_shape_does() -> None:
    model, found = shapes(
        """g (float[N,4] x) => (float[M] y) <int64[1] front = {0}> {
            count = Size(x)  target = Unsqueeze(count, front)  y = Reshape(x, target)
        }"""
    )
    assert found.is_shape(model.graph.values["count"])


def test_a_shape_that_scales_data_is_not_a_shape_tensor() -> None:
    assert shape_names(shapes(SCALING)[0]) == set()


def test_a_shape_that_scales_data_is_derived_all_the_same() -> None:
    assert {"shape", "size", "real", "root"} <= names(shapes(SCALING)[1].derived)


def test_positions_are_data_though_their_count_is_a_shape() -> None:
    assert shape_names(shapes(POSITIONS)[0]) == {"zero", "one", "shape", "length"}


def test_expand_rests_on_what_its_where_measures() -> None:
    model, found = shapes(EXPAND)
    assert names(found.sources(model.graph.values["target"])) == {"shape"}


def test_constant_of_shape_equal_and_where_make_a_shape() -> None:
    assert {"length", "ones", "unknown", "target"} <= shape_names(shapes(EXPAND)[0])


def test_the_shape_of_a_shape_does_not_make_it_a_shape() -> None:
    assert "shape" not in shape_names(shapes(EXPAND)[0])


def test_an_if_whose_branches_give_shapes_gives_a_shape() -> None:
    model, found = shapes(BRANCHES.replace("CONDITION", "empty"))
    assert found.is_shape(model.graph.values["target"])


def test_the_branches_of_such_an_if_compute_shapes() -> None:
    assert {"one", "two"} <= shape_names(shapes(BRANCHES.replace("CONDITION", "empty"))[0])


def test_an_if_rests_on_what_its_condition_and_branches_measure() -> None:
    model, found = shapes(BRANCHES.replace("CONDITION", "empty"))
    assert names(found.sources(model.graph.values["target"])) == {"x"}


def test_an_if_that_data_decides_gives_data() -> None:
    model, found = shapes(BRANCHES.replace("CONDITION", "flag"))
    assert model.graph.values["target"] not in found.derived


def test_a_constant_outside_a_body_is_static_in_it() -> None:
    model, found = shapes(BRANCHES.replace("CONDITION", "empty"))
    assert model.graph.nodes[3].bodies["then_branch"].values["one"] in found.static


def test_a_constant_in_a_body_is_static() -> None:
    _, found = shapes(
        """g (bool c, float[N] x) => (float[N] y) { y = If (c) <
            then_branch = t () => (float[1] a) <float[1] a = {1}> {},
            else_branch = e () => (float[1] b) { b = Constant <value = float[1] {2}> () }
        > }"""
    )
    assert names(found.static) == {"a", "b"}


def test_a_shape_that_a_body_reads_is_a_shape_outside() -> None:
    model, _ = shapes(
        """g (bool c, float[N] x) => (float[M] y) {
            shape = Shape(x)
            y = If (c) <
                then_branch = t () => (float[N] a) { a = Reshape(x, shape) },
                else_branch = e () => (float[N] b) { b = Relu(x) }
            >
        }"""
    )
    assert shape_names(model) == {"shape"}


def test_a_function_has_shape_tensors_of_its_own() -> None:
    model, _ = shapes(
        """g (float[N] x) => (float[N] y) { y = custom.f(x) }
        <domain: "custom", opset_import: ["" : 17]> f (a) => (b) { s = Shape(a)  b = Reshape(a, s) }"""
    )
    assert shape_names(model) == {"s"}


def test_nodes_without_inputs_are_static() -> None:
    model, found = shapes("g () => (float[1] y) { y = Constant <value = float[1] {1}> () }")
    assert model.graph.outputs[0] in found.static


@pytest.mark.parametrize(
    "node",
    [
        "RandomNormal <shape = [2]> ()",
        "RandomUniform <shape = [2]> ()",
        "RandomNormalLike(w)",
        "RandomUniformLike(w)",
        "Bernoulli(w)",
        "Multinomial(w)",
        "Dropout(w)",
    ],
)
def test_what_is_random_is_not_static(node: str) -> None:
    model, found = shapes(f"g () => (y) <float[1,2] w = {{0.5, 0.5}}> {{ y = {node} }}")
    assert model.graph.outputs[0] not in found.derived


def test_an_initializer_that_is_an_input_is_not_static() -> None:
    _, found = shapes("g (float[N] x, int64[1] s = {-1}) => (float[N] y) { y = Reshape(x, s) }")
    assert names(found.static) == set()


def test_a_shape_that_comes_in_as_an_input_is_data() -> None:
    model, found = shapes("g (float[N] x, int64[1] s) => (float[N] y) { y = Reshape(x, s) }")
    assert not found.is_shape(model.graph.values["s"])


def test_what_a_custom_operator_computes_is_data() -> None:
    model, found = shapes(
        """g (float[N] x) => (float[M] y) {
            shape = Shape(x)  target = custom.Thing(shape)  y = Reshape(x, target)
        }"""
    )
    assert model.graph.values["target"] not in found.derived


def test_what_a_loop_computes_is_data() -> None:
    model, found = shapes(
        """g (float[N] x, bool flag) => (float[M] y) {
            shape = Shape(x)
            target = Loop <
                body = b (int64 i, bool c, int64[1] old) => (bool go, int64[1] new) {
                    go = Identity(c)  new = Shape(x)
                }
            > ("", flag, shape)
            y = Reshape(x, target)
        }"""
    )
    assert model.graph.values["target"] not in found.derived


def test_a_value_used_before_it_is_computed_is_data() -> None:
    model, found = shapes("g (float[N] x) => (float[N] y) { y = Reshape(x, late)  late = Identity(s)  s = Shape(x) }")
    assert model.graph.values["late"] not in found.derived


def test_a_left_out_input_is_no_shape() -> None:
    assert not shapes(CHAIN)[1].is_shape(None)
