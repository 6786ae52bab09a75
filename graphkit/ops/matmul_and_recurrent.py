"""MatMul, Gemm, Einsum and recurrent layers, with the quantised forms of products."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onnx import TensorProto

from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import Dims, Tensor
from graphkit.symbolic.expr import const

INNER = "the inner dims of a product"


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
    return Tensor(ctx.tensor().dtype, matmul_dims(ctx, *factors))


def matmul_blocks(ctx: InferenceContext) -> Tensor:
    """Infer MatMulNBits and MatMulBnb4: the weight is packed, and the attributes K and N are its dims."""
    dims = ctx.dims()
    ctx.same(dims[-1], const(ctx.attr("K", 0)), INNER)
    return Tensor(ctx.tensor().dtype, (*dims[:-1], ctx.attr("N", 0)))


def _projections(*sizes: str) -> Rule:
    """Return the rule of projections to sizes that attributes give, and of what keeps the dims of the input."""
    return lambda ctx: [
        *(ctx.like((*ctx.dims()[:-1], ctx.attr(size, 0))) for size in sizes), ctx.like(ctx.dims())
    ]  # fmt: skip


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
        _read_term(ctx, term, ctx.dims(index), letters_of, ellipses)
    says = "could not be broadcast"
    sizes = {letter: ctx.broadcast(*dims, says=says)[0] for letter, dims in letters_of.items()}
    around = ctx.broadcast(*ellipses, says=says) if ellipses else ()
    if not arrow:
        letters = left.replace(".", "").replace(",", "")
        right = ("..." if ellipses else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    before, _, after = right.partition("...")
    if not set(before + after) <= sizes.keys():
        raise UnknownError("the equation's output has a letter of its own")
    middle = around if "..." in right else ()
    return Tensor(ctx.tensor().dtype, (*(sizes[c] for c in before), *middle, *(sizes[c] for c in after)))


def _read_term(
    ctx: InferenceContext, term: str, dims: Dims, sizes: dict[str, list[Dims]], ellipses: list[Dims]
) -> None:
    before, dots, after = term.partition("...")
    named = len(before) + len(after)
    if named > len(dims) or (not dots and named < len(dims)):
        raise ctx.impossible(f"the term '{term}' for rank {len(dims)}", "the equation does not fit the ranks")
    if dots:
        ellipses.append(dims[len(before) : len(dims) - len(after)])
    tail = dims[len(dims) - len(after) :]
    for letter, dim in [*zip(before, dims, strict=False), *zip(after, tail, strict=True)]:
        sizes.setdefault(letter, []).append((dim,))


def infer_recurrent(ctx: InferenceContext) -> list[Tensor]:
    """Infer RNN, GRU and LSTM: all hidden states, the last one, and the last cell of an LSTM."""
    dims = ctx.dims()
    hidden = const(ctx.attr("hidden_size", 0)) if "hidden_size" in ctx.attributes else ctx.dims(2)[-1]
    directions = const(2 if ctx.attr("direction", "forward") == "bidirectional" else 1)
    every, last = (dims[0], directions, dims[1], hidden), (directions, dims[1], hidden)
    if ctx.attr("layout", 0):  # batch first
        every, last = (dims[0], dims[1], directions, hidden), (dims[0], directions, hidden)
    return [Tensor(ctx.tensor().dtype, result_dims) for result_dims in (every, last, last)]


RULES: Mapping[str, Rule] = {
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": _product_rule(like=7, right=3),  # a, a_scale, a_zero, b, ..., y_scale, y_zero
    "Gemm": lambda ctx: ctx.like(_gemm_dims(ctx, 0, 1)),
    "Einsum": infer_einsum,
    "RNN": infer_recurrent,
    "GRU": infer_recurrent,
    "LSTM": infer_recurrent,
    "com.microsoft.MatMulIntegerToFloat": _product_rule(like=2),  # A, B, a_scale, b_scale, ...
    "com.microsoft.DynamicQuantizeMatMul": _product_rule(TensorProto.FLOAT),  # a float factor and an 8-bit one
    "com.microsoft.MatMulInteger16": matmul_integer,
    "com.microsoft.FusedMatMul": fused_matmul,
    "com.microsoft.TransposeMatMul": fused_matmul,
    "com.microsoft.MatMulNBits": matmul_blocks,
    "com.microsoft.MatMulBnb4": matmul_blocks,
    # (A, B, B_shape): the weight is packed, and the elements of the third input are its dims
    "com.microsoft.MatMulFpQ4": lambda ctx: ctx.like(matmul_dims(ctx, ctx.dims(), tuple(ctx.exprs(2)))),
    # (A, skip, ...): one projection or three, then the sum of input and residual
    "com.microsoft.MatMulNBitsMlp": _projections("N"),
    "com.microsoft.MatMulNBitsQkv": _projections("Nq", "Nkv", "Nkv"),
    "com.microsoft.FusedMatMulActivation": fused_matmul,
    "com.microsoft.GemmFastGelu": matmul,
    "com.microsoft.FusedGemm": lambda ctx: ctx.like(_gemm_dims(ctx, 0, 1)),
    "com.microsoft.QGemm": infer_qgemm,
    "com.microsoft.DynamicQuantizeLSTM": infer_recurrent,
    "com.microsoft.CDist": infer_distances,
}
