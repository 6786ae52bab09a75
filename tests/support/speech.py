"""A pipeline for sound as ONNX text: a strided convolution, and a decoder that takes the mask of frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

__all__ = ["FEATURES", "VOCABULARY", "normalized_over_windows_of", "speech"]

FEATURES, WIDTH, VOCABULARY = 6, 8, 11

ENCODER = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (float[batch, encoder_length, 6] input_features, int64[batch, encoder_length] attention_mask)
=> (float[batch, states, 8] last_hidden_state) <
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, float lowest = {-3.4e38}, float nothing = {0}
> {
    turned = Transpose <perm = [0, 2, 1]> (input_features)
    half = Conv <kernel_shape = [3], strides = [2], pads = [1, 1]> (turned, conv)
    x = Transpose <perm = [0, 2, 1]> (half)
    k = MatMul (x, wk)
    kt = Transpose <perm = [0, 2, 1]> (k)
    scores = MatMul (x, kt)
    end = Shape <start = 1> (attention_mask)
    half_mask = Slice (attention_mask, zero, end, one, two)
    valid = Cast <to = 9> (half_mask)
    row = Unsqueeze (valid, one)
    bias = Where (row, nothing, lowest)
    masked = Add (scores, bias)
    p = Softmax <axis = -1> (masked)
    mixed = MatMul (p, x)
    last_hidden_state = Add (mixed, x)
}
"""
DECODER = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (
    int64[batch, sequence] input_ids, int64[batch, encoder_length] encoder_attention_mask, %INPUTS%
) => (
    float[batch, sequence, 11] logits, float[batch, 2, total, 4] "present.0.decoder.key",
    float[batch, 2, total, 4] "present.0.decoder.value" %OUTPUTS%
) <
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[4] heads = {0, 0, 2, 4},
    int64[3] joined = {0, 0, 8},
    float lowest = {-3.4e38}, float root = {2}, float nothing = {0}, int64 first = {0}, int64 step = {1}
