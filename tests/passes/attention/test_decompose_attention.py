from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fusing import check_close, operators, random_model
from rewriting import feeds_of, model_of, reasons
from sessions import run

from graphkit.model import Model
from graphkit.passes.attention.decompose_attention import DecomposeAttention
from graphkit.workflows.rewrite_file import rewrite_file

PASS = DecomposeAttention()
SIZES = {"N": 2, "S": 3, "T": 5, "past": 2, "total": 5}
HEADS = "float[N, 2, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 6] v"
FLAT = "float[N, S, 16] q, float[N, S, 8] k, float[N, S, 8] v"
PAST = "float[N, 2, past, 4] pk, float[N, 2, past, 4] pv"
FLAT4 = "float[N, S, 16] q, float[N, T, 16] k, float[N, T, 16] v"
MULTI = "com.microsoft.MultiHeadAttention"
MASKS = 'bool[N, 1, S, "past + S"] m'
GROUPED = "float[N, S, 64] q, float[N, S, 32] k, float[N, S, 32] v, float[N, 2, past, 16] pk, float[N, 2, past, 16] pv"
WIDE = "float[N, S, 128] q, float[N, S, 64] k, float[N, S, 64] v, float[N, 2, past, 32] pk, float[N, 2, past, 32] pv"
PACKED = "float[N, S, 128] q, float[N, 2, past, 16] pk, float[N, 2, past, 16] pv"
LENGTHS = """
    one = Constant <value_int = 1> () two = Constant <value_int = 2> () zero = Constant <value_int = 0> ()
    d = Shape (pk) p = Gather (d, two) e = Shape (q) s = Gather (e, one) n = Gather (e, zero)
    t = Add (p, s) total = Cast <to = 6> (t) last = Sub (t, one) many = Unsqueeze (n, axis)
    lasts = Expand (last, many) lengths = Cast <to = 6> (lasts)
"""


def attention(inputs: str, node: str) -> Model:
    return random_model(f"g ({inputs}) => (y) {{ {node} }}", 23)


def grouped(attributes: str, more: str = "", inputs: str = GROUPED, keys: str = "k, v", opset: int = 21) -> Model:
    node = f"y, ck, cv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2{attributes}> "
    node += f"(q, {keys}, pk, pv, lengths, total{more})"
    text = f"g ({inputs}) => (y, ck, cv) <int64[1] axis = {{0}}> {{ {LENGTHS} {node} }}"
    return random_model(text, opset, c=(16, 8), z=(16, 8))


