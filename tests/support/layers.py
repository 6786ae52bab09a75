"""Models of repeated layers, with their weights inside or in a file beside them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["layered"]


def layered(layers: int = 12, size: int = 160, nodes: int = 1) -> onnx.ModelProto:
    """Return a model whose layers have two matrices and a scale each; `nodes` more operators make its graph larger."""
    random = np.random.default_rng(0)
    made, weights, at = [], [], "x"
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for kind in ("up", "down"):
            weight = random.standard_normal((size, size), np.float32)
            weights.append(numpy_helper.from_array(weight, f"{name}.{kind}.weight"))
            made.append(helper.make_node("MatMul", [at, weights[-1].name], [f"{name}.{kind}"], name=f"/{name}/{kind}"))
            at = made[-1].output[0]
        weights.append(numpy_helper.from_array(random.standard_normal(size, np.float32), f"{name}.scale"))
        made.append(helper.make_node("Mul", [at, weights[-1].name], [f"{name}.out"], name=f"/{name}/scale"))
        at = made[-1].output[0]
    for number in range(nodes):
        made.append(helper.make_node("Relu", [at], [f"out.{number}"], name=f"/relu/{number}", doc_string="a" * 500))
        at = made[-1].output[0]
    shape = ["batch", size]
    graph = helper.make_graph(
        made,
        "layered",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
