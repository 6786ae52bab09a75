from __future__ import annotations

import onnx
import onnx.defs
import pytest
from onnx import helper

from graphkit.graph.operator_traits import BECAME_INPUTS, VALUE_INPUTS, has_attributes_only, value_inputs
from graphkit.graph.view import Node, build_scopes

# Where the specification writes a name in another way.
SPECIFIED = {("ConstantOfShape", "shape"): "input", ("TopK", "k"): "K"}
# What an input is called whose value decides a shape, an axis or a count.
TELLING = {"axes", "axis", "k", "pads", "repeats", "roi", "scales", "shape", "size", "sizes", "split"}
# Without Split of opset 1, the one version whose lengths were an input before 13: the table begins at 13.
HISTORY = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
TABLE = [
    pytest.param(schema, id=f"{schema.name}-{schema.since_version}")
    for schema in sorted(HISTORY, key=lambda schema: (schema.name, schema.since_version))
    if schema.name in VALUE_INPUTS
]


def node(op: str, opset: int, inputs: list[str], domain: str = "") -> Node:
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"], domain=domain)], "g", [], [])
    return build_scopes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))[0].nodes[0]


def specified(op: str) -> set[str]:
    names = {name for _, inputs in VALUE_INPUTS[op] for name in inputs.values()}
    return {SPECIFIED.get((op, name), name) for name in names}


@pytest.mark.parametrize("schema", TABLE)
def test_the_table_names_the_inputs_of_the_specification(schema: onnx.defs.OpSchema) -> None:
    names = [parameter.name for parameter in schema.inputs]
    found = value_inputs(node(schema.name, schema.since_version, names))
    expected = {index: name for index, name in enumerate(names) if name in specified(schema.name)}
    assert {index: SPECIFIED.get((schema.name, name), name) for index, name in found.items()} == expected


@pytest.mark.parametrize("op", VALUE_INPUTS)
def test_each_version_in_the_table_is_one_of_the_specification(op: str) -> None:
    versions = {schema.since_version for schema in HISTORY if schema.name == op}
    assert {since for since, _ in VALUE_INPUTS[op]} <= versions


@pytest.mark.parametrize("op", VALUE_INPUTS)
def test_versions_in_the_table_ascend(op: str) -> None:
    versions = [since for since, _ in VALUE_INPUTS[op]]
    assert versions == sorted(set(versions))


def test_no_operator_up_to_opset_25_with_a_telling_input_is_missing() -> None:
    telling = {
        schema.name
        for schema in HISTORY
        if schema.since_version <= 25 and TELLING.intersection(parameter.name for parameter in schema.inputs)
    }
    assert telling <= set(VALUE_INPUTS)


@pytest.mark.parametrize(
    ("op", "opset", "expected"),
    [
        ("Unsqueeze", 11, {}),
        ("Unsqueeze", 13, {1: "axes"}),
        ("Unsqueeze", 99, {1: "axes"}),
        ("ReduceSum", 12, {}),
        ("ReduceSum", 13, {1: "axes"}),
        ("ReduceMean", 17, {}),
        ("ReduceMean", 18, {1: "axes"}),
        ("Resize", 10, {1: "scales"}),
        ("Slice", 9, {}),
        ("Relu", 17, {}),
    ],
)
def test_an_input_counts_from_its_opset_on(op: str, opset: int, expected: dict[int, str]) -> None:
    assert value_inputs(node(op, opset, ["a", "b"])) == expected


def test_an_input_that_is_left_out_does_not_count() -> None:
    assert value_inputs(node("Resize", 13, ["x", "", "", "sizes"])) == {3: "sizes"}


def test_an_operator_of_another_domain_reads_nothing() -> None:
    assert value_inputs(node("Reshape", 17, ["x", "shape"], domain="custom")) == {}


@pytest.mark.parametrize("op", BECAME_INPUTS)
def test_attributes_became_inputs_at_the_version_that_the_specification_says(op: str) -> None:
    since, names = BECAME_INPUTS[op]
    before, after = onnx.defs.get_schema(op, since - 1), onnx.defs.get_schema(op, since)
    assert set(names) <= before.attributes.keys()
    assert not set(names) & after.attributes.keys()
    inputs = [parameter.name.lower().removeprefix("constant_") for parameter in after.inputs]
    assert tuple(inputs[1 : len(names) + 1]) == names
    assert [has_attributes_only(node(op, version, ["x"])) for version in (since - 1, since)] == [True, False]