> {
    tokens = Gather (token_table, input_ids)
    ids_shape = Shape (input_ids)
    new_1 = Gather (ids_shape, one)
    new_length = Squeeze (new_1)
    %PAST%
    all_length = Add (past_length, new_length)
    queries = Range (past_length, all_length, step)
    positions = Gather (position_table, queries)
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
    %JOINED%
    kt = Transpose <perm = [0, 1, 3, 2]> ("present.0.decoder.key")
    product = MatMul (q, kt)
    scores = Div (product, root)
    columns = Range (first, all_length, step)
    rows = Unsqueeze (queries, one)
    future = Greater (columns, rows)
    causal = Where (future, lowest, nothing)
    seen = Add (scores, causal)
    p = Softmax <axis = -1> (seen)
    mixed = MatMul (p, "present.0.decoder.value")
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Reshape (turned, joined)
    y = Add (x, flat)
    yq = MatMul (y, cq)
    ryq = Reshape (yq, heads)
    cross_q = Transpose <perm = [0, 2, 1, 3]> (ryq)
    %CROSS%
    ckt = Transpose <perm = [0, 1, 3, 2]> (ck)
    cross_product = MatMul (cross_q, ckt)
    cross_scores = Div (cross_product, root)
    mask_end = Shape <start = 1> (encoder_attention_mask)
    every_other = Slice (encoder_attention_mask, zero, mask_end, one, two)
    states = Shape <start = 2, end = 3> (ck)
    half_mask = Slice (every_other, zero, states, one)
    valid = Cast <to = 9> (half_mask)
    mask_axes = Concat <axis = 0> (one, two)
    row = Unsqueeze (valid, mask_axes)
    bias = Where (row, nothing, lowest)
    masked = Add (cross_scores, bias)
    cross_p = Softmax <axis = -1> (masked)
    cross_mixed = MatMul (cross_p, cv)
    cross_turned = Transpose <perm = [0, 2, 1, 3]> (cross_mixed)
    cross_flat = Reshape (cross_turned, joined)
    z = Add (y, cross_flat)
    logits = MatMul (z, head)
}
"""
FIRST: Mapping[str, str] = {
    "%INPUTS%": "float[batch, encoder_length, 8] encoder_hidden_states",
    "%OUTPUTS%": """, float[batch, 2, encoder_length, 4] "present.0.encoder.key",
        float[batch, 2, encoder_length, 4] "present.0.encoder.value" """,
    "%PAST%": "past_length = Identity (first)",
    "%JOINED%": '"present.0.decoder.key" = Identity (new_k) "present.0.decoder.value" = Identity (new_v)',
    "%CROSS%": """
        hk = MatMul (encoder_hidden_states, wck)
        hv = MatMul (encoder_hidden_states, wcv)
        rhk = Reshape (hk, heads)
        rhv = Reshape (hv, heads)
        "present.0.encoder.key" = Transpose <perm = [0, 2, 1, 3]> (rhk)
        "present.0.encoder.value" = Transpose <perm = [0, 2, 1, 3]> (rhv)
        ck = Identity ("present.0.encoder.key")
        cv = Identity ("present.0.encoder.value")
    """,
}
LATER: Mapping[str, str] = {
    "%INPUTS%": """
        float[batch, 2, past, 4] "past_key_values.0.decoder.key",
        float[batch, 2, past, 4] "past_key_values.0.decoder.value",
        float[batch, 2, encoder_length, 4] "past_key_values.0.encoder.key",
        float[batch, 2, encoder_length, 4] "past_key_values.0.encoder.value" """,
    "%OUTPUTS%": "",
    "%PAST%": """
        past_shape = Shape ("past_key_values.0.decoder.key")
        past_1 = Gather (past_shape, two)
        past_length = Squeeze (past_1)
    """,
    "%JOINED%": """
        "present.0.decoder.key" = Concat <axis = 2> ("past_key_values.0.decoder.key", new_k)
        "present.0.decoder.value" = Concat <axis = 2> ("past_key_values.0.decoder.value", new_v)
    """,
    "%CROSS%": 'ck = Identity ("past_key_values.0.encoder.key") cv = Identity ("past_key_values.0.encoder.value")',
}


def normalized_over_windows_of(size: int) -> dict[str, str]:
    """Return changes for `speech`: a mean over time, as Moonshine has one, over windows of so many states."""
    before = "half = Conv <kernel_shape = [3], strides = [2], pads = [1, 1]> (turned, conv)"
    after = f"""
    {before.replace("half", "states", 1)}
    windows = AveragePool <kernel_shape = [{size}]> (states)
    mean = ReduceMean <axes = [2]> (windows)
    half = Sub (states, mean)
    """
    return {before: after}


def speech(folder: Path, changes: Mapping[str, str] = {}) -> Path:
    """Write the pipeline to a folder, and return that.

    Its decoders declare the mask to be as long as the states, as exporters do, and take one in frames.

    Args:
        folder: Where to.
        changes: Text to replace in each model that has it, and what by.
    """
    rng = np.random.default_rng(5)
    shapes = {"token_table": (VOCABULARY, WIDTH), "position_table": (16, WIDTH), "head": (WIDTH, VOCABULARY)}
    shapes |= {"conv": (WIDTH, FEATURES, 3), **dict.fromkeys(("wq", "wk", "wv", "cq", "wck", "wcv"), (WIDTH, WIDTH))}
    arrays = {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in (("encoder", {}), ("decoder", FIRST), ("decoder_with_past", LATER)):
        text = DECODER if parts else ENCODER
        for old, new in {**parts, **changes}.items():
            text = text.replace(old, new)
        model = parser.parse_model(text)
        read = {name for node in model.graph.node for name in node.input}
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items() if n in read)
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}_model.onnx")
    return folder
