"""Folding costs no fusion: what onnxruntime makes of a folded model has no fewer fused operators."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import onnx
import onnx.parser
import pytest
from optimized import ALL, complete, folded, fused, lost, operators
from real_models import MODELS, UNLIKE, params

from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.rewrite.fusions_to_keep import fused_nodes, transposes_into_product
from graphkit.shapes import const

LARGE = {  # gigabytes of weights, seconds of optimization, or merged of what is tested
    "gemma-270m/model",
    "nllb-600m/decoder_model",
    "nllb-600m/decoder_model_merged",
    "nllb-600m/decoder_with_past_model",
    "nllb-tiny/decoder_model_merged_quantized",
    "nllb-tiny/decoder_model_quantized",
    "nllb-tiny/decoder_with_past_model_quantized",
    "opus-mt-en-fr/decoder_model",
    "opus-mt-en-fr/encoder_model",  # marian-tiny has the same layers
    "opus-mt-en-fr/decoder_model_merged",
    "opus-mt-en-fr/decoder_with_past_model",
}


def export(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes()))


TRAINED_ONLY = {"gpt2-tiny/decoder_model_merged"}  # seconds of optimization


QUICK = {  # together they have every fusion that one of the models has
    "cache-styles/bshd",
    "llama-int4/model",
    "merged-decoder/decoder_model",
    "patchtst/model",
    "qwen2-tiny/model",
    "search/beamsearch-gpt2",
    "search/loop-greedy",
    "table-transformer/model",
    "vit-qdq/model",
}


def assert_fusions_stay(path: Path) -> None:
    before, after = operators(path), operators(folded(path))
    assert fused(before)  # else there is nothing to keep
    assert lost(before, after) == {}
    assert sum(after.values()) <= sum(before.values())


@pytest.mark.cases("beamsearch", "loop-greedy", "llama-int4", "bshd")
@pytest.mark.parametrize("name", params(sorted({*UNLIKE, *QUICK}), {*UNLIKE} - QUICK))
def test_a_real_export_keeps_its_fusions(name: str, tmp_path: Path) -> None:
    """As it is exported, and trained, which makes a difference where a vector is all 0 or all 1."""
    untrained, trained = tmp_path / "untrained.onnx", tmp_path / "trained.onnx"
    makes_a_difference = complete(export(name), trained, jitter=0.1) > 0
    if makes_a_difference:
        assert_fusions_stay(trained)
    if not makes_a_difference or name not in TRAINED_ONLY:
        complete(export(name), untrained)
        assert_fusions_stay(untrained)


@pytest.mark.skipif("GRAPHKIT_LARGE" not in os.environ, reason="it takes minutes: set GRAPHKIT_LARGE to run it")
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_export_keeps_its_fusions(name: str, tmp_path: Path) -> None:
    test_a_real_export_keeps_its_fusions(name, tmp_path)


# Patterns as exporters write them: the operator that onnxruntime makes of each, and how many

ONES = f"float[8] ones = {{{', '.join(['1'] * 8)}}}"
ZEROS = f"float[8] zeros = {{{', '.join(['0'] * 8)}}}"
W = f"float[8, 8] w = {{{', '.join(str((i * 7 % 11 - 5) / 10) for i in range(64))}}}"
NORM = f"<{ONES}, {ZEROS}, float epsilon = {{0.00001}}, float two = {{2}}>"
MEAN = "ReduceMean <axes = [-1]>"
NORMED = (
    f"u = {MEAN} (t) c = Sub (t, u) p = Pow (c, two) v = {MEAN} (p) e = Add (v, epsilon) q = Sqrt (e) n = Div (c, q) "
    "m = Mul (n, ones) y = Add (m, zeros)"
)
TRANSPOSED = "float epsilon = {0.00001}, float two = {2}, int64 zero = {0}, int64[1] to = {2}, int64[1] rest = {-1}"

PATTERNS: dict[str, tuple[int, str, str]] = {  # opset, operator, text
    "layer norm": (
        14,
        "LayerNormalization",
        f"(float[N, L, 8] x) => (float[N, L, 8] y) {NORM} {{ u = {MEAN} (x) c = Sub (x, u) p = Pow (c, two) "
        f"v = {MEAN} (p) e = Add (v, epsilon) r = Sqrt (e) n = Div (c, r) m = Mul (n, ones) y = Add (m, zeros) }}",
    ),
    "layer norm at level 1": (
        17,
        "LayerNormalization",
        f"(float[N, L, 8] x) => (float[N, L, 8] y) {NORM} {{ u = {MEAN} (x) c = Sub (x, u) p = Pow (c, two) "
        f"v = {MEAN} (p) e = Add (v, epsilon) r = Sqrt (e) n = Div (c, r) m = Mul (ones, n) y = Add (zeros, m) }}",
    ),
    "layer norm with two Subs": (
        11,
        "LayerNormalization",
        f"(float[N, L, 8] x) => (float[N, L, 8] y) {NORM} {{ u = {MEAN} (x) c = Sub (x, u) d = Sub (x, u) "
        f"p = Pow (d, two) v = {MEAN} (p) e = Add (v, epsilon) r = Sqrt (e) n = Div (c, r) m = Mul (n, ones) "
        "y = Add (m, zeros) }",
    ),
    "layer norm of a transposed tensor": (
        13,
        "LayerNormalization",
        f"(float[N, 8, H, W] x) => (float[N, M, 8] y) <{ONES}, {ZEROS}, {TRANSPOSED}> {{ s = Shape (x) "
        "s2 = Slice (s, zero_axis, to) rows = Concat <axis = 0> (s2, rest) r = Reshape (x, rows) "
        f"t = Transpose <perm = [0, 2, 1]> (r) {NORMED} }}",
    ),
    "layer norm of a transposed tensor that was normalized in groups": (
        11,
        "LayerNormalization",
        f"(float[N, 8, M] x) => (float[N, M, 8] y) <{ONES}, {ZEROS}, {TRANSPOSED}, int64[3] groups = {{0, 8, -1}}> {{ "
        "g = Reshape (x, groups) i = InstanceNormalization (g, ones, zeros) s = Shape (x) r = Reshape (i, s) "
        f"a = Add (r, two) b = Relu (a) t = Transpose <perm = [0, 2, 1]> (b) {NORMED} }}",
    ),
    "skip layer norm": (
        14,
        "com.microsoft.SkipLayerNormalization",
        f"(float[N, L, 8] a, float[N, L, 8] b) => (float[N, L, 8] y) {NORM} {{ x = Add (a, b) u = {MEAN} (x) "
        f"c = Sub (x, u) p = Pow (c, two) v = {MEAN} (p) e = Add (v, epsilon) r = Sqrt (e) n = Div (c, r) "
        "m = Mul (n, ones) y = Add (m, zeros) }",
    ),
    "skip layer norm with a bias": (
        14,
        "com.microsoft.SkipLayerNormalization",
        f"(float[N, L, 8] a, float[N, L, 8] b) => (float[N, L, 8] y) "
        f"<{ONES}, {ZEROS}, {W}, float epsilon = {{0.00001}}, float two = {{2}}> {{ k = MatMul (a, w) "
        f"l = Add (k, zeros) x = Add (l, b) u = {MEAN} (x) c = Sub (x, u) p = Pow (c, two) v = {MEAN} (p) "
        "e = Add (v, epsilon) r = Sqrt (e) n = Div (c, r) m = Mul (n, ones) y = Add (m, zeros) }",
    ),
    "RMS norm": (
        14,
        "SimplifiedLayerNormalization",
        f"(float[N, L, 8] x) => (float[N, L, 8] y) {NORM} {{ p = Pow (x, two) v = {MEAN} (p) e = Add (v, epsilon) "
        "r = Sqrt (e) n = Div (x, r) y = Mul (n, ones) }",
    ),
    "RMS norm by an inverse": (
        18,
        "SimplifiedLayerNormalization",
        f"(float[N, L, 8] x) => (float[N, L, 8] y) <{ONES}, float epsilon = {{0.00001}}, float two = {{2}}, "
        "float one = {1}, int64[1] last = {-1}> { p = Pow (x, two) v = ReduceMean (p, last) e = Add (v, epsilon) "
        "r = Sqrt (e) i = Div (one, r) n = Mul (x, i) y = Mul (n, ones) }",
    ),
    "gelu": (
        14,
        "com.microsoft.BiasGelu",
        f"(float[N, L, 8] a) => (float[N, L, 8] y) <{ZEROS}, {W}, float root = {{1.4142135}}, float one = {{1}}, "
        "float half = {0.5}> { k = MatMul (a, w) x = Add (k, zeros) d = Div (x, root) f = Erf (d) g = Add (f, one) "
        "h = Mul (x, g) y = Mul (h, half) }",
    ),
    "gelu with the half first": (
        14,
        "com.microsoft.BiasGelu",
        f"(float[N, L, 8] a) => (float[N, L, 8] y) <{ZEROS}, {W}, float root = {{1.4142135}}, float one = {{1}}, "
        "float half = {0.5}> { k = MatMul (a, w) x = Add (zeros, k) d = Div (x, root) f = Erf (d) g = Add (f, one) "
        "h = Mul (x, half) y = Mul (h, g) }",
    ),
    "gelu as one operator": (
        20,
        "com.microsoft.BiasGelu",
        f"(float[N, L, 8] a) => (float[N, L, 8] y) <{ZEROS}, {W}> {{ k = MatMul (a, w) x = Add (k, zeros) "
        "y = Gelu (x) }",
    ),
    "gelu by tanh": (
        14,
        "com.microsoft.FastGelu",
        f"(float[N, L, 8] a) => (float[N, L, 8] z) <{ZEROS}, {W}, float three = {{3}}, float c = {{0.044715}}, "
        "float s = {0.7978845834732056}, float one = {1}, float half = {0.5}> { k = MatMul (a, w) x = Add (k, zeros) "
        "p = Pow (x, three) q = Mul (p, c) r = Add (x, q) t = Mul (r, s) u = Tanh (t) v = Add (u, one) "
        "h = Mul (x, half) y = Mul (h, v) z = Abs (y) }",
    ),
    "quick gelu": (
        14,
        "com.microsoft.QuickGelu",
        "(float[N, L, 8] x) => (float[N, L, 8] y) <float a = {1.702}> { m = Mul (x, a) s = Sigmoid (m) "
        "y = Mul (x, s) }",
    ),
    "product and activation": (
        14,
        "com.microsoft.FusedGemm",
        f"(float[N, 8] x) => (float[N, 8] y) <{ZEROS}, {W}> {{ m = MatMul (x, w) b = Add (m, zeros) y = Relu (b) }}",
    ),
    "transposed product": (
        14,
        "com.microsoft.FusedMatMul",
        "(float[N, H, L, 8] q, float[N, H, M, 8] k) => (float[N, H, L, M] y) { t = Transpose <perm = [0, 1, 3, 2]> (k) "
        "y = MatMul (q, t) }",
    ),
    "transposed product whose factor is an output": (
        14,
        "com.microsoft.FusedMatMul",
        "(float[K, M] a, float[K, N] b) => (float[M, N] y, float[M, K] z) { t = Transpose (a) y = MatMul (t, b) "
        "z = Identity (t) }",
    ),
    "scaled product": (
        14,
        "com.microsoft.FusedMatMul",
        "(float[N, L, 8] q, float[N, 8, M] k) => (float[N, L, M] y) <float s = {0.5}> { m = MatMul (q, k) "
        "y = Mul (m, s) }",
    ),
    "flattened transposed product": (
        14,
        "com.microsoft.FusedMatMul",
        "(float[N, L, 8] q, float[N, L, 8] k) => (float[N, 2, L, L] y) "
        "<int64[1] flat = {-1}, int64[1] two = {2}, int64[1] four = {4}, int64[4] heads = {0, 0, 2, 4}, "
        "int64 zero = {0}, int64 one = {1}> "
        "{ s = Shape (q) n = Gather (s, zero) l = Gather (s, one) n1 = Unsqueeze (n, zero_axis) "
        "l1 = Unsqueeze (l, zero_axis) rows = Concat <axis = 0> (flat, l1, four) "
        "back = Concat <axis = 0> (n1, two, l1, l1) a = Reshape (q, heads) "
        "b = Transpose <perm = [0, 2, 1, 3]> (a) c = Reshape (b, rows) d = Reshape (k, heads) "
        "e = Transpose <perm = [0, 2, 1, 3]> (d) f = Reshape (e, rows) g = Transpose <perm = [0, 2, 1]> (f) "
        "m = MatMul (c, g) y = Reshape (m, back) }",
    ),
}


def model(text: str, opset: int) -> onnx.ModelProto:
    text = text.replace("int64 zero =", "int64[1] zero_axis = {0}, int64 zero =")
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


def optimized_pair(text: str, opset: int, folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    path = folder / "model.onnx"
    onnx.save(model(text, opset), path)
    return fused(operators(path)), fused(operators(folded(path)))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_fused_after_folding(name: str, tmp_path: Path) -> None:
    opset, operator, text = PATTERNS[name]
    before, after = optimized_pair(text, opset, tmp_path)
    assert before.get(operator), before
    assert lost(before, after) == {}


# An encoder's layer: positions, mask and attention as PyTorch writes them, biases that were never trained

LENGTH = "s = Shape (ids) l = Gather (s, one) "
BOTH = (
    f"{LENGTH} s2 = Shape (ids) b = Gather (s2, zero) b1 = Unsqueeze <axes = [0]> (b) l1 = Unsqueeze <axes = [0]> (l) "
    "all = Concat <axis = 0> (b1, l1) "
)
POSITIONS = {
    "a Range": f"{BOTH} p = Range (zero, l, one) u = Unsqueeze <axes = [0]> (p) at = Expand (u, all)",
    "a Range of a Cast": f"{BOTH} i = Cast <to = 7> (l) p = Range (zero, i, one) u = Unsqueeze <axes = [0]> (p) "
    "at = Expand (u, all)",
    "NonZero": f"{LENGTH} l1 = Unsqueeze <axes = [0]> (l) f = ConstantOfShape <value = int64[1] {{1}}> (l1) "
    "g = NonZero (f) t = Transpose <perm = [1, 0]> (g) p = Squeeze <axes = [1]> (t) u = Unsqueeze <axes = [0]> (p) "
    "s2 = Shape (ids) at = Expand (u, s2)",
}
MASKS = {
    "a Cast": "m1 = Unsqueeze <axes = [1]> (mask) m2 = Unsqueeze <axes = [2]> (m1) m3 = Cast <to = 1> (m2)",
    "none": "m1 = Unsqueeze <axes = [1]> (floats) m3 = Unsqueeze <axes = [2]> (m1)",
}
WORDS = "float[4, 8] words = {" + ", ".join(map(str, range(32))) + "}"


def encoder(positions: str, mask: str) -> str:
    """Return a layer of a small BERT."""

    def projected(name: str, perm: str) -> str:
        return (
            f"{name}1 = MatMul (h, w{name}) {name}2 = Add ({name}1, zeros) {name}3 = Reshape ({name}2, heads) "
            f"{name}4 = Transpose <perm = {perm}> ({name}3) "
        )

    weights = ", ".join(W.replace("w =", f"w{name} =").replace("0.4", f"0.{n}") for n, name in enumerate("qkvo", 5))
    return (
        "(int64[N, L] ids, int64[N, L] kinds, int64[N, L] mask, float[N, L] floats) => (float[N, L, 8] y) "
        f"<{ONES}, {ZEROS}, {weights}, {WORDS}, int64 zero = {{0}}, int64 one = {{1}}, "
        "int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, float root = {2}, float unit = {1}, "
        f"float low = {{-10000}}> {{ {positions} "
        "word = Gather (words, ids) place = Gather (words, at) kind = Gather (words, kinds) w1 = Add (word, place) "
        "w2 = Add (w1, kind) h = LayerNormalization <axis = -1, epsilon = 0.00001> (w2, ones, zeros) "
        f"{projected('q', '[0, 2, 1, 3]')} {projected('k', '[0, 2, 3, 1]')} {projected('v', '[0, 2, 1, 3]')} "
        f"{mask} m4 = Sub (unit, m3) m5 = Mul (m4, low) a1 = MatMul (q4, k4) a2 = Div (a1, root) a3 = Add (a2, m5) "
        "a4 = Softmax <axis = 3> (a3) o1 = MatMul (a4, v4) o2 = Transpose <perm = [0, 2, 1, 3]> (o1) "
        "o3 = Reshape (o2, joined) o4 = MatMul (o3, wo) o5 = Add (o4, zeros) z = Add (o5, h) "
        "y = LayerNormalization <axis = -1, epsilon = 0.00001> (z, ones, zeros) }"
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_an_encoder_keeps_its_embedding_and_its_attention(positions: str, mask: str, tmp_path: Path) -> None:
    before, after = optimized_pair(encoder(POSITIONS[positions], MASKS[mask]), 12, tmp_path)
    assert before.get("com.microsoft.EmbedLayerNormalization") == before.get("com.microsoft.Attention") == 1
    assert lost(before, after) == {}


def test_positions_are_folded_where_nothing_is_normalized() -> None:
    text = encoder(POSITIONS["a Range"], MASKS["a Cast"])
    text = text.replace("LayerNormalization <axis = -1, epsilon = 0.00001> (w2, ones, zeros)", "Neg (w2)")
    with_fusion, without = (
        fold(Model.from_proto(model(one, 12))).model.graph
        for one in (encoder(POSITIONS["a Range"], MASKS["a Cast"]), text)
    )
    assert "all" in with_fusion.values
    assert "all" not in without.values


# What is found, and the option


def test_a_transpose_joins_a_product_where_batch_dims_keep_their_order() -> None:
    assert all(transposes_into_product(perm) for perm in ([1, 0], [0, 2, 1], [0, 1, 3, 2], [1, 2, 0, 3]))
    assert not any(transposes_into_product(perm) for perm in ([0], [0, 2, 3, 1], [0, 3, 1, 2], [2, 0, 1]))


def test_fusions_may_be_given_up_for_fewer_nodes() -> None:
    _, _, text = PATTERNS["layer norm"]
    proto = model(text, 14)
    assert len(fold(Model.from_proto(proto)).model.graph.nodes) == 9
    assert len(fold(Model.from_proto(proto), options=FoldingOptions(keep_fusions=False)).model.graph.nodes) == 8


def test_nodes_that_only_look_like_a_fusion_are_not_kept() -> None:
    text = f"(float[N, 8] x) => (float[N, 8] y) <{ONES}> {{ a = Sqrt (x) b = Div (x, a) y = Mul (b, ones) }}"
    graph = Model.from_proto(model(text, 14)).graph
    assert fused_nodes(graph, lambda _: None) == {}


def test_a_rank_that_is_not_known_is_no_matrix() -> None:
    _, _, text = PATTERNS["product and activation"]
    graph = Model.from_proto(model(text, 14)).graph
    found: dict[Node, str] = fused_nodes(graph, lambda _: None)
    assert found == {}
    assert list(fused_nodes(graph, lambda _: (const(2), const(8))).values()) == ["FusedGemm"]


@pytest.mark.parametrize("name", params(["qwen2-tiny/model", "opus-mt-en-fr/encoder_model"]))
def test_the_highest_level_loses_nothing_either(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    complete(export(name), path)
    assert lost(operators(path, ALL), operators(folded(path), ALL)) == {}


def test_a_masks_unsqueezes_are_merged_where_no_heads_are_around_them() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, L, 8] x, int64[N, L] mask) => (float[N, 1, L, 8] y)
        <int64[1] first = {1}, int64[1] second = {2}, float one = {1.0}, float low = {-10000.0}> {
            a = Unsqueeze (mask, first) b = Unsqueeze (a, second) c = Cast <to = 1> (b)
            d = Sub (one, c) e = Mul (d, low)
            t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) u = Unsqueeze (s, first) z = Add (u, e)
            w = Softmax <axis = -1> (z) v = Unsqueeze (x, first) y = MatMul (w, v)
        }"""
    nodes = fold(Model.from_proto(onnx.parser.parse_model(text))).model.graph.nodes
    assert [node.op_type for node in nodes].count("Unsqueeze") == 3
