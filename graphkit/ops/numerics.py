"""The bits of what operators compute: zeros of either sign, functions whose digits depend on places, versions.

Source: runs of onnxruntime 1.32, and the changelog of the ONNX operators, see `MEANINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.graph.operator_traits import (
    COMMUTATIVE,
    COMPARING,
    MOVING,
    REDUCTIONS,
    SOFTMAXES,
    VARIADIC,
    operator_set,
)

# -0 and 0 compare equal, but 1 / x tells them apart, so that `x + 0`, which makes 0 of -0, is x for some readers alone.
# An operator that is blind to the sign gives the same bits for both; a faithful one gives at most zeros of another
# sign: in all inputs, or in the first.
BLIND = COMPARING | operator_set(
    """
    Abs Cos Cosh DynamicQuantizeLinear Exp IsInf IsNaN Log NonMaxSuppression NonZero QuantizeLinear ReduceL1 ReduceL2
    ReduceSumSquare Shape Sigmoid Size Softmax Softplus
    """
)
BLIND_IN_SECOND = operator_set("RoiAlign")
FAITHFUL_IN_ALL = VARIADIC | operator_set("Add Concat Einsum Gemm MatMul Mul Sub Where")
FAITHFUL = FAITHFUL_IN_ALL | MOVING
FAITHFUL |= operator_set(
    """
    Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv ConvTranspose CumSum Div Elu Erf
    Floor GRU Gelu GlobalAveragePool GlobalMaxPool GroupNormalization HardSigmoid HardSwish InstanceNormalization LRN
    LSTM LayerNormalization LeakyRelu LogSoftmax LpNormalization LpPool MaxPool MeanVarianceNormalization Mish Neg PRelu
    Pad RMSNormalization RNN ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Resize Round Selu
    Shrink Sin Sinh Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    """
)
FAITHFUL_IN_FIRST = operator_set("BatchNormalization Div")  # and in no other

# Whose digits depend on where an element stands: onnxruntime computes the last ones, or those of one exponent, by
# another function than the others. So they are not computed once for elements that repeat.
PLACED = operator_set("Acos Asin Atan Celu Cos Elu Exp Gelu Log Mish Pow Selu Sigmoid Sin Softplus Swish Tanh")
PLACED |= operator_set("QuickGelu", "com.microsoft")
PLACED_IN_DOUBLE = operator_set("Exp Gelu Sigmoid Swish Tanh") | operator_set("QuickGelu", "com.microsoft")
# What reduces all elements in the order in which it reduces rows.
IN_ORDER = operator_set("ReduceMax ReduceMean ReduceMin ReduceSum")
# Of 0 and -0 they give either, which depends on which of them repeats, and on dims of 1.
EXTREMES = operator_set("Max Min")
# Of two inputs that may be swapped, to the last bit.
SWAPPING = (COMMUTATIVE - VARIADIC) | operator_set("BitwiseAnd BitwiseOr BitwiseXor")

NEWEST = 24  # the newest version of https://github.com/onnx/onnx/blob/main/docs/Changelog.md that was read


def _since_version(version: int, text: str) -> Mapping[str, tuple[int, ...]]:
    return dict.fromkeys(operator_set(text), (version,))


# Since which versions a node, as it stands, means what it means until the next of them. In between there are more
# dtypes, and attributes and inputs that may be left out. An operator that is not named here keeps its version, and
# differs from that of any other version.
MEANINGS: Mapping[str, tuple[int, ...]] = {
    **_since_version(1, """
        ArgMax ArgMin Conv DepthToSpace Flatten Gather GlobalAveragePool GlobalMaxPool Identity LRN
        LayerNormalization Loop LpNormalization MatMul SimplifiedLayerNormalization Shape Size Softplus Softsign
        SpaceToDepth Transpose RandomNormal RandomNormalLike RandomUniform RandomUniformLike"""),
    **dict.fromkeys(REDUCTIONS, (1,)),
    **_since_version(4, "Concat"),
    **_since_version(5, "Reshape"),
    **_since_version(6, """
        Abs Cast Ceil Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid
        Sqrt Tanh Tile"""),
    **_since_version(7, """
        Acos Add And Asin Atan Cos Div Equal GRU Gemm Greater LSTM Less Mul Multinomial Or PRelu Pow RNN Sin
        Sub Tan Xor"""),
    **_since_version(8, "Expand Max MaxPool Mean Min Sum"),
    **_since_version(9, """
        Acosh Asinh Atanh BatchNormalization Compress ConstantOfShape Cosh Erf EyeLike IsNaN MeanVarianceNormalization
        NonZero Scan Sign Sinh Where"""),
    **_since_version(10, """
        DequantizeLinear IsInf Mod NonMaxSuppression QLinearMatMul QuantizeLinear Slice ThresholdedRelu TopK"""),
    **_since_version(11, """
        Clip ConvTranspose CumSum Det GatherElements GatherND Pad Resize Round ScatterElements ScatterND SplitToSequence
        """),
    **_since_version(12, "GreaterOrEqual LessOrEqual"),
    **_since_version(13, "Split Squeeze Unsqueeze"),
    **_since_version(14, "HardSwish"),
    **_since_version(18, "Mish"),
    **dict.fromkeys(SOFTMAXES, (1, 13)),  # over all axes from one on, until 13
    "AveragePool": (7, 19),  # which adds up in another order
    "OneHot": (9, 11),  # of negative indices
}  # fmt: skip
# Since which versions onnxruntime has kernels for float16; before, it computes in float32, whose least bound is lower.
KERNELS_OF_HALVES: Mapping[str, int] = {"Clip": 12, "Max": 12, "Min": 12, "QuantizeLinear": 23}
# Since which versions what works on int64 works on int32 too.
KERNELS_OF_INT32: Mapping[str, int] = {
    **dict.fromkeys(COMPARING, 9), "Abs": 6, "Equal": 7, "Max": 12, "Min": 12, "Neg": 6, "Where": 9,
}  # fmt: skip
# Of float16, onnxruntime runs the body that ONNX has for them where the model has the version of that body, and
# elsewhere a kernel of float32: other digits, infinities and signs of zeros.
BODIES_OF_HALVES = operator_set(
    """
    Elu HardSigmoid HardSwish LeakyRelu MeanVarianceNormalization Mish PRelu ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceSumSquare Relu Selu Softplus Softsign ThresholdedRelu
    """
)
