"""Models to change: small ones of every kind of operator, control flow, functions, a merged decoder."""

from __future__ import annotations

import lzma
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser
from onnx import helper

from graphkit.examples import resolve
from graphkit.passes import PASSES

HERE = Path(__file__).parent
HEADER = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "local" : 1, "custom" : 1]>\n'
BEFORE = re.compile(r"Before(?: \(opset \d+\))?:\n\n(?P<before>.*?)\n\n\s*After", re.S)
CHAINS = 40
LARGEST = 25_000  # bytes of a packed real model
TEXTS = (
    """g (float[batch, seq] x, int64 n, bool go) => (float[batch, seq] y, float[a, b, c] z) {
        y, z = Loop (n, go, x) <body = b (int64 i, bool c, float[batch, seq] v)
            => (bool d, float[batch, seq] w, float[batch, seq] s) {
            d = Identity (c)
            w = Add (v, x)
            s = Neg (w)
        }>
    }""",
    """g (float[batch, 4] x, float[seq, 3] t) => (float[batch, 4] y, float[k, m] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[batch, 4] v, float[3] e)
            => (float[batch, 4] w, float[3] s) { w = Identity (v) s = Abs (e) }> (x, t)
    }""",
    """g (float[batch, seq, 8] x, bool flag) => (float[a, b, c] y) <float[8, 8] w> {
        y = If (flag) <
            then_branch = t () => (float[a, b, c] p) { p = MatMul (x, w) },
            else_branch = e () => (float[d, e, f] q) {
                s = Shape (x)
                q = Reshape (x, s)
            }
        >
    }""",
    """g (float[batch, 3, height, width] x) => (float[batch, a, b, c] y)
    <float[8, 3, 3, 3] w, int64[2] rest = {0, -1}> {
        c1 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
        p = MaxPool <kernel_shape = [2, 2]> (c1)
        s = Shape <start = 2> (p)
        two = Constant <value_ints = [2]> ()
        d = Mul (s, two)
        head = Shape <end = 2> (p)
        sizes = Concat <axis = 0> (head, d)
        y = Resize (p, , , sizes)
        flat = Reshape (y, rest)
    }""",
    """g (float[batch, seq, 16] q, float[batch, past, 16] k, seq(float[N]) list) => (float[a, b, c] y, int64 n) {
        y = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, k)
        n = SequenceLength (list)
        one = Constant <value_int = 1> ()
        e = SequenceAt (list, one)
        r = local.twice <by = 3> (e)
    }
    <domain: "local", opset_import: ["" : 18]> twice <by> (a) => (b) {
        f = Constant <value_int: int = @by> ()
        g = Cast <to = 1> (f)
        b = Mul (a, g)
    }""",
    """g (float[batch, seq] x, int64[n] at) => (float[batch, seq] y, int64[2, k] z, float[i, j] r) {
        zero = Constant <value = int64[1] {0}> ()
        shape = Shape (x)
        batch = Gather <axis = 0> (shape, zero)
        ends = Constant <value = int64[1] {9223372036854775807}> ()
        part = Slice (x, zero, ends, zero)
        minus = Constant <value = int64[1] {-1}> ()
        target = Concat <axis = 0> (batch, minus)
        flat = Reshape (part, target)
        wide = Expand (flat, shape)
        z = NonZero (wide)
        many = ReduceProd <keepdims = 0> (shape)
        start = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        range = Range (start, many, step)
        r = ConstantOfShape <value = float[1] {1.5}> (shape)
        grid = Tile (x, shape)
        first, second = Split <axis = 1, num_outputs = 2> (x)
        y = Where (go, wide, x)
        go = Less (x, wide)
        picked = GatherElements <axis = 0> (at, zero)
        half = Div (shape, batch)
        square = Mul (half, half)
        more = Pad (x, square)
    }""",
    """g (int64[batch, seq] ids, float[batch, past, 4] past_key)
    => (float[batch, seq, v] y, float[batch, total, 4] present)
    <float[32, 4] table, float[4] scale = {1, 1, 1, 1}, float[4] bias = {0, 0, 0, 0}> {
        e = Gather (table, ids)
        n = LayerNormalization <axis = -1> (e, scale, bias)
        present = Concat <axis = 1> (past_key, n)
        order = Transpose <perm = [0, 2, 1]> (present)
        scores = MatMul (n, order)
        weights = Softmax <axis = -1> (scores)
        y = MatMul (weights, present)
        u = custom.Opaque <text = "model text", mode = 3> (y)
        quarter = Einsum <equation = "bij,bkj->bik"> (y, present)
    }""",
)

