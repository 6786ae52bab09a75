"""Small models from ONNX text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from graphkit.model import Model

HEAD = '<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'


def model(text: str, head: str = HEAD, **constants: object) -> Model:
    """Return the model of a graph in ONNX text; keywords become initializers, floats as float32.

    The text knows no dims that are expressions: `past_plus_1` stands for `past + 1`.
    """
    proto = onnx.parser.parse_model(head + text)
    for dim in (dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        if dim.HasField("dim_param"):
            dim.dim_param = dim.dim_param.replace("_plus_", " + ")
    for name, value in constants.items():
        array = np.asarray(value)
        kind = np.float32 if array.dtype == np.float64 else array.dtype
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(kind), name))
    return Model.from_proto(proto)


CONV = "g (float[batch, channels, height, width] image) => (float[b, 4, h, w] y) { y = Conv (image, kernel) }"
KERNEL = np.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
DECODER = """
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask, float[batch, 2, past, 4] past_key_values.0.key)
  => (float[batch, sequence] logits, float[batch, 2, p, 4] present.0.key) {
    row = Gather (table, input_ids)
    split = Reshape (row, heads)
    key = Transpose <perm = [0, 2, 1, 3]> (split)
    present.0.key = Concat <axis = 2> (past_key_values.0.key, key)
    scores = ReduceSum <keepdims = 0> (present.0.key, axes)
    mask = Cast <to = 1> (attention_mask)
    masked = Mul (scores, mask)
    total_score = ReduceSum (masked, last)
    logits = Add (total_score, zeros_like)
    zeros = Sub (input_ids, input_ids)
    zeros_like = Cast <to = 1> (zeros)
}
"""