PLAIN = {
    "heads apart": attention(HEADS, "y = Attention (q, k, v)"),
    "heads side by side, two of queries for one of keys": attention(
        FLAT, "y = Attention <q_num_heads = 4, kv_num_heads = 2, scale = 0.3> (q, k, v)"
    ),
    "a cache": random_model(
        f"g ({FLAT}, {PAST}) => (y, ck, cv) {{ y, ck, cv = Attention <q_num_heads = 4, kv_num_heads = 2, "
        "is_causal = 1> (q, k, v, , pk, pv) }",
        23,
    ),
    "causal, without a cache": attention(HEADS, "y = Attention <is_causal = 1> (q, k, v)"),
    "keys as an output": random_model(f"g ({HEADS}) => (y, ck, cv) {{ y, ck, cv = Attention (q, k, v) }}", 23),
    "a mask that is added": attention(f"{HEADS}, float[S, S] m", "y = Attention (q, k, v, m)"),
    "a mask of what counts": attention(
        HEADS,
        """h = Shape <start = 2, end = 3> (q) n = Squeeze (h) o = Constant <value_int = 1> ()
        z = Constant <value_int = 0> () c = Range (z, n, o) u = Constant <value_ints = [1]> () r = Unsqueeze (c, u)
        m = GreaterOrEqual (r, c) y = Attention (q, k, v, m)""",
    ),
    "scores with a limit": attention(HEADS, "y = Attention <softcap = 2.0> (q, k, v)"),
    "grouped": grouped(""),
    "grouped, in a window": grouped(", local_window_size = 2"),
    "grouped, scores with a limit": grouped(", softcap = 1.5, scale = 0.25"),
    "grouped, with a bias": grouped("", ", , , , m", f"{GROUPED}, float[1, 4, S, total] m"),
    "grouped, with a bias of all heads": grouped(", softcap = 1.5", ", , , , m", f"{GROUPED}, float[N, 1, S, total] m"),
    "grouped, with a bias, where masks may be short": grouped(
        "", ", , , , m", f"{GROUPED}, float[1, 4, S, total] m", opset=24
    ),
    "grouped, rotary": grouped(", do_rotary = 1", ", c, z"),
    "grouped, rotary, of neighbours": grouped(", do_rotary = 1, rotary_interleaved = 1", ", c, z"),
    "grouped, rotary, of some neighbours": grouped(", do_rotary = 1, rotary_interleaved = 1", ", c, z", WIDE),
    "grouped, rotary, of some": grouped(", do_rotary = 1", ", c, z", WIDE),
    "grouped, with a score of 0 for no key": grouped(", smooth_softmax = 1"),
    "grouped, with sinks": grouped("", ", , , , , m", f"{GROUPED}, float[4] m"),
    "grouped, with sinks, in a window, scores with a limit": grouped(
        ", local_window_size = 2, softcap = 1.5", ", , , , b, m", f"{GROUPED}, float[1, 4, S, total] b, float[4] m"
    ),
    "several heads": attention(FLAT4, f"y = {MULTI} <num_heads = 2> (q, k, v)"),
    "several heads, with a bias": attention(
        f"{FLAT4}, float[1, 2, S, T] m", f"y = {MULTI} <num_heads = 2, scale = 0.3> (q, k, v, , , m)"
    ),
    "several heads, of keys and values as a cache has them": attention(
        "float[N, S, 16] q, float[N, 2, T, 8] k, float[N, 2, T, 8] v", f"y = {MULTI} <num_heads = 2> (q, k, v)"
    ),
    "several heads, causal": attention(
        FLAT4.replace("T", "S"), f"y = {MULTI} <num_heads = 2, unidirectional = 1> (q, k, v)"
    ),
    "several heads, causal, with a cache": attention(
        f"{FLAT4.replace('T', 'S')}, {PAST.replace('4', '8')}",
        f"y, ck, cv = {MULTI} <num_heads = 2, unidirectional = 1> (q, k, v, , , , pk, pv)",
    ),
    "grouped, packed": grouped(", do_rotary = 1", ", c, z", PACKED, ", "),
}


@pytest.mark.parametrize("model", PLAIN.values(), ids=PLAIN)
def test_plain_operators_give_the_same(model: Model) -> None:
    sizes = {**SIZES, "N": 1} if "GroupQueryAttention" in operators(model) else SIZES
    outcome = check_close(PASS, model, sizes, 1e-5)
    assert not {"Attention", "GroupQueryAttention", "MultiHeadAttention"} & set(operators(outcome.model))
    assert outcome.changes == ("1 attention computed by plain operators",)


PLACED = grouped(", do_rotary = 1", ", c, z, at", f"{GROUPED}, int64[N, S] at")
NEIGHBOURS = grouped(", do_rotary = 1, rotary_interleaved = 1", ", c, z, at", f"{GROUPED}, int64[N, S] at")
PROMPT = random_model(
    f"""g (float[N, S, 64] q, float[N, S, 32] k, int64[N, S] at) => (y, ck, cv) <int64[1] axis = {{0}}> {{
        {LENGTHS.replace("d = Shape (pk) p = Gather (d, two)", "p = Identity (zero)")}
        y, ck, cv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 1>
            (q, k, k, , , lengths, total, c, z, at)
    }}""",
    21,
    c=(16, 8),
    z=(16, 8),
)


@pytest.mark.parametrize(
    ("model", "rows", "tokens", "past"),
    [(PROMPT, 2, 3, 0), (PLACED, 2, 3, 0), (PLACED, 1, 3, 2), (PLACED, 2, 1, 2), (NEIGHBOURS, 2, 1, 2)],
)
def test_positions_that_are_given_count_as_in_onnxruntime(model: Model, rows: int, tokens: int, past: int) -> None:
    """Of a prompt it reads the first one alone; after a past, those of each row and token."""
    plain = PASS.run(model).model
    assert "GroupQueryAttention" not in operators(plain)
    feeds = feeds_of(model, {"N": rows, "S": tokens, "past": past})
    feeds["at"] = np.random.default_rng(1).integers(0, 12, (rows, tokens))
    for before, after in zip(run(model, feeds), run(plain, feeds), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.abs(before).max(initial=0.0))