# Merged decoders, one with a cross-attention cache that later steps give without elements, one on a negated condition.
MERGED_TEXTS = (
    """g (int64[batch, seq] ids, float[batch, enc, 4] encoder, float[batch, past, 4] past_key_values_0_decoder_key,
        float[batch, enc_past, 4] past_key_values_0_encoder_key, bool[1] use_cache_branch)
    => (float[batch, seq, 2] logits, float[batch, total, 4] present_0_decoder_key,
        float[batch, enc_out, 4] present_0_encoder_key)
    <float[2, 4] table = {1, 2, 3, 4, 5, 6, 7, 8}, float[4, 2] head = {1, 2, 3, 4, 5, 6, 7, 8}> {
        logits, present_0_decoder_key, present_0_encoder_key = If (use_cache_branch) <
            then_branch = later () => (float[batch, seq, 2] l1, float[batch, total, 4] k1, float[0, 4, 4] c1) {
                e1 = Gather (table, ids)
                k1 = Concat <axis = 1> (past_key_values_0_decoder_key, e1)
                t1 = Transpose <perm = [0, 2, 1]> (k1)
                s1 = MatMul (e1, t1)
                o1 = MatMul (s1, k1)
                u1 = Transpose <perm = [0, 2, 1]> (past_key_values_0_encoder_key)
                v1 = MatMul (o1, u1)
                w1 = MatMul (v1, past_key_values_0_encoder_key)
                l1 = MatMul (w1, head)
                c1 = Constant <value = float[0, 4, 4] {}> ()
            },
            else_branch = first () => (float[batch, seq, 2] l2, float[batch, seq, 4] k2, float[batch, enc, 4] c2) {
                e2 = Gather (table, ids)
                k2 = Identity (e2)
                c2 = Neg (encoder)
                t2 = Transpose <perm = [0, 2, 1]> (c2)
                s2 = MatMul (e2, t2)
                o2 = MatMul (s2, c2)
                shape = Shape (o2)
                r2 = Reshape (o2, shape)
                l2 = MatMul (r2, head)
            }
        >
    }""",
    """g (float[batch, seq, 4] x, float[batch, 2, past, 4] past_key_0, float[batch, 2, past, 4] past_value_0,
        bool first)
    => (float[batch, 2, total, 4] present_key_0, float[batch, 2, total, 4] present_value_0, int64[n] size)
    <int64[4] split = {0, 0, 2, 4}, float[4, 8] w_merged_0 = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}> {
        size = Shape (x)
        wide = MatMul (x, w_merged_0)
        heads = Reshape (wide, split)
        new = Transpose <perm = [0, 2, 1, 3]> (heads)
        later = Not (first)
        present_key_0, present_value_0 = If (later) <
            then_branch = t () => (float[batch, 2, total, 4] k, float[batch, 2, total, 4] v) {
                k = Concat <axis = 2> (past_key_0, new)
                v = If (later) <
                    then_branch = tt () => (float[a, b, c, d] v1) { v1 = Concat <axis = -2> (past_value_0, new) },
                    else_branch = te () => (float[a, b, c, d] v2) { v2 = Abs (past_value_0) }
                >
            },
            else_branch = e () => (float[batch, 2, seq, 4] k, float[batch, 2, seq, 4] v) {
                k = Identity (new)
                v = Neg (new)
            }
        >
    }""",
)

