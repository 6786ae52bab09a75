"""The table of operators names all that the schemas of onnx and onnxruntime have; another test runs them."""

from __future__ import annotations

import re

import onnx
import onnx.defs
import pytest
from onnx import helper
from onnx.defs import OpSchema
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from graphkit.graph import operator_traits
from graphkit.graph.operator_traits import (
    BROADCASTING,
    MOVING,
    PRESERVING,
    QUANTIZED,
    RANDOM,
    REDUCTIONS,
    RESHAPING,
    UNIDIRECTIONAL,
    VALUE_INPUTS,
    broadcasts_inputs,
    is_elementwise,
    join_tables,
)
from graphkit.graph.view import Node, build_scopes

SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated}
OF_ONNX = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
OF_ONNXRUNTIME = {(schema.domain, schema.name) for schema in get_all_operator_schema()}
NAMES = OF_ONNX | {f"{domain}.{name}" if domain else name for domain, name in OF_ONNXRUNTIME}
TRAITS = {
    name: trait
    for name, trait in vars(operator_traits).items()
    if name.isupper() and name not in ("BECAME_INPUTS", "VALUE_INPUTS") and isinstance(trait, (frozenset, dict))
}
# Operators of the latest opset with none of the traits: a new one is sorted in here or in the table.
WITHOUT = set(
    """
    AffineGrid ArgMax ArgMin BatchNormalization BlackmanWindow CausalConvWithState CenterCropPad Col2Im
    ConcatFromSequence Constant CumProd CumSum DFT DeformConv Det EyeLike FlexAttention GlobalAveragePool
    GlobalLpPool GlobalMaxPool GridSample GroupNormalization HammingWindow HannWindow If ImageDecoder
    InstanceNormalization LRN LinearAttention Loop LpNormalization LpPool MaxRoiPool MaxUnpool
    MeanVarianceNormalization MelWeightMatrix NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot Optional
    OptionalGetElement OptionalHasElement RoiAlign STFT Scan SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringNormalizer
    StringSplit SwiGLU TfIdfVectorizer TopK Unique
    """.split()  # noqa: SIM905
)


# What is known of the bits of results sorts no operator in.
BITS = {"BLIND", "BLIND_IN_SECOND", "FAITHFUL", "FAITHFUL_IN_ALL", "FAITHFUL_IN_FIRST", "PLACED", "PLACED_IN_DOUBLE"}
BITS |= {"IN_ORDER", "EXTREMES", "SWAPPING", "MEANINGS", "KERNELS_OF_HALVES", "KERNELS_OF_INT32", "BODIES_OF_HALVES"}


def sorted_in() -> set[str]:
    tables = [table for name, table in TRAITS.items() if name not in ("EXTRA", "QUANTIZED", *BITS)]
    return set().union(*tables, *QUANTIZED.values())


# Names


@pytest.mark.parametrize("trait", sorted(TRAITS.keys() - {"QUANTIZED"}))
def test_each_operator_of_the_table_exists(trait: str) -> None:
    assert set(TRAITS[trait]) <= NAMES


def test_each_operator_of_the_latest_opset_is_sorted_in() -> None:
    assert WITHOUT & sorted_in() == set()
    assert SCHEMAS.keys() - sorted_in() == WITHOUT & SCHEMAS.keys()


def test_each_operator_that_quantizes_has_a_style() -> None:
    quantizing = re.compile(r"[Qq]uant|^Q[A-Z]|Integer|NBits|Bnb4|FpQ4")
    found = {name for domain, name in OF_ONNXRUNTIME if domain in ("", "com.microsoft") and quantizing.search(name)}
    newer = {"MatMulNBitsQLoRA"}  # since onnxruntime 1.32
    assert found | newer == set().union(*QUANTIZED.values())


def test_each_operator_that_the_specification_calls_random_is_in_the_table() -> None:
    said = {
        name for name, schema in SCHEMAS.items() if schema.node_determinism == OpSchema.NodeDeterminism.NonDeterministic
    }
    with_bodies = {
        name for name in said if any(a.type == OpSchema.AttrType.GRAPH for a in SCHEMAS[name].attributes.values())
    }
    assert said - with_bodies - {"AffineGrid"} == {
        name for name in RANDOM if "." not in name
    }  # AffineGrid is a mistake
    dropouts = {
        f"{domain}.{name}" for domain, name in OF_ONNXRUNTIME if domain == "com.microsoft" and "Dropout" in name
    }
    assert dropouts <= RANDOM


def test_the_reductions_are_those_of_the_specification() -> None:
    assert {name for name in OF_ONNX if name.startswith("Reduce")} == REDUCTIONS


def test_what_only_moves_elements_reads_no_more_than_its_first_input() -> None:
    assert RESHAPING <= PRESERVING <= MOVING
    for name in MOVING - {"Concat"}:
        others = SCHEMAS[name].inputs[1:]
        known = {index for _, inputs in VALUE_INPUTS.get(name, ()) for index in inputs}
        indices = {"indices", "condition", "sequence_lens"}
        assert all(index in known or other.name in indices for index, other in enumerate(others, 1)), name


# Versions


@pytest.mark.parametrize("op", sorted(BROADCASTING.keys() | UNIDIRECTIONAL.keys()))
def test_an_operator_broadcasts_from_the_version_on_whose_text_says_so(op: str) -> None:
    history = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.name == op and not schema.domain]
    said = [
        schema.since_version
        for schema in history
        if any(
            "irectional" in text or "broadcast" in text
            for text in (schema.doc, *(i.description for i in schema.inputs))
        )
        and "broadcast" not in schema.attributes  # one-sided, along an axis
    ]
    assert (BROADCASTING.get(op) or UNIDIRECTIONAL[op]) == min(said or [schema.since_version for schema in history])


def test_an_operator_counts_as_elementwise_from_its_version_on() -> None:
    def node(op: str, opset: int) -> Node:
        graph = helper.make_graph([helper.make_node(op, ["a", "b"], ["y"])], "g", [], [])
        return build_scopes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))[0].nodes[0]

    assert [broadcasts_inputs(node("Add", opset)) for opset in (6, 7)] == [False, True]
    assert [broadcasts_inputs(node("Max", opset)) for opset in (7, 8)] == [False, True]
    assert [is_elementwise(node("PRelu", opset)) for opset in (6, 7)] == [False, True]
    assert is_elementwise(node("Clip", 6))
    assert not broadcasts_inputs(node("PRelu", 22))


# Tables


def test_tables_that_name_an_operator_twice() -> None:
    assert join_tables({"Relu": 1}, {"Add": 2}) == {"Relu": 1, "Add": 2}
    with pytest.raises(ValueError, match="Add, Relu: registered twice"):
        join_tables({"Relu": 1, "Add": 2}, {"Mul": 3}, {"Relu": 1, "Add": 1})
