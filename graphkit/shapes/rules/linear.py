"""MatMul, Gemm, Einsum and recurrent layers, with the quantised forms of products."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.expr import Expr, const
from graphkit.shapes.site import Rule, Site, UnknownError
from graphkit.shapes.tensor import Dims, Tensor

__all__ = ["RULES", "matmul_dims"]

INNER = "the inner dims of a product"


def matmul_dims(site: Site, left: Dims, right: Dims) -> Dims:
    """Return the dims of a product as numpy's matmul has them."""
    if not left or not right:
        site.finding("a product with a scalar")
        raise UnknownError("a product with a scalar")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    site.same(left[-1], right[-2] if len(right) > 1 else right[0], INNER)
    batch = site.broadcast(left[:-2], right[:-2])
    return (*batch, *rows, *columns)


def _product(site: Site, dtype: int, right: int = 1) -> Tensor:
    return Tensor(dtype, matmul_dims(site, site.dims(0), site.dims(right)))


def matmul(site: Site) -> Tensor:
    """The first input's dtype."""
    return _product(site, site.tensor().dtype)


def matmul_integer(site: Site) -> Tensor:
    """8-bit factors, int32 product."""
    return _product(site, TensorProto.INT32)


def matmul_to_float(site: Site) -> Tensor:
    """8-bit factors with scales, float product: MatMulIntegerToFloat(A, B, a_scale, b_scale, ...)."""
    return _product(site, site.tensor(2).dtype)


def dynamic_matmul(site: Site) -> Tensor:
    """DynamicQuantizeMatMul: a float factor and an 8-bit one."""
    return _product(site, TensorProto.FLOAT)


def qlinear_matmul(site: Site) -> Tensor:
    """QLinearMatMul(a, a_scale, a_zero, b, ..., y_scale, y_zero): the dtype of y_zero."""
    return _product(site, site.tensor(7).dtype, 3)


def fused_matmul(site: Site) -> Tensor:
    """FusedMatMul: either factor may be transposed; with transBatch the batch dims come after the rows."""
    factors = []
    for index, letter in enumerate("AB"):
        dims = site.dims(index)
        if site.integer(f"transBatch{letter}", 0) and len(dims) > 2:
            dims = (*dims[1:-1], dims[0], dims[-1])
        if site.integer(f"trans{letter}", 0) and len(dims) > 1:
            dims = (*dims[:-2], dims[-1], dims[-2])
        factors.append(dims)
    return Tensor(site.tensor().dtype, matmul_dims(site, *factors))


def matmul_blocks(site: Site) -> Tensor:
    """MatMulNBits, MatMulBnb4: the weight is packed, its dims are the attributes K and N."""
    dims = site.dims()
    site.same(dims[-1], const(site.integer("K", 0)), INNER)
    return Tensor(site.tensor().dtype, (*dims[:-1], site.integer("N", 0)))


def matmul_fp_q4(site: Site) -> Tensor:
    """MatMulFpQ4(A, B, B_shape): the weight is packed, its dims are the third input's elements."""
    dims = tuple(Expr.of(element) for element in site.values(2))  # type: ignore[arg-type]
    return Tensor(site.tensor().dtype, matmul_dims(site, site.dims(), dims))


def mlp(site: Site) -> list[Tensor]:
    """MatMulNBitsMlp(A, skip, ...): two projections to N, multiplied; then the sum of input and residual."""
    found, dims = site.tensor(), site.dims()
    return [Tensor(found.dtype, (*dims[:-1], site.integer("N", 0))), Tensor(found.dtype, dims)]


def qkv(site: Site) -> list[Tensor]:
    """MatMulNBitsQkv(A, skip, ...): projections to Nq and twice to Nkv; then the sum of input and residual."""
    found, dims = site.tensor(), site.dims()
    sizes = [site.integer(name, 0) for name in ("Nq", "Nkv", "Nkv")]
    return [*(Tensor(found.dtype, (*dims[:-1], size)) for size in sizes), Tensor(found.dtype, dims)]


def distances(site: Site) -> Tensor:
    """CDist(A, B): from each row of A to each row of B."""
    (rows, size), (others, size_of_others) = site.dims(0), site.dims(1)
    site.same(size, size_of_others, "the sizes of rows")
    return Tensor(site.tensor().dtype, (rows, others))


def gemm(site: Site) -> Tensor:
    """Two matrices, either transposed."""
    return Tensor(site.tensor().dtype, _gemm_dims(site, 0, 1))


