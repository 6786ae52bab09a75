"""Attention and rotary embeddings: the operators of opset 23 and those of com.microsoft.

Where past and present share a buffer, the present is as long as the past, and only a value at run time says how much of
it is filled. Source: onnxruntime's docs/ContribOperators.md, and what its CPU kernels give.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.algebra import maximum
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.site import Rule, Site, UnknownError
from graphkit.shapes.tensor import Dims, Tensor

__all__ = ["RULES"]


def attention(site: Site) -> list[Tensor]:
    """Attention of opset 23: Q, K, V of rank 4, or of rank 3 with the heads in attributes."""
    query, key, value = (_heads(site, index, name) for index, name in enumerate(("q", "kv", "kv")))
    dtype = site.tensor().dtype
    total = key[2] + (site.dims(4)[2] if site.has(4) else 0)
    result: tuple[Expr, ...] = (*query[:3], value[3])
    if len(site.dims()) == 3:
        result = (query[0], query[2], query[1] * value[3])
    keys, values = (Tensor(site.tensor(i).dtype, (*part[:2], total, part[3])) for i, part in ((1, key), (2, value)))
    return [Tensor(dtype, result), keys, values, Tensor(dtype, (*query[:3], total))]


def _heads(site: Site, index: int, name: str) -> Dims:
    """Return batch, heads, length and head size."""
    dims = site.dims(index)
    if len(dims) == 4:
        return dims
    heads = site.integer(f"{name}_num_heads", 0)
    if len(dims) != 3 or heads < 1:
        raise UnknownError("the number of heads is unknown")
    return dims[0], const(heads), dims[1], site.quotient(dims[2], const(heads), "the hidden size")


def packed(site: Site) -> list[Tensor]:
    """com.microsoft Attention and its kin: input and one weight for queries, keys and values."""
    dims = site.dims()
    past = 8 if site.node.op_type == "QAttention" else 4
    sizes = site.integers("qkv_hidden_sizes")
    hidden = const(sizes[2]) if sizes else site.quotient(site.dims(1)[-1], const(3), "the weight's columns")
    dtype = site.tensor(3).dtype if past == 8 else site.tensor().dtype
    result = Tensor(dtype, (dims[0], dims[1], hidden))
    heads = const(site.integer("num_heads", 1))
    head = site.quotient(hidden, heads, "the hidden size")
    before = site.dims(past)[3] if site.has(past) else const(0)
    length = before if site.integer("past_present_share_buffer", 0) else before + dims[1]
    return [result, Tensor(dtype, (2, dims[0], heads, length, head))]


def multi_head(site: Site) -> list[Tensor]:
    """MultiHeadAttention(query, key, value, bias, mask, attention_bias, past_key, past_value, past_length, ...)."""
    dims, dtype = site.dims(), site.tensor().dtype
    if len(dims) == 5:  # queries, keys and values in one
        return [Tensor(dtype, (dims[0], dims[1], dims[2] * dims[4]))]
    if site.has(1) and len(site.dims(1)) == 5:  # keys and values in one
        return [Tensor(dtype, dims)]
    return _separate(site, 6, shares=site.has(6) and site.has(8))


def decoder(site: Site) -> list[Tensor]:
    """DecoderMaskedMultiHeadAttention(query, key, value, mask, attention_bias, past_key, past_value, past_length)."""
    if site.has(1):
        return _separate(site, 5, shares=bool(site.integer("past_present_share_buffer", 0)))
    dims, heads = site.dims(), site.integer("num_heads", 1)  # queries, keys and values side by side
    shares = bool(site.integer("past_present_share_buffer", 0))
    present, total = _lengths(site, dims[1], 5, shares)
    caches = [Tensor(site.tensor(i).dtype, (dims[0], heads, present, site.dims(i)[3])) for i in (5, 6)]
    result = (dims[0], dims[1], site.dims(6)[3] * heads)
    dtype = site.tensor().dtype
    return [Tensor(dtype, result), *caches, Tensor(dtype, (dims[0], heads, dims[1], total))]


def _separate(site: Site, past: int, shares: bool) -> list[Tensor]:
    """Return the outputs for queries of rank 3, and keys and values of rank 3, or of rank 4 as a cache has them."""
    dims, heads, dtype = site.dims(), const(site.integer("num_heads", 1)), site.tensor().dtype
    key = site.dims(1) if site.has(1) else ()
    if len(dims) != 3 or not site.has(2) or len(key) not in (3, 4):
        raise UnknownError("a layout of keys and values that no rule knows")
    value = site.dims(2)
    hidden = value[2] if len(value) == 3 else value[1] * value[3]
    present, total = _lengths(site, key[1] if len(key) == 3 else key[2], past, shares)
    caches = [
        Tensor(dtype, (dims[0], heads, present, site.quotient(size, heads, "the hidden size")))
        for size in (dims[2], hidden)
    ]
    return [Tensor(dtype, (dims[0], dims[1], hidden)), *caches, Tensor(dtype, (dims[0], heads, dims[1], total))]


def _lengths(site: Site, new: Expr, past: int, shares: bool) -> tuple[Expr, Expr]:
    """Return the lengths of the present cache and of past and new together; a buffer's is filled as `past + 2` says."""
    before = site.dims(past)[2] if site.has(past) else const(0)
    if shares:
        return before, _number(site, past + 2) + new
    return before + new, before + new


