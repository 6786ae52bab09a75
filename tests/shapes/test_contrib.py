"""Rules of com.microsoft's operators and of attention, against what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from graphs import dims, model, shapes
from onnx import TensorProto, helper

from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.shapes import infer
from graphkit.shapes.constraints.node_constraints import collect_preconditions

onnxruntime.set_default_logger_severity(4)
SIZES = {"B": 2, "S": 1, "T": 1, "N": 3, "M": 4, "P": 9, "H": 8, "W": 9, "K": 3, "V": 6, "R": 3, "C": 2}
FIXED = {"l": 3, "t": 5, "sl": 4, "i": 0, "z": 5, "wi": 3, "n": 4}  # inputs whose value matters

CACHE = "float[B, 2, P, 8] pk, float[B, 2, P, 8] pv"
HEADS = f"float[B, S, 16] q, float[B, T, 16] k, float[B, T, 16] v, {CACHE}"
GROUPS = (
    "float[B, S, 16] q, float[B, S, 8] k, float[B, S, 8] v, float[B, 1, P, 8] pk, float[B, 1, P, 8] pv, "
    "int32[B] sl, int32[1] t"
)
TYPES = "float[a, b, c] y, float[d, e, f, g] pn, float[h, i0, j, k0] vn"

# Name -> inputs, node, outputs as onnxruntime has to be told, expected dims, and an opset.
CASES: dict[str, tuple[str, str, str, list[str], int]] = {
    "multi-head attention": (
        HEADS,
        "y, pn, vn = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , , pk, pv)",
        TYPES,
        ["[B, S, 16]", "[B, 2, P + T, 8]", "[B, 2, P + T, 8]"],
        17,
    ),
    "multi-head attention in a buffer": (
        f"{HEADS}, int32[1] l",
        "y, pn, vn, qk = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , , pk, pv, l)",
        f"{TYPES}, float[l0, m0, n0, o0] qk",
        ["[B, S, 16]", "[B, 2, P, 8]", "[B, 2, P, 8]", "[B, 2, S, ?0.l + T]"],
        17,
    ),
    "masked multi-head attention in a buffer": (
        f"{HEADS}, int32[1] l",
        "y, pn, vn, qk = com.microsoft.DecoderMaskedMultiHeadAttention"
        "<num_heads = 2, past_present_share_buffer = 1, output_qk = 1>(q, k, v, , , pk, pv, l)",
        f"{TYPES}, float[l0, m0, n0, o0] qk",
        ["[B, S, 16]", "[B, 2, P, 8]", "[B, 2, P, 8]", "[B, 2, S, ?0.l + T]"],
        17,
    ),
    "masked multi-head cross-attention": (
        f"float[B, S, 16] q, {CACHE}",
        "y = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2>(q, pk, pv)",
        "float[a, b, c] y",
        ["[B, S, 16]"],
        17,
    ),
    "grouped attention": (
        GROUPS,
        "y, pn, vn, qk = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, qk_output = 1>"
        "(q, k, v, pk, pv, sl, t)",
        f"{TYPES}, float[l0, m0, n0, o0] qk",
        ["[B, S, 16]", "[B, 1, max(?0.t, P), 8]", "[B, 1, max(?0.t, P), 8]", "[B, 2, S, ?0.t]"],
        17,
    ),
    "grouped attention over a window": (
        GROUPS.replace("P", "4"),
        "y, pn, vn = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, sliding_window_cache = 1, "
        "local_window_size = 4>(q, k, v, pk, pv, sl, t)",
        TYPES,
        ["[B, S, 16]", "[B, 1, 4, 8]", "[B, 1, 4, 8]"],
        17,
    ),
    "attention": (
        "float[B, S, 16] x, float[16, 48] w, float[48] c0, float[2, B, 2, P, 8] p",
        "y, pn = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, c0, , p)",
        "float[a, b, c] y, float[d, e, f, g, h] pn",
        ["[B, S, 16]", "[2, B, 2, P + S, 8]"],
        17,
    ),
    "attention of opset 23": (
        "float[B, 2, S, 8] q, float[B, 2, T, 8] k, float[B, 2, T, 6] v, float[B, 2, P, 8] pk, float[B, 2, P, 6] pv",
        "y, pn, vn, qk = Attention(q, k, v, , pk, pv)",
        "float[a, b, c, c0] y, float[d, e, f, g] pn, float[h, i0, j, k0] vn, float[l0, m0, n0, o0] qk",
        ["[B, 2, S, 6]", "[B, 2, P + T, 8]", "[B, 2, P + T, 6]", "[B, 2, S, P + T]"],
        23,
    ),
    "attention of opset 24 over a scattered cache": (
        "float[B, 2, S, 8] q, float[B, 2, T, 8] k, float[B, 2, P, 8] pk, float[B, 2, P, 8] pv, int64[B] wi, int64[B] n",
        "kn = TensorScatter<axis = 2>(pk, k, wi) vn = TensorScatter<axis = 2>(pv, k, wi) "
        "y, , , qk = Attention(q, kn, vn, , , , n)",
        "float[a, b, c, c0] y, float[d, e, f, g] kn, float[l0, m0, n0, o0] qk",
        ["[B, 2, S, 8]", "[B, 2, P, 8]", "[B, 2, S, P]"],
        24,
    ),
    "linear attention": (
        "float[B, T, 8] q, float[B, T, 8] k, float[B, T, 12] v",
        'y, pn = com.microsoft.LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(q, k, v)',
        "float[a, b, c] y, float[d, e, f, g] pn",
        ["[B, T, 12]", "[B, 2, 4, 6]"],
        17,
    ),
    "distances": (
        "float[N, 3] x, float[M, 3] w",
        'y = com.microsoft.CDist<metric = "euclidean">(x, w)',
        "float[a, b] y",
        ["[N, M]"],
        17,
    ),
    "windows along a dim": (
        "float[N, M] x",
        "y = com.microsoft.UnfoldTensor<dim = 1, size = 2, step = 2>(x)",
        "float[a, b, c] y",
        ["[N, M // 2, 2]"],
        17,
    ),
    "expand dims": (
        "float[N, 3] x",
        "c = Constant<value = int32 {-2}>() y = com.microsoft.ExpandDims(x, c)",
        "float[a, b, d] y",
        ["[N, 1, 3]"],
        17,
    ),
    "gather nd": (
        "float[2, 3] x, int64[K, 1] i",
        "y = com.microsoft.GatherND(x, i)",
        "float[a, b] y",
        ["[K, 3]"],
        17,
    ),
    "pad": (
        "float[N, 3] x",
        "p = Constant<value_ints = [0, 1, 2, 0]>() y = com.microsoft.Pad(x, p)",
        "float[a, b] y",
        ["[N + 2, 4]"],
        10,
    ),
    "range": (
        "float[P] x",
        "e = Shape(x) s = Constant<value_ints = [2]>() y = com.microsoft.Range(s, e)",
        "int64[a] y",
        ["[max(0, P - 2)]"],
        17,
    ),
    "unique": (
        "float[N] x",
        "y, at, count = com.microsoft.Unique(x)",
        "float[a] y, int64[b] at, int64[c] count",
        ["[?0.Unique#0]", "[N]", "[?0.Unique#0]"],
        17,
    ),
    "fused gemm": (
        "float[N, 3] x, float[4, 3] w, float[4] c",
        'y = com.microsoft.FusedGemm<transB = 1, activation = "Relu">(x, w, c)',
        "float[a, b] y",
        ["[N, 4]"],
        17,
    ),
    "pool with channels last": (
        "uint8[B, H, W, 3] x",
        "y = com.microsoft.NhwcMaxPool<kernel_shape = [2, 3], strides = [2, 1]>(x)",
        "uint8[a, b, c, d] y",
        ["[B, max(1, H // 2), W - 2, 3]"],
        17,
    ),
    "hash": ("int32[N] x", "y = com.microsoft.MurmurHash3(x)", "uint32[a] y", ["[N]"], 17),
    "repeated n-grams": (
        "int64[B, S] i, float[B, V] s",
        "y = com.microsoft.NGramRepeatBlock<ngram_size = 2>(i, s)",
        "float[a, b] y",
        ["[B, V]"],
        17,
    ),
    "crop": (
        "float[1, C, H, W] x, float[R, 4] r, int32[R] i, int32[2] z",
        "y = com.microsoft.CropAndResize(x, r, i, z)",
        "float[a, b, c, d] y",
        ["[R, C, ?0.z, ?1.z]"],
        17,
    ),
    "experts": (
        "float[N, 4] x, float[N, 2] p, float[2, 8, 4] w, float[2, 4, 8] v",
        "y = com.microsoft.MoE<k = 1>(x, p, w, , v)",
        "float[a, b] y",
        ["[N, 4]"],
        17,
    ),
    "gated addition": (
        "float[N, 8] x, float[N, 8] w, float[N, 1] c",
        "y = com.microsoft.GatedAdd(x, w, c)",
        "float[a, b] y",
        ["[N, 8]"],
        17,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_what_onnxruntime_gives(name: str) -> None:
    inputs, node, outputs, expected, opset = CASES[name]
    m = model(f"g ({inputs}) => ({outputs}) {{ {node} }}", opset)
    found = infer(m)
    assert [str(found[value]).partition(" =")[0] for value in m.graph.outputs] == expected
    session = onnxruntime.InferenceSession(m.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, {value.name: feed(value) for value in m.graph.inputs})
    for value, array in zip(m.graph.outputs, results, strict=True):
        assert not found[value].dtype or helper.tensor_dtype_to_np_dtype(found[value].dtype) == array.dtype
        assert len(found[value].dims) == array.ndim
        for dim, size in zip(found[value].dims, array.shape, strict=True):
            assert "?" in str(dim) or dim.evaluate(SIZES) == size


def feed(value: Value) -> np.ndarray:
    declared = declared_type(value)
    shape = [dim if isinstance(dim, int) else SIZES[dim] for dim in declared.dims]
    dtype = helper.tensor_dtype_to_np_dtype(declared.dtype)
    return np.full(shape, FIXED.get(value.name, 1), dtype)


def test_a_past_without_its_length_grows() -> None:
    """The length alone, without a past, shares nothing."""
    text = (
        "g (float[B, S, 16] q, float[B, T, 16] k, float[B, T, 16] v, int32[1] l) => (pn) "
        "{ y, pn = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , , , , l) }"
    )
    assert dims(text) == "[B, 2, T, 8]"


@pytest.mark.parametrize(
    ("node", "expected"),
    [  # onnxruntime has these for other devices only; docs/ContribOperators.md
        ("Attention<num_heads = 2, past_present_share_buffer = 1>(x, w, c, , p, , l)", "[2, B, 2, P, 8]"),
        ("Attention<num_heads = 2>(x, w, c, , p, , l)", "[2, B, 2, P + S, 8]"),
        (
            "DecoderMaskedSelfAttention<num_heads = 2, past_present_share_buffer = 1>(x, w, c, , p, , l)",
            "[2, B, 2, P, 8]",
        ),
    ],
)
def test_a_buffer_of_keys_and_values(node: str, expected: str) -> None:
    text = "g (float[B, S, 16] x, float[16, 48] w, float[48] c, float[2, B, 2, P, 8] p, int32[1] l) => (pn) "
    assert dims(f"{text} {{ y, pn = com.microsoft.{node} }}") == expected


def test_a_buffer_of_rare_layouts() -> None:
    sparse = "y, z = com.microsoft.SparseAttention<num_heads = 2, kv_num_heads = 1, sparse_block_size = 16>"
    assert dims(f"g ({GROUPS}) => (z) {{ {sparse}(q, k, v, pk, pv, sl, sl, t, sl) }}") == "[B, 1, P, 8]"
    four_bits = GROUPS.replace("float[B, 1, P, 8]", "uint8[B, 1, P, 4]")
    grouped = "y, z = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, kv_cache_bit_width = 4>"
    found = shapes(f"g ({four_bits}) => (z) {{ {grouped}(q, k, v, pk, pv, sl, t) }}")["z"]
    assert (str(found), found.dtype) == ("[B, 1, max(?0.t, P), 4]", TensorProto.UINT8)
    side_by_side = "y, z = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2, past_present_share_buffer = 1>"
    text = f"g (float[B, S, 48] q, {CACHE}, int32[1] l) => (y, z) {{ {side_by_side}(q, , , , , pk, pv, l) }}"
    assert [str(shapes(text)[name]) for name in "yz"] == ["[B, S, 16]", "[B, 2, P, 8]"]


def test_a_mask_over_a_buffer_is_not_as_long_as_past_and_new() -> None:
    text = (
        "g (float[B, S, 16] x, float[16, 48] w, float[48] c, int32[B, M] m, float[2, B, 2, P, 8] p, int32[1] l) => (y) "
        "{ y = com.microsoft.Attention<num_heads = 2, past_present_share_buffer = SHARED>(x, w, c, m, p, , l) }"
    )
    assert len(collect_preconditions(shapes(text.replace("SHARED", "0")))) == 1
    assert not collect_preconditions(shapes(text.replace("SHARED", "1")))


def test_statistics_of_a_batch_have_the_dtypes_of_mean_and_variance() -> None:
    found = shapes(
        "g (float16[N, C, L] x, float16[C] s, float16[C] b, float[C] m, float[C] v) => (y, n, w) "
        "{ y, n, w = BatchNormalization<training_mode = 1>(x, s, b, m, v) }"
    )
    assert [found[name].dtype for name in "ynw"] == [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.FLOAT]


def test_values_of_attention_may_have_a_dtype_of_their_own() -> None:
    inputs = "float16[B, 2, S, 8] q, float16[B, 2, S, 8] k, float[B, 2, S, 8] v"
    found = shapes(f"g ({inputs}) => (y, n, w) {{ y, n, w = Attention(q, k, v) }}", 23)
    assert [found[name].dtype for name in "ynw"] == [TensorProto.FLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT]


def test_the_past_of_a_grouped_attention_has_its_heads_and_its_batch() -> None:
    inputs = GROUPS.replace("float[B, 1, P, 8]", "float[C, H, P, 8]")
    attention = "y, z = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>"
    found = shapes(f"g ({inputs}) => (z) {{ {attention}(q, k, v, pk, pv, sl, t) }}")
    assert {str(each) for each in found.equalities} >= {"C == B", "H == 1"}