# Models quantised in each way, with weights of their own size.
QUANTISED_TEXTS = (
    """g (float[batch, seq, 4] x, bool flag) => (float[batch, seq, 3] y)
    <int8[4, 3] w = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 1, 2}, int8[3] wz = {1, 0, -3}, float[3] ws = {0.5, 0.25, 2}> {
        q, s, z = DynamicQuantizeLinear (x)
        sum = MatMulInteger (q, w, z, wz)
        f = Cast <to = 1> (sum)
        scales = Mul (s, ws)
        a = Mul (f, scales)
        y = If (flag) <
            then_branch = t () => (float[batch, seq, 3] p) {
                q2, s2, z2 = DynamicQuantizeLinear (x)
                sum2 = MatMulInteger (q2, w, z2, wz)
                f2 = Cast <to = 1> (sum2)
                scales2 = Mul (ws, s2)
                p = Mul (scales2, f2)
            },
            else_branch = e () => (float[batch, seq, 3] r) { r = Neg (a) }
        >
    }""",
    """g (float[batch, 1, height, width] x) => (float[batch, 2, a, b] y)
    <uint8[2, 1, 1, 2] w = {1, 2, 3, 250}, uint8 wz = {7}, float[2, 1, 1] ws = {0.5, 4}> {
        q, s, z = DynamicQuantizeLinear (x)
        sum = ConvInteger <pads = [0, 1, 0, 1]> (q, w, z, wz)
        f = Cast <to = 1> (sum)
        part = Mul (f, s)
        y = Mul (part, ws)
    }""",
    """g (float[batch, seq, 16] x, int64[batch, seq] ids) => (float[batch, seq, 2] y, float[batch, seq, 2] m)
    <uint8[2, 1, 8] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255, 16}, float[2] ws = {0.5, 0.25},
    uint8[2, 1] zp = {7, 9}, int8[16, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7,
    8, 9, 1, 2, 3, 4, 5}, float[2] bias = {1, 2}> {
        a = com.microsoft.MatMulNBits <K = 16, N = 2, bits = 4, block_size = 16> (x, w, ws, zp, , bias)
        b = com.microsoft.DynamicQuantizeMatMul (x, v, ws, , bias)
        q, s, z = DynamicQuantizeLinear (x)
        c = com.microsoft.MatMulIntegerToFloat (q, v, s, ws, z)
        y = Add (a, b)
        m = Add (c, y)
    }""",
    """g (int64[batch, seq] ids, float[batch, seq, 2] x) => (float[batch, seq, 2] y, float[batch, seq, 2] z)
    <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.5}, uint8 zero = {3}, float[2] scales = {0.5, 0.25},
    int8[2, 2] w = {1, 2, 3, 4}, int32[2] bias = {1, 2}> {
        rows = Gather (table, ids)
        e = DequantizeLinear (rows, scale)
        both = Add (e, x)
        q = QuantizeLinear (both, scale, zero)
        d = DequantizeLinear (q, scale, zero)
        v = DequantizeLinear <axis = 1> (w, scales)
        p = MatMul (d, v)
        b = DequantizeLinear <axis = 0> (bias, scales)
        y = Add (p, b)
        r = QuantizeLinear (y, scale, zero)
        z = DequantizeLinear (r, scale, zero)
    }""",
)


def quantised() -> list[onnx.ModelProto]:
    """Return models quantised in each way: texts, and real exports."""
    texts = [onnx.parser.parse_model(HEADER + text) for text in QUANTISED_TEXTS]
    return texts * 10 + [*_real("*int4*/*"), *_real("*qdq*/*"), *_real("*quantized*")]