def grouped(site: Site) -> list[Tensor]:
    """GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, ...)."""
    dims = site.dims()
    heads, groups = site.integer("num_heads", 1), site.integer("kv_num_heads", 1)
    dtype = site.tensor().dtype
    head = site.quotient(dims[2], const(heads if site.has(1) else heads + 2 * groups), "the hidden size")
    result = Tensor(dtype, (dims[0], dims[1], head * heads))
    past, total = site.dims(3)[2] if site.has(3) else const(0), _number(site, 6)
    length = past if site.integer("sliding_window_cache", 0) else maximum(past, total)
    present = Tensor(dtype, (dims[0], groups, length, head))
    if site.has(3):  # a cache of 4 bits holds two numbers in one
        present = Tensor(site.tensor(3).dtype, (dims[0], groups, length, site.dims(3)[3]))
    return [result, present, present, Tensor(dtype, (dims[0], heads, dims[1], total))]


def sparse(site: Site) -> list[Tensor]:
    """SparseAttention(query, key, value, past_key, past_value, ...): past and present share a buffer."""
    dims, heads, groups = site.dims(), site.integer("num_heads", 1), site.integer("kv_num_heads", 1)
    count = heads if site.has(1) else heads + 2 * groups
    hidden = site.quotient(dims[2], const(count), "the hidden size") * heads
    caches = [Tensor(site.tensor(index).dtype, site.dims(index)) for index in (3, 4)]
    return [Tensor(site.tensor().dtype, (dims[0], dims[1], hidden)), *caches]


def linear(site: Site) -> list[Tensor]:
    """LinearAttention(query, key, value, past_state, ...): a state of one matrix a head."""
    groups = site.integer("kv_num_heads", 0)
    heads = max(site.integer("q_num_heads", 0), groups)
    if groups < 1:
        raise UnknownError("the number of heads is unknown")
    keys, values = (site.quotient(site.dims(i)[2], const(groups), "the hidden size") for i in (1, 2))
    batch, length, _ = site.dims()
    state = site.dims(3) if site.has(3) else (batch, const(groups), keys, values)
    if not site.has(3) and site.integer("state_window", 0):
        state = (const(site.integer("state_window", 0)), *state)
    kept = Tensor(site.tensor(3).dtype if site.has(3) else 0, state)
    return [Tensor(site.tensor().dtype, (batch, length, values * heads)), kept]


def convolution(site: Site) -> list[Tensor]:
    """CausalConvWithState(input, weight, bias, past_state): the state keeps its dims."""
    if not site.has(3):
        return [Tensor(site.tensor().dtype, site.dims())]
    return [Tensor(site.tensor().dtype, site.dims()), Tensor(site.tensor(3).dtype, site.dims(3))]


def rotary(site: Site) -> Tensor:
    """The input's dims."""
    return Tensor(site.tensor().dtype, site.dims())


def relative_bias(site: Site) -> Tensor:
    """RelativePositionBias(table, query_length, key_length): one batch, heads, both lengths."""
    lengths = [Expr.of(site.values(index)[0]) for index in (1, 2)]  # type: ignore[arg-type]
    return Tensor(site.tensor().dtype, (1, site.dims()[1], *lengths))


def gated_relative_bias(site: Site) -> Tensor:
    """GatedRelativePositionBias(query, ...): batch, heads, length, length."""
    dims = site.dims()
    return Tensor(site.tensor().dtype, (dims[0], site.integer("num_heads", 1), dims[1], dims[1]))


def beams(site: Site) -> list[Tensor]:
    """BeamSearch(ids, max_length, min_length, num_beams, num_return_sequences, ...)."""
    batch, length = site.dims()[0], _number(site, 1)
    kept = _number(site, 4)
    scores = site.tensor(5).dtype if site.has(5) else 0  # that of the length penalty
    return [Tensor(TensorProto.INT32, (batch, kept, length)), Tensor(scores, (batch, kept))]


def greedy(site: Site) -> Tensor:
    """GreedySearch, Sampling(ids, max_length, ...)."""
    return Tensor(TensorProto.INT32, (site.dims()[0], _number(site, 1)))


def _number(site: Site, index: int) -> Expr:
    if site.data(index) is None:
        return site.fresh(f"the value of {site.name(index)} is unknown")
    return Expr.of(site.values(index)[0])  # type: ignore[arg-type]


RULES: Mapping[str, Rule] = {
    "Attention": attention,
    "RotaryEmbedding": rotary,
    "com.microsoft.Attention": packed,
    "com.microsoft.DecoderMaskedSelfAttention": packed,
    "com.microsoft.QAttention": packed,
    "com.microsoft.MultiHeadAttention": multi_head,
    "com.microsoft.DecoderMaskedMultiHeadAttention": decoder,
    "com.microsoft.GroupQueryAttention": grouped,
    "com.microsoft.SparseAttention": sparse,
    "com.microsoft.LongformerAttention": rotary,
    "com.microsoft.RotaryEmbedding": rotary,
    "com.microsoft.MRotaryEmbedding": rotary,
    "com.microsoft.LinearAttention": linear,
    "com.microsoft.CausalConvWithState": convolution,
    "com.microsoft.RelativePositionBias": relative_bias,
    "com.microsoft.GatedRelativePositionBias": gated_relative_bias,
    "com.microsoft.BeamSearch": beams,
    "com.microsoft.GreedySearch": greedy,
    "com.microsoft.Sampling": greedy,
    "com.microsoft.WhisperBeamSearch": beams,
}
