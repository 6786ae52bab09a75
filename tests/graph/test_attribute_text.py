from __future__ import annotations

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from graphkit.graph.declared_types import attribute_text

BODY = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "body", [], [])
SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.array([1.0], np.float32), "v"), numpy_helper.from_array(np.array([2])), [4]
)
AFAR = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1e-5, "1e-05"),
        (0.1, "0.1"),
        (123456789e12, "1.2345679e+20"),  # as float32 has it
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        ("valid", "'valid'"),
        (b"\xff\n", r"'\\xff\n'"),
        ("x" * 70, f"'{'x' * 60}...'"),
        ([0, 2, 1], "[0, 2, 1]"),
        ([0.1, 1e-12], "[0.1, 1e-12]"),
        (["a", "b"], "['a', 'b']"),
        ([7] * 20, "[7, 7, 7, 7, 7, 7, 7, 7, ... (20 in all)]"),
        (numpy_helper.from_array(np.array([1, -1])), "int64[2] = [1, -1]"),
        (numpy_helper.from_array(np.array(0.1, np.float32)), "float32[] = 0.1"),
        (numpy_helper.from_array(np.zeros((2, 0))), "float64[2, 0] = []"),
        (numpy_helper.from_array(np.zeros((3, 4), np.float16)), "float16[3, 4]"),
        (AFAR, "float32[2]"),
        (SPARSE, "sparse float32[4]"),
        (BODY, "graph of 1 node"),
        ([BODY, BODY], "[graph of 1 node, graph of 1 node]"),
        (helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "N"]), "float32 [1, N]"),
    ],
    ids=str,
)
def test_each_kind(value: object, text: str) -> None:
    assert attribute_text(helper.make_attribute("a", value)) == text


def test_the_attribute_of_a_call() -> None:
    assert attribute_text(AttributeProto(name="a", ref_attr_name="alpha")) == "$alpha"


def test_an_attribute_without_a_kind() -> None:
    assert attribute_text(AttributeProto(name="a")) == "?"
