"""Small exports to make bundles of, and bundles that tests share: decoders of one layer, and real pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from graphkit.deploy.make_bundle import BundleOptions, bundle_folder

__all__ = ["AUTOMATIC", "OPTIONS", "SLOTS", "VOCABULARY", "WINDOW", "audio_encoder", "decoder", "made", "saved"]

SLOTS, WINDOW, VOCABULARY, POSITIONS, WIDTH = 8, 3, 11, 16, 8
OPTIONS = BundleOptions(max_cache=SLOTS, max_source=8, batch=3, verify=False)
MASKED: Mapping[str, str] = {
    "causal": "hidden = Identity (future)",
    "window": """old = Sub (rows, window)
        behind = LessOrEqual (columns, old)
        hidden = Or (future, behind)""",
}
AUTOMATIC: Mapping[str, str] = {  # names of dims, as exporters that trace with dynamic shapes make them up
    "batch, seq": "s14, s70",
    "batch, total": "s43, s53",
    'batch, 2, past, 4] "past_key_values.0.key"': 's14, 2, s17, 4] "past_key_values.0.key"',
    'batch, 2, past, 4] "past_key_values.0.value"': 's14, 2, s7, 4] "past_key_values.0.value"',
    "batch, 2, all": "s14, 2, s99",
}
DECODER = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (
    int64[batch, seq] input_ids, int64[batch, total] attention_mask, int64[batch, seq] position_ids,
    float[batch, 2, past, 4] "past_key_values.0.key", float[batch, 2, past, 4] "past_key_values.0.value"
) => (
    float[batch, seq, 11] logits,
    float[batch, 2, all, 4] "present.0.key", float[batch, 2, all, 4] "present.0.value"
) <
    int64[1] one = {1}, int64[1] two = {2}, int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8},
    int64[2] mask_axes = {1, 2}, float lowest = {-3.4e38}, float root = {2}, float nothing = {0}, int64 zero = {0},
    int64 unit = {1}
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
    k = Transpose <perm = [0, 2, 1, 3]> (rk)
    v = Transpose <perm = [0, 2, 1, 3]> (rv)
    "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", k)
    "present.0.value" = Concat <axis = 2> ("past_key_values.0.value", v)
    kt = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
    product = MatMul (q, kt)
    scores = Div (product, root)
    past_shape = Shape ("past_key_values.0.key")
    past_1 = Gather (past_shape, two)
    past_length = Squeeze (past_1)
    ids_shape = Shape (input_ids)
    new_1 = Gather (ids_shape, one)
    new_length = Squeeze (new_1)
    keys = Add (past_length, new_length)
    columns = Range (zero, keys, unit)
    queries = Range (past_length, keys, unit)
    rows = Unsqueeze (queries, one)
    future = Greater (columns, rows)
    %MASKED%
    counts = Cast <to = 9> (attention_mask)
    padding = Not (counts)
    wide = Unsqueeze (padding, mask_axes)
    none = Or (hidden, wide)
    masked = Where (none, lowest, scores)
    p = Softmax <axis = -1> (masked)
    mixed = MatMul (p, "present.0.value")
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Reshape (turned, joined)
    y = Add (x, flat)
    logits = MatMul (y, head)
}
"""


def decoder(
    mask: str = "causal",
    opset: int = 17,
    changes: Mapping[str, str] = {},
    *,
    words: int = VOCABULARY,
    positions: int = POSITIONS,
) -> onnx.ModelProto:
    """Return a decoder-only model of one layer.

    Args:
        mask: `causal`, or `window`: a token attends to the last ones, itself included.
        opset: Of the model.
        changes: Text to replace, and what by.
        words: Of its vocabulary.
        positions: Rows of its table of positions.
    """
    text = DECODER.replace("%MASKED%", MASKED[mask]).replace("11] logits", f"{words}] logits")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    model = parser.parse_model(text)
    model.opset_import[0].version = opset
    rng = np.random.default_rng(5)
    shapes = {"token_table": (words, WIDTH), "position_table": (positions, WIDTH), "head": (WIDTH, words)}
    shapes |= dict.fromkeys(("wq", "wk", "wv"), (WIDTH, WIDTH))
    arrays = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["window"] = np.array(WINDOW)
    read = {name for node in model.graph.node for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in read]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    return model


def audio_encoder() -> onnx.ModelProto:
    """Return an encoder of sound whose length is fixed, as wide as the decoder in `whisper-tiny`."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[batch_size, 16, 24] input_features) => (float[batch_size, 24, 32] last_hidden_state) {
            frames = Transpose <perm = [0, 2, 1]> (input_features)
            last_hidden_state = MatMul (frames, wide)
        }"""
    )
    wide = np.random.default_rng(7).normal(0, 0.3, (16, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(wide, "wide"))
    return model


def saved(model: onnx.ModelProto, folder: Path, name: str = "model") -> Path:
    """Write a model to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / f"{name}.onnx")
    return folder


def made(source: Path, folder: Path, options: BundleOptions = OPTIONS) -> Path:
    """Make a bundle, without a proof, and return its folder."""
    bundle_folder(source, folder, options)
    return folder
