"""Multiply-accumulates of a node, as an expression in the input dims.

Counted are convolutions, matrix products, Einsum, attention, recurrent operators and mixtures of experts, in all their
quantised and fused forms; nothing elementwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.analysis.costs.node_sizes import NodeSizes, Rule, product
from graphkit.graph.view import Node
from graphkit.shapes import Expr, Shapes, UnknownError, const
from graphkit.shapes.expr_limits import TooComplexError

__all__ = ["MACS", "attended", "macs"]

# The input that holds the past keys, [batch, heads, length, size of a head]
PAST_KEYS: Mapping[str, int] = {
    "Attention": 4,
    "com.microsoft.MultiHeadAttention": 6,
    "com.microsoft.GroupQueryAttention": 3,
}
EXPERTS: Mapping[str, tuple[int, ...]] = {"com.microsoft.MoE": (2, 4, 6), "com.microsoft.QMoE": (2, 5, 8)}  # weights


def macs(node: Node, shapes: Shapes) -> Expr | None:
    """Return how many multiply-accumulates a node does: 0 where it is none of these operators, None where unknown."""
    rule = MACS.get(node.operator)
    try:
        return const(0) if rule is None else rule(NodeSizes(node, shapes))
    except (UnknownError, TooComplexError, ValueError):  # outgrown bounds; a rank that no model has that runs
        return None


def _matrix_product(sizes: NodeSizes) -> Expr:
    """Return one for each element of the output and each element of the dim that is summed over."""
    place = -2 if sizes.node.attr("transA", 0) else -1
    return sizes.results() * product(sizes.dims(0)[place:][:1])


def _convolution(weights: int) -> Rule:
    """Return the rule of a convolution whose weights, [output channels, channels of a group, *kernel], are an input."""
    return lambda sizes: sizes.results() * product(sizes.dims(weights)[1:])


def _transposed_convolution(sizes: NodeSizes) -> Expr:
    return sizes.elements(0) * product(sizes.dims(1)[1:])


def _einsum(sizes: NodeSizes) -> Expr:
    """Return one for each combination of all indices."""
    equation = sizes.node.attr("equation", str)
    terms = [] if equation is None else equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(sizes.node.inputs):
        raise UnknownError("its equation does not fit its inputs")
    indices: dict[str, Expr] = {}
    for number, term in enumerate(terms):
        dims = sizes.dims(number)
        if len(dims) != len(term) or "." in term:
            raise UnknownError(f"its equation does not name every index of input {number}")
        indices |= dict(zip(term, dims, strict=True))
    return product(indices.values())


def attended(sizes: NodeSizes) -> Expr:
    """Return the number of positions that each query of an attention looks at, the past included."""
    keys = sizes.ranked(1 if sizes.has(1) else 0, 3, 4)
    length = keys[1] if len(keys) == 3 else keys[2]
    past = PAST_KEYS[sizes.node.operator]
    return length + sizes.ranked(past, 4)[2] if sizes.has(past) else length


def _attention(sizes: NodeSizes) -> Expr:
    """Return the products of queries and keys, and of their weights and the values."""
    queries, length = sizes.ranked(0, 3, 4), attended(sizes)
    if not sizes.has(1):  # queries, keys and values in one tensor: the queries are as wide as the result
        if sizes.node.op_type != "GroupQueryAttention" or len(queries) != 3:
            raise UnknownError("its queries, keys and values are packed into one tensor")
        queries = sizes.output()
    return product(queries) * length + sizes.results() * length


def _packed_attention(sizes: NodeSizes) -> Expr:
    """Return those of an attention that makes queries, keys and values itself; its past is [2, b, heads, length, n]."""
    data, weights, result = sizes.ranked(0, 3), sizes.ranked(1, 2), sizes.output()
    past = sizes.ranked(4, 5)[3] if sizes.has(4) else const(0)
    if len(result) != 3:
        raise UnknownError(f"its output has rank {len(result)}")
    keys = (weights[1] - result[2]) // 2
    return data[0] * data[1] * (weights[0] * weights[1] + (data[1] + past) * (keys + result[2]))


def _recurrent(sizes: NodeSizes) -> Expr:
    """Return one for each weight, at each step of each sequence."""
    steps = sizes.ranked(0, 3)
    return steps[0] * steps[1] * (sizes.elements(1) + sizes.elements(2))


def _experts(sizes: NodeSizes) -> Expr:
    """Return one for each weight of the experts that a token is sent to."""
    tokens = product(sizes.dims(0)[:-1])
    weights = const(0)
    for index in EXPERTS[sizes.node.operator]:
        if sizes.has(index):
            weights = weights + product(sizes.ranked(index, 3)[1:])
    packed = 8 // sizes.number("expert_weight_bits", 4) if sizes.node.op_type == "QMoE" else 1
    return tokens * weights * (packed * sizes.number("k", 1))


MACS: Mapping[str, Rule] = {
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"), _matrix_product),
    **dict.fromkeys(
        (
            *("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.FusedGemm", "com.microsoft.FusedMatMul"),
            *("com.microsoft.MatMulBnb4", "com.microsoft.MatMulIntegerToFloat", "com.microsoft.MatMulNBits"),
            "com.microsoft.QGemm",
        ),
        _matrix_product,
    ),
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "com.microsoft.FusedConv"), _convolution(1)),
    **dict.fromkeys(("QLinearConv", "com.microsoft.QLinearConv"), _convolution(3)),
    "ConvTranspose": _transposed_convolution,
    "Einsum": _einsum,
    **dict.fromkeys(PAST_KEYS, _attention),
    "com.microsoft.Attention": _packed_attention,
    **dict.fromkeys(("GRU", "LSTM", "RNN", "com.microsoft.DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(EXPERTS, _experts),
}
