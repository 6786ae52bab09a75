"""Attention and rotary embeddings: the operators of opset 23 and those of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping

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
    present = [Tensor(dtype, (*part[:2], total, part[3])) for part in (key, value)]
    return [Tensor(dtype, result), *present, Tensor(dtype, (*query[:3], total))]


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
    """com.microsoft Attention and QAttention: input and one weight for queries, keys and values."""
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
    """MultiHeadAttention(query, key, value, bias, mask, attention_bias, past_key, past_value)."""
    dims, heads = site.dims(), const(site.integer("num_heads", 1))
    dtype = site.tensor().dtype
    if len(dims) == 5:  # queries, keys and values in one
        return [Tensor(dtype, (dims[0], dims[1], dims[2] * dims[4]))]
    key = site.dims(1) if site.has(1) else ()
    if len(key) == 5:  # keys and values in one
        return [Tensor(dtype, dims)]
    if len(dims) != 3 or not site.has(2) or len(key) not in (3, 4):
        raise UnknownError("a layout of keys and values that no rule knows")
    value = site.dims(2)
    hidden = value[2] if len(value) == 3 else value[1] * value[3]
    length = key[1] if len(key) == 3 else key[2]
    total = length + (site.dims(6)[2] if site.has(6) else 0)
    present = [
        Tensor(dtype, (dims[0], heads, total, site.quotient(size, heads, "the hidden size")))
        for size in (dims[2], hidden)
    ]
    return [Tensor(dtype, (dims[0], dims[1], hidden)), *present, Tensor(dtype, (dims[0], heads, dims[1], total))]


def grouped(site: Site) -> list[Tensor]:
    """GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, ...)."""
    dims = site.dims()
    heads, groups = site.integer("num_heads", 1), site.integer("kv_num_heads", 1)
    dtype = site.tensor().dtype
    head = site.quotient(dims[2], const(heads if site.has(1) else heads + 2 * groups), "the hidden size")
    result = Tensor(dtype, (dims[0], dims[1], head * heads))
    past = site.dims(3)[2] if site.has(3) else const(0)
    if site.data(6) is not None:
        total = maximum(past, Expr.of(site.values(6)[0]))  # type: ignore[arg-type]
    else:
        total = site.fresh(f"the value of {site.name(6)} is unknown")
    present = Tensor(site.tensor(3).dtype if site.has(3) else dtype, (dims[0], groups, total, head))
    return [result, present, present]


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
    sequences = Tensor(site.tensor().dtype, (batch, kept, length))
    return [sequences, Tensor(1, (batch, kept))]


def greedy(site: Site) -> Tensor:
    """GreedySearch, Sampling(ids, max_length, ...)."""
    return Tensor(site.tensor().dtype, (site.dims()[0], _number(site, 1)))


def _number(site: Site, index: int) -> Expr:
    if site.data(index) is None:
        return site.fresh(f"the value of {site.name(index)} is unknown")
    return Expr.of(site.values(index)[0])  # type: ignore[arg-type]


RULES: Mapping[str, Rule] = {
    "Attention": attention,
    "RotaryEmbedding": rotary,
    "com.microsoft.Attention": packed,
    "com.microsoft.QAttention": packed,
    "com.microsoft.MultiHeadAttention": multi_head,
    "com.microsoft.GroupQueryAttention": grouped,
    "com.microsoft.RotaryEmbedding": rotary,
    "com.microsoft.RelativePositionBias": relative_bias,
    "com.microsoft.GatedRelativePositionBias": gated_relative_bias,
    "com.microsoft.BeamSearch": beams,
    "com.microsoft.GreedySearch": greedy,
    "com.microsoft.Sampling": greedy,
}