@pytest.mark.parametrize("bias", [-np.inf, np.finfo(np.float32).min])
def test_rows_without_keys_of_several_heads_are_those_of_a_softmax(bias: float) -> None:
    model = PLAIN["several heads, with a bias"]
    feeds = feeds_of(model, SIZES)
    feeds["m"] = np.full((1, 2, 3, 5), bias, np.float32)
    (before,), (after,) = run(model, feeds), run(PASS.run(model).model, feeds)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)  # NaN where all is -inf


def test_a_bias_of_a_grouped_attention_is_as_long_as_the_keys() -> None:
    model = PLAIN["grouped, with a bias, where masks may be short"]
    assert "Pad" not in operators(PASS.run(model).model)


KEPT = {
    "it has a bias, a mask of keys or lengths of its own: export it without them": attention(
        f"{FLAT4}, float[48] b", f"y = {MULTI} <num_heads = 2> (q, k, v, b)"
    ),
    "it gives its scores too: export it without a fourth output": random_model(
        f"g ({HEADS}) => (y, s) {{ y, , , s = Attention (q, k, v) }}", 23
    ),
    "it has lengths of its own: export it without nonpad_kv_seqlen": random_model(
        f"g ({HEADS}, int64[N] n) => (y) {{ y = Attention (q, k, v, , , , n) }}", 24
    ),
    "its softmax has a dtype of its own: export it without softmax_precision": random_model(
        f"g ({HEADS}) => (y) {{ y = Attention <softmax_precision = 11> (q, k, v) }}", 23
    ),
    "its heads and their size are not known numbers": attention(
        "float[N, H, S, 4] q, float[N, H, S, 4] k, float[N, H, S, 4] v", "y = Attention (q, k, v)"
    ),
    "its sliding_window_cache is set, which has no plain spelling here": grouped(
        ", sliding_window_cache = 1, local_window_size = 2"
    ),
    "it has scales of its own: export GroupQueryAttention without them": grouped(
        "", ", , , , , , m", f"{GROUPED}, float[1] m"
    ),
    "its tables of rotary embeddings are no matrices": grouped(
        ", do_rotary = 1", ", r, r", f"{GROUPED}, float[16, 8, 1] r"
    ),
    "its lengths may leave out padding - where there is none, run decompose-attention{unpadded=true}": random_model(
        f"""g ({GROUPED}, int32[N] lengths, int32 total) => (y, ck, cv) {{
            y, ck, cv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
                (q, k, v, pk, pv, lengths, total) }}""",
        21,
    ),
    "its attributes, keys and values do not have the same heads": attention(
        "float[N, 4, S, 4] q, float[N, 4, S, 4] k, float[N, 2, S, 4] v", "y = Attention (q, k, v)"
    ),
    "its keys and values do not have as many heads as its attributes say": attention(
        "float[N, S, 16] q, float[N, 4, T, 8] k, float[N, 4, T, 8] v", f"y = {MULTI} <num_heads = 2> (q, k, v)"
    ),
    "its queries and keys are not heads of one size": attention(
        "float[N, 2, S, 4] q, float[N, 2, S, 6] k, float[N, 2, S, 4] v", "y = Attention (q, k, v)"
    ),
    "its mask is not known to be of booleans, or of the dtype of its scores, and of rank 1 to 4": attention(
        f"{HEADS}, float16[S, S] m", "y = Attention (q, k, v, m)"
    ),
    "it has a window, which has no plain spelling here": random_model(
        f"g ({HEADS}) => (y) {{ y = Attention <left_window_size = 2> (q, k, v) }}", 25
    ),
    "queries, keys and values are not three tensors of rank 3 or of rank 4, or one of rank 3": attention(
        "float[N, 2, S, 4] q, float[N, S, 8] k, float[N, S, 8] v", "y = Attention <kv_num_heads = 2> (q, k, v)"
    ),
}


@pytest.mark.parametrize(("reason", "model"), KEPT.items(), ids=KEPT)
def test_it_stays(reason: str, model: Model) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert [text.partition(": ")[2] for text in reasons(outcome)] == [reason]


