"""Products of matrices, recurrent layers and attention, with their quantised and fused forms.

Where past and present of an attention share a buffer, the present is as long as the past, and only a value at run time
says how much of it is filled. Source: onnxruntime's docs/ContribOperators.md, and the results of its CPU kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from graphkit.graph.operator_traits import operator_set
from graphkit.ops.preconditions import Bools, Condition, Ints, Related, has_rest
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import Dims, Tensor
from graphkit.symbolic.algebra import Relation, maximum
from graphkit.symbolic.expr import Expr, const

MS = "com.microsoft"
TABLE = "more positions than the table has"
INNER = "the inner dims of a product"
PAST = ("past keys", "past values")


def matmul_dims(ctx: InferenceContext, left: Dims, right: Dims) -> Dims:
    """Return the dims of a product as numpy's matmul has them."""
    if not left or not right:
        raise ctx.impossible("a product with a scalar", "a product with a scalar")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    ctx.same(left[-1], right[-2] if len(right) > 1 else right[0], INNER, "dimension mismatch")
    batch = ctx.broadcast(left[:-2], right[:-2], says="cannot broadcast on dim")
    return (*batch, *rows, *columns)


def _product_rule(dtype: int | None = None, *, like: int = 0, right: int = 1) -> Rule:
    """Return the rule of a product of input 0 and another one, of a dtype, or of that of an input."""

    def product(ctx: InferenceContext) -> Tensor:
        result_dtype = ctx.tensor(like).dtype if dtype is None else dtype
        return Tensor(result_dtype, matmul_dims(ctx, ctx.dims(0), ctx.dims(right)))

    return product


matmul, matmul_integer = _product_rule(), _product_rule(TensorProto.INT32)


def fused_matmul(ctx: InferenceContext) -> Tensor:
    """Infer FusedMatMul: either factor may be transposed; with transBatch, the batch dims come after the rows."""
    factors = []
    for index, letter in enumerate("AB"):
        dims = ctx.dims(index)
        if ctx.attr(f"transBatch{letter}", 0) and len(dims) > 2:
            dims = (*dims[1:-1], dims[0], dims[-1])
        if ctx.attr(f"trans{letter}", 0) and len(dims) > 1:
            dims = (*dims[:-2], dims[-1], dims[-2])
        factors.append(dims)
    return ctx.like(matmul_dims(ctx, *factors))


def matmul_blocks(ctx: InferenceContext) -> Tensor:
    """Infer MatMulNBits and MatMulBnb4: the weight is packed, and the attributes K and N are its dims."""
    dims = ctx.dims()
    ctx.same(dims[-1], const(ctx.attr("K", 0)), INNER)
    return ctx.like((*dims[:-1], ctx.attr("N", 0)))


def _projection_rule(*sizes: str) -> Rule:
    """Return the rule of projections to sizes that attributes give, and of what keeps the dims of the input."""
    return lambda ctx: [*(ctx.like((*ctx.dims()[:-1], ctx.attr(size, 0))) for size in sizes), ctx.like(ctx.dims())]


def infer_distances(ctx: InferenceContext) -> Tensor:
    """Infer CDist(A, B): the distances from each row of A to each row of B."""
    (rows, size), (others, size_of_others) = ctx.dims(0), ctx.dims(1)
    ctx.same(size, size_of_others, "the sizes of rows")
    return Tensor(ctx.tensor().dtype, (rows, others))


def infer_qgemm(ctx: InferenceContext) -> Tensor:
    """Infer QGemm(A, a_scale, a_zero, B, b_scale, b_zero, C, y_scale, y_zero): without y_zero, it gives floats."""
    return Tensor(ctx.tensor(8).dtype if ctx.has(8) else TensorProto.FLOAT, _gemm_dims(ctx, 0, 3))


