"""Operators of ai.onnx.ml: what is inferred of their outputs is what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import graphkit
from graphkit.shapes import infer

ROWS = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]], np.float32)
TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.7, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0], "nodes_hitrates": [1.0] * 3, "nodes_missing_value_tracks_true": [0] * 3,
}  # fmt: skip
TARGETS = {
    "target_treeids": [0] * 4,
    "target_nodeids": [1, 1, 2, 2],
    "target_ids": [0, 1, 0, 1],
    "target_weights": [1.0] * 4,
}
CLASSES = {"class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 2], "class_weights": [1.0, 1.0]}
VECTORS = {
    "kernel_type": "LINEAR",
    "kernel_params": [1.0, 0.0, 3.0],
    "coefficients": [1.0, -1.0],
    "support_vectors": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    "rho": [0.5],
}
LINEAR = {"coefficients": [1.0] * 6, "intercepts": [0.0] * 2}
NUMBERS = np.array([[1, 2], [2, 1]])
# The operator, its attributes, its first input, the number of outputs, and its other inputs
CASES = {
    "Scaler": ("Scaler", {"offset": [0.0] * 3, "scale": [2.0] * 3}, ROWS, 1, ()),
    "Normalizer": ("Normalizer", {"norm": "L2"}, ROWS, 1, ()),
    "Binarizer": ("Binarizer", {"threshold": 1.0}, ROWS, 1, ()),
    "Imputer": ("Imputer", {"imputed_value_floats": [0.0] * 3, "replaced_value_float": 1.0}, ROWS, 1, ()),
    "LinearRegressor": ("LinearRegressor", LINEAR | {"targets": 2}, ROWS, 1, ()),
    "SVMRegressor": ("SVMRegressor", VECTORS | {"n_supports": 2}, ROWS, 1, ()),
    "TreeEnsembleRegressor": ("TreeEnsembleRegressor", TREE | TARGETS | {"n_targets": 2}, ROWS, 1, ()),
    "TreeEnsembleClassifier": (
        "TreeEnsembleClassifier", TREE | CLASSES | {"classlabels_strings": ["a", "b", "c"]}, ROWS, 2, ()),
    "LinearClassifier": (
        "LinearClassifier",
        {"classlabels_ints": [0, 1, 2], "coefficients": [1.0] * 9, "intercepts": [0.0] * 3}, ROWS, 2, ()),
    "LinearClassifier of two": ("LinearClassifier", LINEAR | {"classlabels_ints": [0, 1]}, ROWS, 2, ()),
    "LabelEncoder": ("LabelEncoder", {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5]}, NUMBERS, 1, ()),
    "LabelEncoder to text": ("LabelEncoder", {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}, NUMBERS, 1, ()),
    "OneHotEncoder": ("OneHotEncoder", {"cats_int64s": [1, 2, 3], "zeros": 1}, NUMBERS, 1, ()),
    "ArrayFeatureExtractor": ("ArrayFeatureExtractor", {}, ROWS, 1, (np.array([0, 2]),)),
    "FeatureVectorizer": ("FeatureVectorizer", {"inputdimensions": [3, 3]}, ROWS, 1, (ROWS,)),
}  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "rows", "count", "others"), CASES.values(), ids=CASES)
def test_outputs_are_as_onnxruntime_gives_them(
    op: str, attributes: dict[str, object], rows: np.ndarray, count: int, others: tuple[np.ndarray, ...]
) -> None:
    feed = {f"x{index}": array for index, array in enumerate((rows, *others))}
    names = [f"y{index}" for index in range(count)]
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feed.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in feed.items()]
    node = helper.make_node(op, list(feed), names, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    outputs = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed)
    shapes = infer(graphkit.Model.from_proto(proto))
    for name, array in zip(names, outputs, strict=True):
        text = array.dtype.kind in "OU"
        dtype = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(array.dtype)
        assert (shapes[name].sizes(), shapes[name].dtype) == (array.shape, dtype)


def test_votes_of_support_vectors_are_not_guessed() -> None:
    attributes = VECTORS | {"vectors_per_class": [1, 1], "classlabels_ints": [0, 1]}
    node = helper.make_node("SVMClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name=name) for name in "yz"])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    shapes = infer(graphkit.Model.from_proto(helper.make_model(graph, opset_imports=opsets)))
    assert str(shapes["y"]) == "[N]"
    assert not shapes["z"].is_known


def test_maps_have_no_shape_that_could_be_unknown() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    element = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    y = helper.make_value_info("y", helper.make_sequence_type_proto(element))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    assert graphkit.unknown_shapes(graphkit.Model.from_proto(proto)).unknown == 0
