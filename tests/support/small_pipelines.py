"""Decoders and encoders of one layer as ONNX text, whose masks are spelled in many ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

VOCABULARY, WIDTH, POSITIONS = 11, 8, 16

DECODER = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (
    int64[batch, seq] input_ids, int64[batch, total] attention_mask, int64[batch, seq] position_ids,
    float[batch, 2, past, 4] "past_key_values.0.key", float[batch, 2, past, 4] "past_key_values.0.value"
) => (
    float[batch, seq, 11] logits,
    float[batch, 2, total, 4] "present.0.key", float[batch, 2, total, 4] "present.0.value"
) <
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[4] heads = {0, 0, 2, 4},
    int64[3] joined = {0, 0, 8}, float lowest = {-3.4e38}, float much = {1e5}, float nothing = {0},
    float unit = {1}, float root = {2}, int64 first = {0}, int64 step = {1}, int64 three = {3}, int64[1] last = {-1},
    int64[1] three_axis = {3}
> {
    tokens = Gather (token_table, input_ids)
    positions = Gather (position_table, position_ids)
    x = Add (tokens, positions)
    xq = MatMul (x, wq)
    xk = MatMul (x, wk)
    xv = MatMul (x, wv)
    rq = Reshape (xq, heads)
    rk = Reshape (xk, heads)
    rv = Reshape (xv, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (rq)
    new_k = Transpose <perm = [0, 2, 1, 3]> (rk)
    new_v = Transpose <perm = [0, 2, 1, 3]> (rv)
    "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", new_k)
    "present.0.value" = Concat <axis = 2> ("past_key_values.0.value", new_v)
    kt = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
    product = MatMul (q, kt)
    scores = Div (product, root)
    key_shape = Shape ("present.0.key")
    past_shape = Shape ("past_key_values.0.key")
    keys_1 = Gather (key_shape, two)
    keys = Squeeze (keys_1)
    past_1 = Gather (past_shape, two)
    past_length = Squeeze (past_1)
    columns = Range (first, keys, step)
    queries = Range (past_length, keys, step)
    rows = Unsqueeze (queries, one)
    future = Greater (columns, rows)
    %MASKED%
    mixed = MatMul (p, "present.0.value")
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Reshape (turned, joined)
    y = Add (x, flat)
    logits = MatMul (y, head)
}
"""

FILLED = """
    fill = Where (future, lowest, scores)
    p = Softmax <axis = -1> (fill)
"""
"""The mask is filled in; positions are looked up by `position_ids`."""

SHAPES: Mapping[str, tuple[int, ...]] = {
    "token_table": (VOCABULARY, WIDTH),
    "position_table": (POSITIONS, WIDTH),
    "wq": (WIDTH, WIDTH),
    "wk": (WIDTH, WIDTH),
    "wv": (WIDTH, WIDTH),
    "head": (WIDTH, VOCABULARY),
    "conv": (WIDTH, WIDTH, 3),
}


def decoder(masked: str, more: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a decoder-only model.

    Args:
        masked: Nodes that make `p`, the weights [batch, 2, seq, total] of the attention, of `scores`, `future` (bool
            [seq, total]) and `attention_mask`.
        more: Further initializers.
    """
    names = ("token_table", "position_table", "wq", "wk", "wv", "head")
    more = {"infinity": np.array(-np.inf, np.float32), **(more or {})}
    return with_weights(parser.parse_model(DECODER.replace("%MASKED%", masked)), names, more)


def with_weights(
    model: onnx.ModelProto, names: Iterable[str], more: Mapping[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """Give a model its weights."""
    rng = np.random.default_rng(3)
    arrays = {name: rng.normal(0, 1, SHAPES[name]).astype(np.float32) for name in names}
    for name, array in {**arrays, **(more or {})}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a model to `model.onnx` of a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return folder


ENCODER = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (%INPUTS%) => (float[batch, length, 8] last_hidden_state) <
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[3] shape_of_pairs = {0, -1, 16},
    int64[3] shape_of_words = {0, -1, 8}, int64 start = {0}, int64 step = {1},
    float lowest = {-3.4e38}, float much = {1e5}, float nothing = {0}
> {
    %X%
    k = MatMul (x, wk)
    kt = Transpose <perm = [0, 2, 1]> (k)
    scores = MatMul (x, kt)
    %MASKED%
    last_hidden_state = MatMul (p, x)
}
"""


def encoder(inputs: str, x: str, masked: str) -> onnx.ModelProto:
    """Return a model that runs once.

    Args:
        inputs: Its inputs.
        x: Nodes that make `x`, [batch, length, 8].
        masked: Nodes that make `p`, the weights [batch, length, length] of its attention, of `scores`.
    """
    return with_weights(parser.parse_model(encoder_text(inputs, x, masked)), ("token_table", "wk", "conv"))


def encoder_text(inputs: str, x: str, masked: str) -> str:
    """Return the text of a model that runs once; see `encoder`."""
    return ENCODER.replace("%INPUTS%", inputs).replace("%X%", x).replace("%MASKED%", masked)


def half(model: onnx.ModelProto, dtype: int = onnx.TensorProto.FLOAT16) -> onnx.ModelProto:
    """Return a model in float16 or bfloat16; what float16 cannot hold is its least or largest number."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    least = np.finfo(np.float16 if dtype == onnx.TensorProto.FLOAT16 else np.float32).min
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = np.clip(numpy_helper.to_array(tensor), least, -least).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for info in (*model.graph.input, *model.graph.output):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = dtype
    return model


def with_wide_ports(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs and outputs in float16 are float32; what is inside stays."""
    graph, inside = model.graph, {}
    before, after = [], []
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            inside[info.name] = f"{info.name}_half"
    for node in graph.node:
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    for info in graph.input:
        if info.name in inside:
            before.append(helper.make_node("Cast", [info.name], [inside[info.name]], to=onnx.TensorProto.FLOAT16))
    for info in graph.output:
        if info.name in inside:
            after.append(helper.make_node("Cast", [inside[info.name]], [info.name], to=onnx.TensorProto.FLOAT))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model