def _gemm_dims(ctx: InferenceContext, left: int, right: int) -> Dims:
    first, second = ctx.dims(left), ctx.dims(right)
    if len(first) != 2 or len(second) != 2:
        raise UnknownError("a factor is not a matrix")
    rows, inner = first[::-1] if ctx.attr("transA", 0) else first
    inner_right, columns = second[::-1] if ctx.attr("transB", 0) else second
    ctx.same(inner, inner_right, INNER, "Dimension mismatch")
    return rows, columns


def infer_einsum(ctx: InferenceContext) -> Tensor:
    """Infer Einsum: each letter is a dim, and equal letters are equal dims."""
    equation = re.sub(r"\s", "", ctx.attr("equation", ""))
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ctx.inputs):
        raise UnknownError("the equation does not fit the inputs")
    letters_of: dict[str, list[Dims]] = {}
    ellipses: list[Dims] = []
    for index, term in enumerate(terms):
        dims, (before, dots, after) = ctx.dims(index), term.partition("...")
        named = len(before) + len(after)
        if named > len(dims) or (not dots and named < len(dims)):
            raise ctx.impossible(f"the term '{term}' for rank {len(dims)}", "the equation does not fit the ranks")
        if dots:
            ellipses.append(dims[len(before) : len(dims) - len(after)])
        tail = dims[len(dims) - len(after) :]
        for letter, dim in [*zip(before, dims, strict=False), *zip(after, tail, strict=True)]:
            letters_of.setdefault(letter, []).append((dim,))
    says = "could not be broadcast"
    sizes = {letter: ctx.broadcast(*each, says=says)[0] for letter, each in letters_of.items()}
    around = ctx.broadcast(*ellipses, says=says) if ellipses else ()
    if not arrow:
        letters = left.replace(".", "").replace(",", "")
        right = ("..." if ellipses else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    before, _, after = right.partition("...")
    if not set(before + after) <= sizes.keys():
        raise UnknownError("the equation's output has a letter of its own")
    middle = around if "..." in right else ()
    return ctx.like((*(sizes[c] for c in before), *middle, *(sizes[c] for c in after)))


def recurrent_sizes(ctx: InferenceContext) -> tuple[Expr, Expr, Expr]:
    """Return the batch, the number of directions and the hidden size of an RNN, a GRU or an LSTM."""
    hidden = const(ctx.attr("hidden_size", 0)) if "hidden_size" in ctx.attributes else ctx.dims(2)[-1]
    directions = const(2 if ctx.attr("direction", "forward") == "bidirectional" else 1)
    return ctx.dims()[0 if ctx.attr("layout", 0) else 1], directions, hidden


def infer_recurrent(ctx: InferenceContext) -> list[Tensor]:
    """Infer RNN, GRU and LSTM: all hidden states, the last one, and the last cell of an LSTM."""
    dims, (batch, directions, hidden) = ctx.dims(), recurrent_sizes(ctx)
    every, last = (dims[0], directions, batch, hidden), (directions, batch, hidden)
    if ctx.attr("layout", 0):  # batch first
        every, last = (batch, dims[1], directions, hidden), (batch, directions, hidden)
    return [ctx.like(result_dims) for result_dims in (every, last, last)]


def _need_both(ctx: InferenceContext, index: int, *names: str) -> None:
    """Note a fault where one of an input and the next one is given, and not the other."""
    if (is_first := ctx.has(index)) != ctx.has(index + 1):
        given, missing = names if is_first else reversed(names)
        ctx.note_fault(f"{given} without {missing}")


def infer_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer Attention of opset 23: Q, K and V have rank 4, or rank 3 with the number of heads in attributes."""
    query, key, value = (_head_dims(ctx, index, name) for index, name in enumerate(("q", "kv", "kv")))
    dtype = ctx.tensor().dtype
    _need_both(ctx, 4, *PAST)
    ctx.same(key[2], value[2], "the lengths of keys and values", "inconsistent kv_sequence_length")
    total = key[2] + (ctx.dims(4)[2] if ctx.has(4) else 0)
    if ctx.has(3) and ctx.opset < 25 and len(mask := ctx.dims(3)) > 1:  # later ones run as the function that they are
        problem = "the lengths of the mask and of {}"
        for length, needed, of, name in ((mask[-2], query[2], "queries", "q"), (mask[-1], total, "all keys", "total")):
            if length != needed and not (name == "total" and ctx.has(6)):  # nonpad_kv_seqlen: the rest is masked
                says = f"inconsistent {name}_sequence_length"
                ctx.require(Related(Relation.equal(length, needed), problem.format(of), says))
    is_flat = len(ctx.dims()) == 3
    result = (query[0], query[2], query[1] * value[3]) if is_flat else (*query[:3], value[3])
    keys, values = (Tensor(ctx.tensor(i).dtype, (*part[:2], total, part[3])) for i, part in ((1, key), (2, value)))
    return [Tensor(dtype, result), keys, values, Tensor(dtype, (*query[:3], total))]


def _head_dims(ctx: InferenceContext, index: int, name: str) -> Dims:
    dims = ctx.dims(index)
    if len(dims) == 4:
        return dims
    heads = ctx.attr(f"{name}_num_heads", 0)
    if len(dims) != 3 or heads < 1:
        raise UnknownError("the number of heads is unknown")
    return dims[0], const(heads), dims[1], ctx.quotient(dims[2], const(heads), "the hidden size")


def infer_packed_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer com.microsoft Attention and its kin, where one weight makes queries, keys and values."""
    dims = ctx.dims()
    mask, past = (5, 8) if ctx.node.op_type == "QAttention" else (3, 4)
    sizes = ctx.attr("qkv_hidden_sizes", ())
    hidden = const(sizes[2]) if sizes else ctx.quotient(ctx.dims(1)[-1], const(3), "the weight's columns")
    dtype = ctx.tensor(3 if past == 8 else 0).dtype
    result = Tensor(dtype, (dims[0], dims[1], hidden))
    heads = const(ctx.attr("num_heads", 1))
    head = ctx.quotient(hidden, heads, "the hidden size")
    before = ctx.dims(past)[3] if ctx.has(past) else const(0)
    shares = ctx.attr("past_present_share_buffer", 0)
    if not shares and ctx.has(mask) and len(ctx.dims(mask)) == 2:
        what = "the lengths of the mask, and of past and new together,"
        ctx.same(ctx.dims(mask)[1], before + dims[1], what, "mask_index")
    return [result, Tensor(dtype, (2, dims[0], heads, before if shares else before + dims[1], head))]


def multi_head(ctx: InferenceContext) -> list[Tensor]:
    """Infer MultiHeadAttention(query, key, value, bias, mask, attention_bias, past_key, past_value, past_length)."""
    dims, dtype = ctx.dims(), ctx.tensor().dtype
    if len(dims) == 5:  # queries, keys and values in one
        return [Tensor(dtype, (dims[0], dims[1], dims[2] * dims[4]))]
    if ctx.has(1) and len(ctx.dims(1)) == 5:  # keys and values in one
        return [Tensor(dtype, dims)]
    if ctx.has(1) and ctx.has(2):
        keys, values = ctx.dims(1), ctx.dims(2)
        for other in (keys, values):
            ctx.same(dims[0], other[0], "the batches of queries, keys and values", "shall have same")
        if len(keys) == len(values) == 3:
            ctx.same(keys[1], values[1], "the lengths of keys and values", "(kv_sequence_length)")
        elif len(keys) == len(values) == 4:
            for mine, theirs in zip(keys[1:], values[1:], strict=True):
                ctx.same(mine, theirs, "the dims of keys and values", "shall have same shape")
    return _infer_separate(ctx, 6, shares=ctx.has(6) and ctx.has(8))


def infer_decoder_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer DecoderMaskedMultiHeadAttention(query, key, value, mask, bias, past_key, past_value, past_length)."""
    if ctx.has(1):
        return _infer_separate(ctx, 5, shares=bool(ctx.attr("past_present_share_buffer", 0)))
    dims, heads = ctx.dims(), ctx.attr("num_heads", 1)  # queries, keys and values side by side
    shares = bool(ctx.attr("past_present_share_buffer", 0))
    present, total = _cache_lengths(ctx, dims[1], 5, shares)
    caches = [Tensor(ctx.tensor(i).dtype, (dims[0], heads, present, ctx.dims(i)[3])) for i in (5, 6)]
    result = ctx.like((dims[0], dims[1], ctx.dims(6)[3] * heads))
    return [result, *caches, ctx.like((dims[0], heads, dims[1], total))]


def _infer_separate(ctx: InferenceContext, past: int, shares: bool) -> list[Tensor]:
    """Return the outputs for queries of rank 3, and keys and values of rank 3, or of rank 4 as a cache has them."""
    dims, heads = ctx.dims(), const(ctx.attr("num_heads", 1))
    key = ctx.dims(1) if ctx.has(1) else ()
    if len(dims) != 3 or not ctx.has(2) or len(key) not in (3, 4):
        raise UnknownError("a layout of keys and values that no rule knows")
    value = ctx.dims(2)
    hidden = value[2] if len(value) == 3 else value[1] * value[3]
    present, total = _cache_lengths(ctx, key[1] if len(key) == 3 else key[2], past, shares)
    _need_both(ctx, past, *PAST)
    widths = [ctx.quotient(size, heads, "the hidden size") for size in (dims[2], hidden)]
    caches = [ctx.like((dims[0], heads, present, width)) for width in widths]
    return [ctx.like((dims[0], dims[1], hidden)), *caches, ctx.like((dims[0], heads, dims[1], total))]


def _cache_lengths(ctx: InferenceContext, new: Expr, past: int, shares: bool) -> tuple[Expr, Expr]:
    """Return the lengths of the present cache and of past and new together; a buffer's is filled as `past + 2` says."""
    before = ctx.dims(past)[2] if ctx.has(past) else const(0)
    return (before, ctx.size(past + 2) + new) if shares else (before + new, before + new)


def infer_grouped_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, ...)."""
    dims, dtype, groups = ctx.dims(), ctx.tensor().dtype, ctx.attr("kv_num_heads", 1)
    heads, head = _head_size(ctx, groups)
    result = Tensor(dtype, (dims[0], dims[1], head * heads))
    past, total = ctx.dims(3)[2] if ctx.has(3) else const(0), ctx.size(6)
    for index, names in ((1, ("keys", "values")), (3, PAST), (7, ("cosines", "sines"))):
        _need_both(ctx, index, *names)
    if ctx.attr("do_rotary", 0) and not ctx.has(7):
        ctx.note_fault("do_rotary without tables of cosines and sines")
    is_sliding, window = bool(ctx.attr("sliding_window_cache", 0)), ctx.attr("local_window_size", -1)
    if is_sliding and window < 1:
        ctx.note_fault("sliding_window_cache without local_window_size")
    elif is_sliding:
        ctx.at_least(past, window, f"slots of a cache for a window of {window}", "KV cache capacity")
    else:
        new = ctx.dims(1)[1] if ctx.has(1) and len(ctx.dims(1)) == 3 else dims[1]
        problem, equal = "total, past and new positions that do not go together: {0}, {1}, {2}", (total, past + new)
        ctx.require(Condition((total, past, new), _no_cache_fits, problem, "total_sequence_length must", (equal,)))
    problem = "{values[1]} new positions of {values[2]} in a batch of {values[0]}"
    ctx.require(Condition((dims[0], dims[1], total), _has_several_chunks, problem, "batch_size must be 1"))
    unit = const(16 if ctx.has(7) else 8)
    ctx.require(Condition((head, unit), has_rest, "heads of {0}, no multiple of {1}", "head_size"))
    if ctx.has(7) and len(table := ctx.tensor(7).dims or ()) > 1:
        rows, width, *_ = table
        ctx.require_at_most(total, rows, TABLE, "cos_cache dimension 0")
        problem = "tables of {1} angles for heads of {0}, not at most half of it, in eights"
        ctx.require(Condition((head, width), _fits_no_head, problem, "cos_cache dimension 1"))
    length = past if is_sliding else maximum(past, total)
    present = Tensor(dtype, (dims[0], groups, length, head))
    if ctx.has(3):  # a cache of 4 bits holds two numbers in one
        batch, count, _, width = ctx.dims(3)
        ctx.same(batch, dims[0], "the batches of queries and past", "batch_size")
        ctx.same(count, const(groups), "the heads of the past and kv_num_heads", "shall have kv_num_heads")
        if not ctx.attr("kv_cache_bit_width", 0):
            width = ctx.same(head, width, "sizes of heads", "KV head dimension")
        present = ctx.like((dims[0], groups, length, width), 3)
    return [result, present, present, Tensor(dtype, (dims[0], heads, dims[1], total))]


def _no_cache_fits(total: Ints, past: Ints, new: Ints) -> Bools:
    """Return where the total is not the sum of past and new positions, and does not fit into a static cache."""
    return np.asarray((total != past + new) & ((new > total) | (total > past)))


def _fits_no_head(head: Ints, width: Ints) -> Bools:
    """Return where tables of so many angles are none that the kernel turns heads by."""
    return np.asarray((2 * width > head) | (width % 8 != 0))


def _has_several_chunks(batch: Ints, new: Ints, total: Ints) -> Bools:
    """Return where several new positions come after a past, which the kernel takes for a single sequence only."""
    return np.asarray((batch > 1) & (new > 1) & (total != new))


def infer_rotary(ctx: InferenceContext) -> Tensor:
    """Infer com.microsoft RotaryEmbedding(input, position_ids, cos_cache, sin_cache)."""
    dims = ctx.tensor().dims
    if dims is not None and len(dims) > 2 and ctx.has(2) and (table := ctx.tensor(2).dims):
        ctx.require_at_most(dims[1] if len(dims) == 3 else dims[2], table[0], TABLE, "cos_cache")
    return ctx.tensor().of_dtype(ctx.tensor().dtype)


def infer_sparse_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer SparseAttention(query, key, value, past_key, past_value, ...): past and present share a buffer."""
    dims = ctx.dims()
    heads, head = _head_size(ctx, ctx.attr("kv_num_heads", 1))
    caches = [Tensor(ctx.tensor(index).dtype, ctx.dims(index)) for index in (3, 4)]
    return [ctx.like((dims[0], dims[1], head * heads)), *caches]


