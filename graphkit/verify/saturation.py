"""Products of integers that onnxruntime adds up in 16 bits, as it does on x86 processors without VNNI instructions.

Such a processor multiplies data in uint8 with weights in int8 and adds the products of two neighbours in 16 bits. The
sum is cut off at 32,767, which two weights beyond 64 can reach: then the results of onnxruntime are not those that ONNX
defines, and another processor gives others. `quantize_dynamic(reduce_range=True)` keeps weights to 7 bits for that.
"""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto, parser

from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession

__all__ = ["adds_in_16_bits", "saturation"]

MAX_WEIGHT = 64  # two products of 255 and such a weight fit into 16 bits
WEIGHT_INPUT = {"MatMulInteger": 1, "ConvInteger": 1, "DynamicQuantizeMatMul": 1, "QLinearMatMul": 3, "QLinearConv": 3}
PRODUCT = """
<ir_version: 8, opset_import: ["" : 13]>
product (uint8[1, 16] data, int8[16, 16] weight) => (int32[1, 16] sum) { sum = MatMulInteger (data, weight) }
"""


@functools.cache
def adds_in_16_bits() -> bool:
    """Return whether onnxruntime cuts sums of products of uint8 and int8 off on this processor."""
    data, weight = np.full((1, 16), 255, np.uint8), np.full((16, 16), 127, np.int8)
    with IsolatedSession(Model.from_proto(parser.parse_model(PRODUCT))) as session:
        total = session.run({"data": data, "weight": weight})["sum"]
    return int(total[0, 0]) != 16 * 255 * 127


def saturation(model: Model) -> str:
    """Return the caution, a sentence, where onnxruntime may cut sums of this model off; "" where it does not."""
    if not adds_in_16_bits():
        return ""
    node = next((node for node in all_nodes(model.scopes) if _is_beyond(node, model)), None)
    if node is None:
        return ""
    return (
        f"onnxruntime adds products of 8 bits in 16 on this processor, and cuts larger sums off: '{node.label}' has "
        f"weights beyond {MAX_WEIGHT}, so that the original's own results may be wrong here. Quantise it with "
        "reduce_range=True, or prove it on a processor with VNNI."
    )


def _is_beyond(node: Node, model: Model) -> bool:
    """Return whether two products of a node can have a sum that 16 bits do not hold."""
    at = WEIGHT_INPUT.get(node.op_type)
    weight = node.input(at) if at is not None else None
    tensor = weight.constant if weight is not None else None
    if tensor is None or tensor.data_type != TensorProto.INT8:
        return False
    return int(np.abs(model.array(tensor).astype(np.int16)).max(initial=0)) > MAX_WEIGHT
