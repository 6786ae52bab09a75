"""Models to change: small ones of every kind of operator, control flow, functions, a merged decoder."""

from __future__ import annotations

import lzma
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser

from graphkit.examples import EXAMPLES, resolve
from graphkit.rewrite import PASSES

HERE = Path(__file__).parent
HEADER = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "local" : 1, "custom" : 1]>\n'
BEFORE = re.compile(r"Before:\n\n(?P<before>.*?)\n\n\s*After", re.S)
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


def small() -> list[onnx.ModelProto]:
    """Return the models of the suite: texts, the examples of the passes' docstrings, what ships with graphkit."""
    texts = list(TEXTS)
    for kind in PASSES:
        match = BEFORE.search(kind.__doc__ or "")
        assert match is not None
        texts.append(textwrap.dedent(match["before"]))
    models = [onnx.parser.parse_model(HEADER + text) for text in texts]
    return models + [onnx.load(resolve(f"example:{name}")) for name in EXAMPLES]


def merged() -> list[onnx.ModelProto]:
    """Return merged decoders."""
    return [onnx.load(resolve("example:merged-decoder")), *_real("*merged*")]


def large() -> list[onnx.ModelProto]:
    """Return the small models, random chains, onnx's own case of each operator, and real exports."""
    sys.path.insert(0, str(HERE.parent / "shapes"))
    from chains import Chain

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case.model for case in collect_testcases(None) if case.model is not None]
    return small() * 10 + [Chain(seed).model() for seed in range(CHAINS)] * 5 + cases + list(_real("*"))


def _real(pattern: str) -> Iterator[onnx.ModelProto]:
    for path in sorted((HERE.parent / "models").rglob(f"{pattern}.onnx.xz")):
        if path.stat().st_size < LARGEST:
            yield onnx.ModelProto.FromString(lzma.decompress(path.read_bytes()))
