"""The costs of operators: multiply-accumulates (`MACS`), other operations (`OPERATIONS`), and how they move elements.

Multiply-accumulates are those of convolutions, matrix products, Einsum, attention, recurrent operators and mixtures of
experts, in all their quantised and fused forms. Of all else, one application of a function of numbers to one element
counts as one operation: an addition, a comparison, an Exp, a Sigmoid, a conversion. Moving elements counts nothing.
docs/reference/costs.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from graphkit.graph.operator_traits import (
    BROADCASTING,
    GATES,
    MEASURING,
    MOVING,
    PAST_KEYS,
    PICKING,
    REDUCTIONS,
    SAME_ORDER,
    SCATTERING,
    UNARY,
    UNIDIRECTIONAL,
    VARIADIC,
    join_tables,
    operator_set,
)
from graphkit.ops.rule_context import NodeFacts, UnknownError
from graphkit.ops.tensor import dims_product
from graphkit.symbolic.expr import Expr, const

Rule = Callable[[NodeFacts], Expr]


def _count_elements(node: NodeFacts, index: int = 0) -> Expr:
    return dims_product(node.dims(index))


def _count_results(node: NodeFacts) -> Expr:
    return dims_product(node.output())


def _ops(names: str, microsoft: str = "") -> frozenset[str]:
    return operator_set(names) | operator_set(microsoft, "com.microsoft")


def _by_operator(*rows: tuple[Rule, Iterable[str]]) -> Mapping[str, Rule]:
    return join_tables(*(dict.fromkeys(operators, rule) for rule, operators in rows))


VIEWS = SAME_ORDER | _ops("BitCast Dropout")  # the output has the bytes of the first input
SHAPE_ONLY = MEASURING | _ops("EyeLike RandomNormalLike RandomUniformLike")  # read nothing of the first input
# Read as many elements of the first input as they give
READ_IN_PART = PICKING | _ops("", "GatherBlockQuantized")

EXPERTS: Mapping[str, tuple[int, ...]] = {"com.microsoft.MoE": (2, 4, 6), "com.microsoft.QMoE": (2, 5, 8)}  # weights


def _matrix_product(node: NodeFacts) -> Expr:
    """Return one for each element of the output and each element of the dim that is summed over."""
    place = -2 if node.attr("transA", 0) else -1
    return _count_results(node) * dims_product(node.dims(0)[place:][:1])


def _convolution_rule(weights: int) -> Rule:
    """Return the rule of a convolution whose weights, [output channels, channels of a group, *kernel], are an input."""
    return lambda node: _count_results(node) * dims_product(node.dims(weights)[1:])


def _count_einsum(node: NodeFacts) -> Expr:
    """Return one for each combination of all indices."""
    terms = node.attr("equation", str).replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(node.inputs):
        raise UnknownError("its equation does not fit its inputs")
    indices: dict[str, Expr] = {}
    for number, term in enumerate(terms):
        dims, (head, dots, tail) = node.dims(number), term.partition("...")
        more = len(dims) - len(head + tail)  # that the dots stand for, the last of them at the same place everywhere
        if more < 0 or (more and not dots) or "." in head + tail:
            raise UnknownError(f"its equation does not name every index of input {number}")
        names = [*head, *(f".{place}" for place in range(more, 0, -1)), *tail]
        indices |= {name: dim for name, dim in zip(names, dims, strict=True) if dim != 1 or name not in indices}
    return dims_product(indices.values())


def _attended_positions(node: NodeFacts) -> Expr:
    """Return the number of positions that each query of an attention looks at, the past included."""
    keys = node.dims_of_rank(1 if node.has(1) else 0, 3, 4)
    length, past = keys[1] if len(keys) == 3 else keys[2], PAST_KEYS[node.node.operator]
    return length + node.dims_of_rank(past, 4)[2] if node.has(past) else length


def _attention_macs(node: NodeFacts) -> Expr:
    """Return the products of queries and keys, and of their weights and the values."""
    queries, length = node.dims_of_rank(0, 3, 4), _attended_positions(node)
    if not node.has(1):  # queries, keys and values in one tensor: the queries are as wide as the result
        if node.node.op_type != "GroupQueryAttention" or len(queries) != 3:
            raise UnknownError("its queries, keys and values are packed into one tensor")
        queries = node.output()
    return dims_product(queries) * length + _count_results(node) * length


def _attention_scores(node: NodeFacts) -> Expr:
    """Return a scaling and a softmax for each pair of a query and a position that it looks at."""
    queries, heads = node.dims_of_rank(0, 3, 4), "q_num_heads" if not node.node.domain else "num_heads"
    each = dims_product(queries[:3]) if len(queries) == 4 else queries[0] * queries[1] * node.attr(heads, int)
    return each * _attended_positions(node) * (1 + SOFTMAX)


def _packed_macs(node: NodeFacts) -> Expr:
    """Return those of an attention that makes queries, keys and values itself; its past is [2, b, heads, length, n]."""
    data, weights, result = node.dims_of_rank(0, 3), node.dims_of_rank(1, 2), node.output()
    past = node.dims_of_rank(4, 5)[3] if node.has(4) else const(0)
    if len(result) != 3:
        raise UnknownError(f"its output has rank {len(result)}")
    keys = (weights[1] - result[2]) // 2
    return data[0] * data[1] * (weights[0] * weights[1] + (data[1] + past) * (keys + result[2]))


def _packed_scores(node: NodeFacts) -> Expr:
    data, past = node.dims_of_rank(0, 3), node.dims_of_rank(4, 5)[3] if node.has(4) else const(0)
    scores = data[0] * data[1] * (data[1] + past) * node.attr("num_heads", int)
    return scores * (1 + SOFTMAX) + data[0] * data[1] * (node.dims_of_rank(1, 2)[1] if node.has(2) else const(0))


def _recurrent_macs(node: NodeFacts) -> Expr:
    """Return one for each weight, at each step of each sequence."""
    steps = node.dims_of_rank(0, 3)
    return steps[0] * steps[1] * (_count_elements(node, 1) + _count_elements(node, 2))


def _recurrent_rule(gates: int, each: int) -> Rule:
    """Return so many operations for each element of the state at each step, and a bias for each gate."""

    def rule(node: NodeFacts) -> Expr:
        steps, recurrence = node.dims_of_rank(0, 3), node.dims_of_rank(2, 3)
        hidden = recurrence[2] if node.node.op_type != "DynamicQuantizeLSTM" else recurrence[1]
        return steps[0] * steps[1] * recurrence[0] * hidden * (each + gates * node.has(3))

    return rule


def _count_experts(node: NodeFacts) -> Expr:
    """Return one for each weight of the experts that a token is sent to."""
    given = filter(node.has, EXPERTS[node.node.operator])
    weights = sum((dims_product(node.dims_of_rank(index, 3)[1:]) for index in given), const(0))
    packed = 8 // node.attr("expert_weight_bits", 4) if node.node.op_type == "QMoE" else 1
    return dims_product(node.dims(0)[:-1]) * weights * (packed * node.attr("k", 1))


MATRIX_PRODUCTS = _ops(
    "Gemm MatMul MatMulInteger QLinearMatMul",
    "DynamicQuantizeMatMul FusedGemm FusedMatMul MatMulBnb4 MatMulIntegerToFloat MatMulNBits QGemm",
)
MACS = _by_operator(
    (_matrix_product, MATRIX_PRODUCTS),
    (_convolution_rule(1), _ops("Conv ConvInteger DeformConv", "FusedConv")),
    (_convolution_rule(3), _ops("QLinearConv", "QLinearConv")),
    (lambda node: _count_elements(node, 0) * dims_product(node.dims(1)[1:]), _ops("ConvTranspose")),
    (_count_einsum, _ops("Einsum")),
    (_attention_macs, PAST_KEYS),
    (_packed_macs, _ops("", "Attention")),
    (_recurrent_macs, _ops("GRU LSTM RNN", "DynamicQuantizeLSTM")),
    (_count_experts, EXPERTS),
)

SOFTMAX = 5  # for each element: the maximum, a difference, an Exp, the sum, a division
NEIGHBOURS = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}  # along one axis, by mode
IDENTICAL = _ops("BitCast Identity")  # of UNARY: the elements are what they were
TWICE = _ops("ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare")  # of REDUCTIONS: a function of each, and a sum


def _per_result(count: int, *optional: int) -> Rule:
    """Return so many for each element of the output, and one more for each of some inputs that is given."""
    return lambda node: _count_results(node) * (count + sum(map(node.has, optional)))


def _per_element(count: int, *optional: int) -> Rule:
    return lambda node: _count_elements(node) * (count + sum(map(node.has, optional)))


def _count_nothing(_: NodeFacts) -> Expr:
    return const(0)


def _count_variadic(node: NodeFacts) -> Expr:
    """Return one less than there are inputs for each element of the output, and a division for a mean."""
    count = sum(value is not None for value in node.inputs)
    return _count_results(node) * (count if node.node.op_type == "Mean" else count - 1)


def _count_gemm(node: NodeFacts) -> Expr:
    added = 1 + (node.attr("beta", 1.0) != 1.0) if node.has(2) else 0
    return _count_results(node) * ((node.attr("alpha", 1.0) != 1.0) + added)


def _pool_rule(each: int) -> Rule:
    return lambda node: _count_results(node) * (each * math.prod(node.attr("kernel_shape", tuple)))


def _count_unpacked(node: NodeFacts) -> Expr:
    """Return a subtraction and a scaling for each weight of a MatMulNBits, and a bias."""
    return const(2 * node.attr("K", int) * node.attr("N", int)) + _count_results(node) * int(node.has(5))


def _count_resize(node: NodeFacts) -> Expr:
    """Return the operations of a Resize, which interpolates along the axes whose dims it changes."""
    before, after = node.dims(0), node.output()
    if len(before) != len(after):
        raise UnknownError(f"its output has rank {len(after)}")
    return _from_neighbours(node, "nearest", sum(old != new for old, new in zip(before, after, strict=True)))


def _from_neighbours(node: NodeFacts, default: str, axes: int) -> Expr:
    """Return a multiplication and an addition for each neighbour that an element is interpolated from."""
    mode = node.attr("mode", default)
    if mode not in NEIGHBOURS:
        raise UnknownError("its attribute 'mode' is not known")
    return _count_results(node) * (2 * NEIGHBOURS[mode] ** axes if NEIGHBOURS[mode] else 0)


OPERATIONS = _by_operator(
    (_per_result(1), (UNARY - IDENTICAL) | UNIDIRECTIONAL.keys() | (BROADCASTING.keys() - VARIADIC)),
    (_per_result(1), _ops("Range BlackmanWindow HammingWindow HannWindow", "QLinearAdd QLinearMul")),
    (_per_result(1), _ops("Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike")),
    (_per_result(2), _ops("SwiGLU")),
    (_per_result(3), _ops("RotaryEmbedding", "RotaryEmbedding")),
    (_count_variadic, VARIADIC),
    (_per_element(1), REDUCTIONS - TWICE),
    (_per_element(1), _ops("ArgMax ArgMin CumProd CumSum TopK Col2Im GlobalAveragePool GlobalMaxPool")),
    (_per_element(2), TWICE | _ops("GlobalLpPool Hardmax BatchNormalization")),
    (_per_element(3), _ops("LpNormalization")),
    (_per_element(4), _ops("RMSNormalization DynamicQuantizeLinear")),
    (_per_element(4), _ops("SimplifiedLayerNormalization", "SimplifiedLayerNormalization")),
    (_per_element(5), _ops("MeanVarianceNormalization")),
    (_per_element(SOFTMAX), _ops("Softmax LogSoftmax", "QLinearSoftmax")),
    (_per_element(6, 2), _ops("LayerNormalization")),
    (_per_element(7), _ops("InstanceNormalization GroupNormalization")),
    (_per_element(7, 3, 4), _ops("", "SkipLayerNormalization")),
    (_per_element(5, 3), _ops("", "SkipSimplifiedLayerNormalization")),
    # The squares, their sum over a window of channels, a power and a division
    (lambda node: _count_elements(node) * (node.attr("size", int) + 3), _ops("LRN")),
    (_per_element(1, 2), _ops("QuantizeLinear DequantizeLinear", "QuantizeLinear DequantizeLinear")),
    (_per_element(1, 1), _ops("", "BiasGelu FastGelu")),
    (_pool_rule(1), _ops("AveragePool MaxPool")),
    (_pool_rule(2), _ops("LpPool")),
    (_count_resize, _ops("Resize Upsample")),
    (lambda node: _from_neighbours(node, "linear", len(node.dims(0)) - 2), _ops("GridSample")),
    # One for each update that is added to, multiplied or compared with what is there
    (lambda node: _count_elements(node, 2) * int(node.attr("reduction", "none") != "none"), SCATTERING),
    # Products: what they do besides multiplying and adding
    (_count_nothing, _ops("MatMul MatMulInteger Einsum ConvInteger", "FusedMatMul MatMulBnb4")),
    (_count_gemm, _ops("Gemm", "FusedGemm")),
    (_per_result(0, 2), _ops("Conv ConvTranspose", "FusedConv")),
    (_per_result(0, 3), _ops("DeformConv")),
    (_per_result(2, 8), _ops("QLinearConv QLinearMatMul", "QLinearConv")),
    (_per_result(2, 6), _ops("", "QGemm")),
    (_per_result(1, 6), _ops("", "MatMulIntegerToFloat")),
    (lambda node: _count_elements(node) * 4 + _per_result(1, 4)(node), _ops("", "DynamicQuantizeMatMul")),
    (_count_unpacked, _ops("", "MatMulNBits")),
    (_attention_scores, PAST_KEYS),
    (_packed_scores, _ops("", "Attention")),
    (_recurrent_rule(GATES["LSTM"], 9), _ops("LSTM", "DynamicQuantizeLSTM")),
    (_recurrent_rule(GATES["GRU"], 8), _ops("GRU")),
    (_recurrent_rule(GATES["RNN"], 1), _ops("RNN")),
    # Only moved, compared with nothing and computed from nothing
    (
        _count_nothing,
        (MOVING | IDENTICAL | MEASURING)
        | _ops(
            """
            CenterCropPad Constant ConstantOfShape Dropout EyeLike MaxUnpool OneHot Pad TensorScatter Trilu
            ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty
            SequenceErase SequenceInsert SequenceLength SplitToSequence
            """,
            "QLinearConcat GatherBlockQuantized",
        ),
    ),
)

UNCOUNTED: Mapping[str, str] = {
    operator: reason
    for reason, operators in {
        "its work depends on its data": _ops(
            """
            MaxRoiPool Multinomial NonMaxSuppression NonZero RoiAlign Unique ImageDecoder StringNormalizer StringSplit
            TfIdfVectorizer
            """
        ),
        "its work depends on the algorithm that the runtime chooses": _ops("AffineGrid DFT Det MelWeightMatrix STFT"),
        "there is no rule for it yet": _ops("CausalConvWithState LinearAttention"),
        "it is for training": _ops("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
        "the number of its calls is the length of a sequence": _ops("SequenceMap"),
        "its activation and its gate are not followed": EXPERTS,
    }.items()
    for operator in sorted(operators)
}
