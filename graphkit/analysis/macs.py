"""Multiply-accumulates of a node, as an expression in the input dims.

Counted are convolutions, matrix products, Einsum and attention, in all their quantised and fused forms; not recurrent
operators, and nothing elementwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphkit.graph.view import Node
from graphkit.shapes import Expr, Shapes, const
from graphkit.shapes.expr_limits import TooComplexError

__all__ = ["macs"]

# Operator -> the input whose last dim is summed over, for each element of the output
PRODUCTS: Mapping[str, int] = {
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"), 0),
    **dict.fromkeys(
        (
            *("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.FusedGemm", "com.microsoft.FusedMatMul"),
            *("com.microsoft.MatMulBnb4", "com.microsoft.MatMulIntegerToFloat", "com.microsoft.MatMulNBits"),
            "com.microsoft.QGemm",
        ),
        0,
    ),
}
# Operator -> the input that holds the weights, [output channels, input channels of a group, *kernel]
CONVOLUTIONS: Mapping[str, int] = {
    **dict.fromkeys(("Conv", "ConvInteger", "com.microsoft.FusedConv"), 1),
    **dict.fromkeys(("QLinearConv", "com.microsoft.QLinearConv"), 3),
}
# Operator -> the input that holds the past keys, [batch, heads, length, size of a head]
ATTENTIONS: Mapping[str, int] = {
    "Attention": 4,
    "com.microsoft.MultiHeadAttention": 6,
    "com.microsoft.GroupQueryAttention": 3,
}
PACKED = "com.microsoft.Attention"  # makes queries, keys and values itself; its past is [2, batch, heads, length, size]


def macs(node: Node, shapes: Shapes) -> Expr | None:
    """Return how many multiply-accumulates a node does: 0 where it is none of these operators, None where unknown."""
    try:
        return _macs(node, shapes)
    except (TooComplexError, ValueError):  # an expression that outgrows its bounds; a rank that no model has that runs
        return None


def _macs(node: Node, shapes: Shapes) -> Expr | None:
    op = node.operator
    if op in PRODUCTS:
        summed = _dims(node, shapes, PRODUCTS[op])
        return _times(_output(node, shapes), summed and summed[-2 if node.attr("transA", 0) else -1 :][:1])
    if op in CONVOLUTIONS:
        weights = _dims(node, shapes, CONVOLUTIONS[op])
        return _times(_output(node, shapes), weights and weights[1:])
    if op == "ConvTranspose":
        weights = _dims(node, shapes, 1)
        return _times(_dims(node, shapes, 0), weights and weights[1:])
    if op == "Einsum":
        return _einsum(node, shapes)
    if op == PACKED:
        return _packed(node, shapes)
    return _attention(node, shapes) if op in ATTENTIONS else const(0)


def _einsum(node: Node, shapes: Shapes) -> Expr | None:
    """Return one for each combination of all indices; None where some of them are not named."""
    equation = node.attr("equation", str)
    terms = [] if equation is None else equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(node.inputs):
        return None
    sizes: dict[str, Expr] = {}
    for index, term in enumerate(terms):
        dims = _dims(node, shapes, index)
        if dims is None or len(dims) != len(term) or "." in term:
            return None
        sizes |= dict(zip(term, dims, strict=True))
    return _times(sizes.values())


def _attention(node: Node, shapes: Shapes) -> Expr | None:
    """Return the products of queries and keys, and of their weights and the values."""
    queries, keys = _dims(node, shapes, 0), _dims(node, shapes, 1)
    result = _output(node, shapes)
    if queries is None or keys is None or result is None or len(queries) not in (3, 4) or len(keys) not in (3, 4):
        return None  # among others, queries, keys and values packed into one tensor
    length = keys[1] if len(keys) == 3 else keys[2]
    if node.input(ATTENTIONS[node.operator]) is not None:
        past = _dims(node, shapes, ATTENTIONS[node.operator])
        if past is None or len(past) != 4:
            return None
        length = length + past[2]
    scores, weighted = _times(queries, [length]), _times(result, [length])
    return None if scores is None or weighted is None else scores + weighted


def _packed(node: Node, shapes: Shapes) -> Expr | None:
    """Return those of the product with the weights too."""
    data, weights, result = _dims(node, shapes, 0), _dims(node, shapes, 1), _output(node, shapes)
    past = (const(0),) * 5 if node.input(4) is None else _dims(node, shapes, 4)
    if data is None or weights is None or result is None or past is None:
        return None
    if [len(dims) for dims in (data, weights, result, past)] != [3, 2, 3, 5]:
        return None
    keys = (weights[1] - result[2]) // 2
    return data[0] * data[1] * (weights[0] * weights[1] + (data[1] + past[3]) * (keys + result[2]))


def _dims(node: Node, shapes: Shapes, index: int) -> tuple[Expr, ...] | None:
    return shapes.dims(node.input(index))


def _output(node: Node, shapes: Shapes) -> tuple[Expr, ...] | None:
    return shapes.dims(node.outputs[0] if node.outputs else None)


def _times(*parts: Iterable[Expr] | None) -> Expr | None:
    product = const(1)
    for part in parts:
        if part is None:
            return None
        for dim in part:
            product = product * dim
    return product