def test_heads_apart_are_not_packed() -> None:
    outcome = PASS.run(
        grouped("", "", "float[N, 4, S, 16] q, float[N, 2, past, 16] pk, float[N, 2, past, 16] pv", ", ")
    )
    assert ["queries, keys and values are not three tensors" in text for text in reasons(outcome)] == [True]


@pytest.mark.parametrize("dims", ["S", 'N, "S + 1"', "N, S, 1"])
def test_it_stays_where_positions_are_not_those_of_its_tokens(dims: str) -> None:
    model = grouped(", do_rotary = 1", ", c, z, at", f"{GROUPED}, int64[{dims}] at")
    outcome = PASS.run(model)
    assert outcome.model is model
    assert ["its positions are not those of its tokens" in text for text in reasons(outcome)] == [True]


ENCODER = """
    agraph (float[N, 2, S, 4] q, float[N, 2, T, 4] k, bool[N, 1, S, T] attention_mask) => (float[N, 2, S, 4] y)
    <float zero = {0}, float floor = {FLOOR}> {
        MASK
        y = Attention (q, k, k, mask)
    }
"""


@pytest.mark.parametrize(("floor", "is_guarded"), [("-1e9", False), ("-3.4028235e38", True)])
def test_rows_are_looked_at_where_a_mask_may_hide_all(floor: str, is_guarded: bool) -> None:
    text = ENCODER.replace("FLOOR", floor).replace("MASK", "mask = Where (attention_mask, zero, floor)")
    model = model_of(text, 23)
    outcome = check_close(PASS, model, {"N": 2, "S": 3, "T": 5}, 1e-5)
    assert ("ReduceMax" in operators(outcome.model)) is is_guarded


@pytest.mark.cases("mask = Where (attention_mask, zero, floor)")
@pytest.mark.parametrize("mask", ["mask = Identity (attention_mask)", "mask = Where (attention_mask, zero, floor)"])
def test_the_proof_tries_rows_without_keys(mask: str, tmp_path: Path) -> None:
    model = model_of(ENCODER.replace("FLOOR", "-3.4028235e38").replace("MASK", mask), 23)
    report = rewrite_file(model, tmp_path / "out.onnx", "decompose-attention")
    assert report.proof is not None
    assert report.proof.passed
    assert "that hide all" in report.proof.coverage


@pytest.mark.cases("float[h, S, T] m-24")
@pytest.mark.parametrize("opset", [pytest.param(23, marks=pytest.mark.slow), 24])
@pytest.mark.parametrize("mask", ["bool[S, T] m", "float[h, S, T] m", "float[c, d] m"])
def test_the_proof_finds_the_lengths_that_the_mask_needs(mask: str, opset: int, tmp_path: Path) -> None:
    """A mask's own names say nothing; the node needs its last dims to be the numbers of queries and keys."""
    inputs = f"float[N, 2, S, 4] q, float[N, 2, T, 4] k, float[N, 2, T, 6] v, {mask}"
    model = random_model(f"g ({inputs}) => (y) {{ y = Attention (q, k, v, m) }}", opset)
    report = rewrite_file(model, tmp_path / "out.onnx", "decompose-attention")
    assert report.proof is not None
    assert report.proof.passed
    assert len(report.proof.runs) > 10


FROM_MASK = LENGTHS.replace(
    "total = Cast <to = 6> (t)", "total = Cast <to = 6> (t) ones = ReduceSum <keepdims = 0> (attention_mask, axis)"
)
FROM_MASK = FROM_MASK[: FROM_MASK.index("last =")] + "lasts = Sub (ones, one) lengths = Cast <to = 6> (lasts)"


def test_a_grouped_attention_is_proven_without_padding_where_that_is_asked_for(tmp_path: Path) -> None:
    text = f"""g ({GROUPED}, int64[N, "past + S"] attention_mask) => (y, ck, cv) <int64[1] axis = {{1}}> {{ {FROM_MASK}
        y, ck, cv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
            (q, k, v, pk, pv, lengths, total)
    }}"""
    model = random_model(text, 21)
    assert "its lengths may leave out padding" in reasons(PASS.run(model))[0]
    report = rewrite_file(model, tmp_path / "out.onnx", "decompose-attention{unpadded=true}")
    assert report.proof is not None
    assert report.proof.passed
    assert "masks without padding" in report.proof.coverage
    assert "masks with padding, of which the rewrite takes there to be none" in report.proof.proven()