def _head_size(ctx: InferenceContext, groups: int) -> tuple[int, Expr]:
    """Return the number of query heads and their size; without keys, the first input has these and values too."""
    heads = ctx.attr("num_heads", 1)
    return heads, ctx.quotient(ctx.dims()[2], const(heads if ctx.has(1) else heads + 2 * groups), "the hidden size")


def infer_linear_attention(ctx: InferenceContext) -> list[Tensor]:
    """Infer LinearAttention(query, key, value, past_state, ...): the state is one matrix for each head."""
    groups = ctx.attr("kv_num_heads", 0)
    heads = max(ctx.attr("q_num_heads", 0), groups)
    if groups < 1:
        raise UnknownError("the number of heads is unknown")
    keys, values = (ctx.quotient(ctx.dims(i)[2], const(groups), "the hidden size") for i in (1, 2))
    batch, length, _ = ctx.dims()
    window = ctx.attr("state_window", 0)
    state = (*[const(window)] * bool(window), batch, const(groups), keys, values)
    present = ctx.like(ctx.dims(3), 3) if ctx.has(3) else Tensor(0, state)
    return [ctx.like((batch, length, values * heads)), present]


def infer_search(ctx: InferenceContext) -> Tensor:
    """Infer GreedySearch(ids, max_length, ...) and Sampling."""
    return Tensor(TensorProto.INT32, (ctx.dims()[0], ctx.size(1)))