INPUTS = "int64[batch, length] input_ids, int64[batch, length] attention_mask"
WORDS = "x = Gather (token_table, input_ids)"
PADDED = """
    counts = Cast <to = 9> (attention_mask)
    columns = Unsqueeze (counts, one)
    bias = Where (columns, nothing, lowest)
    masked = Add (scores, bias)
    p = Softmax <axis = -1> (masked)
"""
TINY = [f"{name}.onnx.xz" for name in ("gpt2-tiny/decoder_model_merged", "qwen2-tiny/model", "t5-tiny/encoder_model")]
TINY += ["llama-int4/model.onnx.xz"]
TINY += ["t5-tiny/decoder_model_merged.onnx.xz", "whisper-tiny/decoder_model_merged.onnx.xz", "vit-qdq/model.onnx.xz"]


def small() -> list[onnx.ModelProto]:
    """Return the models of the suite: texts, the examples of the passes' docstrings, what ships with graphkit."""
    texts = [*TEXTS, *QUANTISED_TEXTS]
    for kind in PASSES:
        match = BEFORE.search(kind.__doc__ or "")
        assert match is not None
        texts.append(textwrap.dedent(match["before"]))
    models = [onnx.parser.parse_model(HEADER + text) for text in texts]
    return models + [onnx.load(resolve(f"example:{name}")) for name in ("merged-decoder", "causal-attention")]


def merged() -> list[onnx.ModelProto]:
    """Return merged decoders: mostly small ones, which take a hundredth of the time of real ones."""
    texts = [onnx.parser.parse_model(HEADER + text) for text in MERGED_TEXTS]
    return texts * 50 + [onnx.load(resolve("example:merged-decoder")), *_real("*merged*")]


def large() -> list[onnx.ModelProto]:
    """Return the small models, random chains, onnx's own case of each operator, and real exports."""
    sys.path.insert(0, str(HERE.parent / "support"))
    from chains import Chain
    from node_cases import node_cases

    cases = [case.model for case in node_cases()]
    return small() * 10 + [Chain(seed).model() for seed in range(CHAINS)] * 5 + cases + list(_real("*"))


def deployed(*, real: bool) -> list[onnx.ModelProto]:
    """Return models with a cache, or that run once; mostly small ones, and tiny real exports with them where asked."""
    sys.path.insert(0, str(HERE.parent / "support"))
    from small_pipelines import FILLED, decoder, encoder

    texts = [decoder(FILLED), encoder(INPUTS, WORDS, PADDED)]
    if not real:
        return texts
    tiny = [onnx.ModelProto.FromString(lzma.decompress((HERE.parent / "models" / name).read_bytes())) for name in TINY]
    return (texts + [in_functions(model) for model in texts] + _quantised_kinds(texts[0])) * 4 + tiny


def in_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose products are functions in functions."""
    text = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]> g (float x) => (float y) { y = Identity (x) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]> Product (a, b) => (c) { c = local.Inner (a, b) }
        <domain: "local", opset_import: ["" : 17]> Inner (a, b) => (c) { c = MatMul (a, b) }"""
    made, functions = onnx.ModelProto(), onnx.parser.parse_model(text)
    made.CopyFrom(model)
    made.functions.extend(functions.functions)
    made.opset_import.append(helper.make_opsetid("local", 1))
    for node in made.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "Product", "local"
    return made


def _quantised_kinds(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """Return a decoder in each kind of quantisation."""
    from quantised import KINDS, quantised

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        onnx.save(model, source / "model.onnx")
        return [onnx.load(quantised(kind, source, Path(folder, kind), vocabulary=11) / "model.onnx") for kind in KINDS]


def _real(pattern: str) -> Iterator[onnx.ModelProto]:
    for path in sorted((HERE.parent / "models").rglob(f"{pattern}.onnx.xz")):
        if path.stat().st_size < LARGEST:
            yield onnx.ModelProto.FromString(lzma.decompress(path.read_bytes()))