def qgemm(site: Site) -> Tensor:
    """QGemm(A, a_scale, a_zero, B, b_scale, b_zero, C, y_scale, y_zero): float without y_zero."""
    return Tensor(site.tensor(8).dtype if site.has(8) else TensorProto.FLOAT, _gemm_dims(site, 0, 3))


def _gemm_dims(site: Site, left: int, right: int) -> Dims:
    first, second = site.dims(left), site.dims(right)
    if len(first) != 2 or len(second) != 2:
        raise UnknownError("a factor is no matrix")
    rows, inner = first[::-1] if site.integer("transA", 0) else first
    other, columns = second[::-1] if site.integer("transB", 0) else second
    site.same(inner, other, INNER)
    return rows, columns


def einsum(site: Site) -> Tensor:
    """Each letter is a dim; equal letters are equal dims."""
    equation = re.sub(r"\s", "", site.text("equation", ""))
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(site.inputs):
        raise UnknownError("the equation does not fit the inputs")
    sizes: dict[str, Expr] = {}
    ellipses: list[Dims] = []
    for index, term in enumerate(terms):
        _read_term(site, term, site.dims(index), sizes, ellipses)
    around = site.broadcast(*ellipses) if ellipses else ()
    if not arrow:
        letters = left.replace(".", "").replace(",", "")
        right = ("..." if ellipses else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    before, _, after = right.partition("...")
    if not set(before + after) <= sizes.keys():
        raise UnknownError("the equation's output has a letter of its own")
    middle = around if "..." in right else ()
    return Tensor(site.tensor().dtype, (*(sizes[c] for c in before), *middle, *(sizes[c] for c in after)))


def _read_term(site: Site, term: str, dims: Dims, sizes: dict[str, Expr], ellipses: list[Dims]) -> None:
    before, dots, after = term.partition("...")
    named = len(before) + len(after)
    if named > len(dims) or (not dots and named < len(dims)):
        site.finding(f"the term '{term}' for rank {len(dims)}")
        raise UnknownError("the equation does not fit the ranks")
    if dots:
        ellipses.append(dims[len(before) : len(dims) - len(after)])
    tail = dims[len(dims) - len(after) :]
    for letter, dim in [*zip(before, dims, strict=False), *zip(after, tail, strict=True)]:
        sizes[letter] = site.broadcast((sizes[letter],), (dim,))[0] if letter in sizes else dim


def recurrent(site: Site) -> list[Tensor]:
    """RNN, GRU, LSTM: all hidden states, the last one, and the last cell of an LSTM."""
    dims = site.dims()
    length, batch = (dims[0], dims[1]) if not site.integer("layout", 0) else (dims[1], dims[0])
    hidden = const(site.integer("hidden_size", 0)) if "hidden_size" in site.attributes else site.dims(2)[-1]
    directions = 2 if site.text("direction", "forward") == "bidirectional" else 1
    dtype = site.tensor().dtype
    if site.integer("layout", 0):
        last = Tensor(dtype, (batch, directions, hidden))
        return [Tensor(dtype, (batch, length, directions, hidden)), last, last]
    last = Tensor(dtype, (directions, batch, hidden))
    return [Tensor(dtype, (length, directions, batch, hidden)), last, last]


RULES: Mapping[str, Rule] = {
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "RNN": recurrent,
    "GRU": recurrent,
    "LSTM": recurrent,
    "com.microsoft.MatMulIntegerToFloat": matmul_to_float,
    "com.microsoft.DynamicQuantizeMatMul": dynamic_matmul,
    "com.microsoft.MatMulInteger16": matmul_integer,
    "com.microsoft.FusedMatMul": fused_matmul,
    "com.microsoft.TransposeMatMul": fused_matmul,
    "com.microsoft.MatMulNBits": matmul_blocks,
    "com.microsoft.MatMulBnb4": matmul_blocks,
    "com.microsoft.MatMulFpQ4": matmul_fp_q4,
    "com.microsoft.MatMulNBitsMlp": mlp,
    "com.microsoft.MatMulNBitsQkv": qkv,
    "com.microsoft.FusedMatMulActivation": fused_matmul,
    "com.microsoft.GemmFastGelu": matmul,
    "com.microsoft.FusedGemm": gemm,
    "com.microsoft.QGemm": qgemm,
    "com.microsoft.DynamicQuantizeLSTM": recurrent,
    "com.microsoft.CDist": distances,
}