def infer_beam_search(ctx: InferenceContext) -> list[Tensor]:
    """Infer BeamSearch(ids, max_length, min_length, num_beams, num_return_sequences, ...)."""
    batch, length, returned = ctx.dims()[0], ctx.size(1), ctx.size(4)
    scores = ctx.tensor(5).dtype if ctx.has(5) else 0  # that of the length penalty
    return [Tensor(TensorProto.INT32, (batch, returned, length)), Tensor(scores, (batch, returned))]


RULES: Mapping[str, Rule] = {
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": _product_rule(like=7, right=3),  # a, a_scale, a_zero, b, ..., y_scale, y_zero
    "Gemm": lambda ctx: ctx.like(_gemm_dims(ctx, 0, 1)),
    "Einsum": infer_einsum,
    **dict.fromkeys(("RNN", "GRU", "LSTM", "com.microsoft.DynamicQuantizeLSTM"), infer_recurrent),
    "com.microsoft.MatMulIntegerToFloat": _product_rule(like=2),  # A, B, a_scale, b_scale, ...
    "com.microsoft.DynamicQuantizeMatMul": _product_rule(TensorProto.FLOAT),  # a float factor and an 8-bit one
    "com.microsoft.MatMulInteger16": matmul_integer,
    **dict.fromkeys(operator_set("FusedMatMul FusedMatMulActivation TransposeMatMul", MS), fused_matmul),
    **dict.fromkeys(operator_set("MatMulNBits MatMulBnb4", MS), matmul_blocks),
    # (A, B, B_shape): the weight is packed, and the elements of the third input are its dims
    "com.microsoft.MatMulFpQ4": lambda ctx: ctx.like(matmul_dims(ctx, ctx.dims(), tuple(ctx.exprs(2)))),
    # (A, skip, ...): one projection or three, then the sum of input and residual
    "com.microsoft.MatMulNBitsMlp": _projection_rule("N"),
    "com.microsoft.MatMulNBitsQkv": _projection_rule("Nq", "Nkv", "Nkv"),
    "com.microsoft.GemmFastGelu": matmul,
    "com.microsoft.FusedGemm": lambda ctx: ctx.like(_gemm_dims(ctx, 0, 1)),
    "com.microsoft.QGemm": infer_qgemm,
    "com.microsoft.CDist": infer_distances,
    "Attention": infer_attention,
    **dict.fromkeys(operator_set("Attention DecoderMaskedSelfAttention QAttention", MS), infer_packed_attention),
    "com.microsoft.MultiHeadAttention": multi_head,
    "com.microsoft.DecoderMaskedMultiHeadAttention": infer_decoder_attention,
    "com.microsoft.GroupQueryAttention": infer_grouped_attention,
    "com.microsoft.RotaryEmbedding": infer_rotary,
    "com.microsoft.SparseAttention": infer_sparse_attention,
    "com.microsoft.LinearAttention": infer_linear_attention,
    # (input, weight, bias, past_state): the state keeps its dims
    "com.microsoft.CausalConvWithState": lambda ctx: [ctx.like(ctx.dims(at), at) for at in (0, 3) if ctx.has(at)],
    # (table, query_length, key_length): one batch, heads, both lengths
    "com.microsoft.RelativePositionBias": lambda ctx: ctx.like((1, ctx.dims()[1], ctx.exprs(1)[0], ctx.exprs(2)[0])),
    # (query, ...): batch, heads, and the length twice
    "com.microsoft.GatedRelativePositionBias": lambda ctx: ctx.like(
        (ctx.dims()[0], ctx.attr("num_heads", 1), ctx.dims()[1], ctx.dims()[1])
    ),
    **dict.fromkeys(operator_set("BeamSearch WhisperBeamSearch", MS), infer_beam_search),
    **dict.fromkeys(operator_set("GreedySearch Sampling", MS), infer_search),
}
