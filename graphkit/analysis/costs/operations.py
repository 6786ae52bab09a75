"""Multiply-accumulates (`MACS`) and other operations (`OPERATIONS`) of a node, as expressions in the input dims.

Multiply-accumulates are those of convolutions, matrix products, Einsum, attention, recurrent operators and mixtures of
experts, in all their quantised and fused forms. Of all else, one application of a function of numbers to one element
counts as one operation: an addition, a comparison, an Exp, a Sigmoid, a conversion. Moving elements counts nothing.
docs/reference/costs.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.analysis.costs.node_sizes import NodeSizes, Rule, product
from graphkit.graph.operator_traits import BROADCASTING, MOVING, REDUCTIONS, UNARY, UNIDIRECTIONAL, operator_set
from graphkit.graph.view import Node
from graphkit.shapes import Expr, Shapes, UnknownError, const
from graphkit.symbolic.expr import TooComplexError

__all__ = ["MACS", "OPERATIONS", "UNCOUNTED", "count_macs"]

# The input that holds the past keys, [batch, heads, length, size of a head]
PAST_KEYS: Mapping[str, int] = {
    "Attention": 4,
    "com.microsoft.MultiHeadAttention": 6,
    "com.microsoft.GroupQueryAttention": 3,
}
EXPERTS: Mapping[str, tuple[int, ...]] = {"com.microsoft.MoE": (2, 4, 6), "com.microsoft.QMoE": (2, 5, 8)}  # weights


def count_macs(node: Node, shapes: Shapes) -> Expr | None:
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


def _convolution_rule(weights: int) -> Rule:
    """Return the rule of a convolution whose weights, [output channels, channels of a group, *kernel], are an input."""
    return lambda sizes: sizes.results() * product(sizes.dims(weights)[1:])


def _transposed_convolution(sizes: NodeSizes) -> Expr:
    return sizes.elements(0) * product(sizes.dims(1)[1:])


def _count_einsum(sizes: NodeSizes) -> Expr:
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


def attended_positions(sizes: NodeSizes) -> Expr:
    """Return the number of positions that each query of an attention looks at, the past included."""
    keys = sizes.ranked(1 if sizes.has(1) else 0, 3, 4)
    length = keys[1] if len(keys) == 3 else keys[2]
    past = PAST_KEYS[sizes.node.operator]
    return length + sizes.ranked(past, 4)[2] if sizes.has(past) else length


def _attention_macs(sizes: NodeSizes) -> Expr:
    """Return the products of queries and keys, and of their weights and the values."""
    queries, length = sizes.ranked(0, 3, 4), attended_positions(sizes)
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


def _recurrent_macs(sizes: NodeSizes) -> Expr:
    """Return one for each weight, at each step of each sequence."""
    steps = sizes.ranked(0, 3)
    return steps[0] * steps[1] * (sizes.elements(1) + sizes.elements(2))


def _count_experts(sizes: NodeSizes) -> Expr:
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
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "com.microsoft.FusedConv"), _convolution_rule(1)),
    **dict.fromkeys(("QLinearConv", "com.microsoft.QLinearConv"), _convolution_rule(3)),
    "ConvTranspose": _transposed_convolution,
    "Einsum": _count_einsum,
    **dict.fromkeys(PAST_KEYS, _attention_macs),
    "com.microsoft.Attention": _packed_attention,
    **dict.fromkeys(("GRU", "LSTM", "RNN", "com.microsoft.DynamicQuantizeLSTM"), _recurrent_macs),
    **dict.fromkeys(EXPERTS, _count_experts),
}

SOFTMAX = 5  # for each element: the maximum, a difference, an Exp, the sum, a division
NEIGHBOURS = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}  # along one axis, by mode
VARIADIC = operator_set("Max Mean Min Sum")
IDENTICAL = operator_set("BitCast Identity")  # of UNARY: the elements are what they were


NOT_COMPUTING = operator_set(
    """
    CenterCropPad Constant ConstantOfShape Dropout EyeLike MaxUnpool OneHot Pad Shape Size TensorScatter Trilu
    ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength SplitToSequence
    """
)


def _per_result(count: int) -> Rule:
    return lambda sizes: sizes.results() * count


def _per_element(count: int) -> Rule:
    return lambda sizes: sizes.elements() * count


def _count_nothing(_: NodeSizes) -> Expr:
    return const(0)


def _count_variadic(sizes: NodeSizes) -> Expr:
    """Return one less than there are inputs for each element of the output, and a division for a mean."""
    input_count = sum(value is not None for value in sizes.node.inputs)
    return sizes.results() * (input_count if sizes.node.op_type == "Mean" else input_count - 1)


def _with_bias(bias: int, per_result: int = 0) -> Rule:
    """Return the rule of a product that adds a bias, where it is given, to each element of the output."""
    return lambda sizes: sizes.results() * (per_result + sizes.has(bias))


def _count_gemm(sizes: NodeSizes) -> Expr:
    scaled = sizes.node.attr("alpha", 1.0) != 1.0
    added = 1 + (sizes.node.attr("beta", 1.0) != 1.0) if sizes.has(2) else 0
    return sizes.results() * (scaled + added)


def _normalisation_rule(count: int, *optional: int) -> Rule:
    """Return the rule of a normalisation: so many for each element, and one more for each optional input given."""
    return lambda sizes: sizes.elements() * (count + sum(map(sizes.has, optional)))


def _pool_rule(each: int) -> Rule:
    """Return the rule of a pooling: so many for each element of a window."""

    def rule(sizes: NodeSizes) -> Expr:
        kernel = sizes.node.attr("kernel_shape", tuple)
        if kernel is None:
            raise UnknownError("its attribute 'kernel_shape' is not known")
        return sizes.results() * (each * product(map(const, kernel)))

    return rule


def _count_quantised(sizes: NodeSizes) -> Expr:
    """Return a scaling for each element, and an addition where a zero point is given."""
    return sizes.elements() * (1 + sizes.has(2))


def _count_unpacked(sizes: NodeSizes) -> Expr:
    """Return a subtraction and a scaling for each weight of a MatMulNBits, and a bias."""
    weights = sizes.number("K", int) * sizes.number("N", int)
    return const(2 * weights) + sizes.results() * int(sizes.has(5))


def _scatter_rule(updates: int) -> Rule:
    """Return one for each update that is added to, multiplied or compared with what is there."""
    return lambda sizes: sizes.elements(updates) * int(sizes.node.attr("reduction", "none") != "none")


def _count_scores(sizes: NodeSizes) -> Expr:
    """Return a scaling and a softmax for each pair of a query and a position that it looks at."""
    queries, heads = sizes.ranked(0, 3, 4), "q_num_heads" if not sizes.node.domain else "num_heads"
    each = product(queries[:3]) if len(queries) == 4 else queries[0] * queries[1] * sizes.number(heads, int)
    return each * attended_positions(sizes) * (1 + SOFTMAX)


def _packed_scores(sizes: NodeSizes) -> Expr:
    data = sizes.ranked(0, 3)
    past = sizes.ranked(4, 5)[3] if sizes.has(4) else const(0)
    scores = data[0] * data[1] * (data[1] + past) * sizes.number("num_heads", int)
    return scores * (1 + SOFTMAX) + data[0] * data[1] * (sizes.ranked(1, 2)[1] if sizes.has(2) else const(0))


def _recurrent_rule(gates: int, each: int) -> Rule:
    """Return so many operations for each element of the state at each step, and a bias for each gate."""

    def rule(sizes: NodeSizes) -> Expr:
        steps, recurrence = sizes.ranked(0, 3), sizes.ranked(2, 3)
        hidden = recurrence[2] if sizes.node.op_type != "DynamicQuantizeLSTM" else recurrence[1]
        return steps[0] * steps[1] * recurrence[0] * hidden * (each + gates * sizes.has(3))

    return rule


def _count_interpolated(sizes: NodeSizes) -> Expr:
    """Return the rule of a Resize, which interpolates along the axes whose dims it changes."""
    before, after = sizes.dims(0), sizes.output()
    if len(before) != len(after):
        raise UnknownError(f"its output has rank {len(after)}")
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    return _from_neighbours(sizes, "nearest", changed)


def _count_sampled(sizes: NodeSizes) -> Expr:
    """Return the rule of a GridSample, which interpolates along all axes but the batch and the channels."""
    return _from_neighbours(sizes, "linear", len(sizes.dims(0)) - 2)


def _from_neighbours(sizes: NodeSizes, default: str, axes: int) -> Expr:
    """Return a multiplication and an addition for each neighbour that an element is interpolated from."""
    mode = sizes.node.attr("mode", default)
    if mode not in NEIGHBOURS:
        raise UnknownError("its attribute 'mode' is not known")
    return sizes.results() * (2 * NEIGHBOURS[mode] ** axes if NEIGHBOURS[mode] else 0)


def _count_window(sizes: NodeSizes) -> Expr:
    """Return the squares, their sum over a window of channels, a power and a division of an LRN."""
    return sizes.elements() * (sizes.number("size", int) + 3)


OPERATIONS: Mapping[str, Rule] = {
    **dict.fromkeys(sorted((UNARY - IDENTICAL) | UNIDIRECTIONAL.keys()), _per_result(1)),
    **dict.fromkeys(sorted(BROADCASTING.keys() - VARIADIC), _per_result(1)),
    **dict.fromkeys(sorted(VARIADIC), _count_variadic),
    **dict.fromkeys(sorted(REDUCTIONS), _per_element(1)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"), _per_element(2)),
    **dict.fromkeys(("ArgMax", "ArgMin", "CumProd", "CumSum", "TopK", "Col2Im"), _per_element(1)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _per_element(1)),
    "GlobalLpPool": _per_element(2),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool_rule(1)),
    "LpPool": _pool_rule(2),
    **dict.fromkeys(("Softmax", "LogSoftmax", "com.microsoft.QLinearSoftmax"), _per_element(SOFTMAX)),
    "Hardmax": _per_element(2),
    "BatchNormalization": _per_element(2),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _per_element(7)),
    "LayerNormalization": _normalisation_rule(6, 2),
    "MeanVarianceNormalization": _per_element(5),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _per_element(4)),
    "com.microsoft.SimplifiedLayerNormalization": _per_element(4),
    "com.microsoft.SkipLayerNormalization": _normalisation_rule(7, 3, 4),
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalisation_rule(5, 3),
    "LpNormalization": _per_element(3),
    "LRN": _count_window,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _count_quantised),
    **dict.fromkeys(("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"), _count_quantised),
    "DynamicQuantizeLinear": _per_element(4),
    **dict.fromkeys(("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul"), _per_result(1)),
    **dict.fromkeys(("com.microsoft.BiasGelu", "com.microsoft.FastGelu"), _normalisation_rule(1, 1)),
    "SwiGLU": _per_result(2),
    **dict.fromkeys(("Resize", "Upsample"), _count_interpolated),
    "GridSample": _count_sampled,
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft.RotaryEmbedding"), _per_result(3)),
    **dict.fromkeys(sorted(operator_set("Range BlackmanWindow HammingWindow HannWindow")), _per_result(1)),
    **dict.fromkeys(
        sorted(operator_set("Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike")), _per_result(1)
    ),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter_rule(2)),
    # Products: what they do besides multiplying and adding
    **dict.fromkeys(("MatMul", "MatMulInteger", "Einsum"), _count_nothing),
    **dict.fromkeys(("com.microsoft.FusedMatMul", "com.microsoft.MatMulBnb4"), _count_nothing),
    "Gemm": _count_gemm,
    "com.microsoft.FusedGemm": _count_gemm,
    **dict.fromkeys(("Conv", "ConvTranspose", "com.microsoft.FusedConv"), _with_bias(2)),
    "DeformConv": _with_bias(3),
    "ConvInteger": _count_nothing,
    **dict.fromkeys(("QLinearConv", "com.microsoft.QLinearConv"), _with_bias(8, 2)),
    "QLinearMatMul": _with_bias(8, 2),
    "com.microsoft.QGemm": _with_bias(6, 2),
    "com.microsoft.MatMulIntegerToFloat": _with_bias(6, 1),
    "com.microsoft.DynamicQuantizeMatMul": lambda sizes: sizes.elements() * 4 + _with_bias(4, 1)(sizes),
    "com.microsoft.MatMulNBits": _count_unpacked,
    **dict.fromkeys(PAST_KEYS, _count_scores),
    "com.microsoft.Attention": _packed_scores,
    "LSTM": _recurrent_rule(4, 9),
    "com.microsoft.DynamicQuantizeLSTM": _recurrent_rule(4, 9),
    "GRU": _recurrent_rule(3, 8),
    "RNN": _recurrent_rule(1, 1),
    # Only moved, compared with nothing and computed from nothing
    **dict.fromkeys(sorted(MOVING | IDENTICAL | NOT_COMPUTING), _count_nothing),
    **dict.fromkeys(("com.microsoft.QLinearConcat", "com.microsoft.GatherBlockQuantized"), _count_nothing),
}

_DATA, _ALGORITHM = "its work depends on its data", "its work depends on the algorithm that the runtime chooses"
UNCOUNTED: Mapping[str, str] = {
    **dict.fromkeys(
        sorted(operator_set("MaxRoiPool Multinomial NonMaxSuppression NonZero RoiAlign Unique ImageDecoder")), _DATA
    ),
    **dict.fromkeys(sorted(operator_set("StringNormalizer StringSplit TfIdfVectorizer")), _DATA),
    **dict.fromkeys(sorted(operator_set("AffineGrid DFT Det MelWeightMatrix STFT")), _ALGORITHM),
    **dict.fromkeys(sorted(operator_set("CausalConvWithState LinearAttention")), "there is no rule for it yet"),
    **dict.fromkeys(sorted(operator_set("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss")), "it is for training"),
    "SequenceMap": "the number of its calls is the length of a sequence",
    **dict.fromkeys(("com.microsoft.MoE", "com.microsoft.QMoE"), "its activation and its gate are not followed"),
}
