"""Traits of operators: facts that hold for every node of an operator, and the inputs that it reads for their value.

An operator is named as by `Node.operator`: with its domain unless that is the default one. A test derives from the
schemas of onnx and onnxruntime, and by running operators, what it can: it fails for a new operator that is in none of
these sets.

An input that is read for its value is a shape, an axis, a count or a bound of a Slice. It decides the output's shape or
the place of its elements, not only its numbers. Source: the ONNX operator specification, per operator the version from
which the parameter is an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import onnx.defs

from graphkit.graph.view import Node, Value

Entry = TypeVar("Entry")
NEWEST = (1 << 31) - 1  # the largest version that onnx can be asked for


@lru_cache(maxsize=4096)
def operator_schema(op_type: str, version: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """Return what onnx knows of an operator in a version of its domain, None where that has no such operator."""
    try:
        return onnx.defs.get_schema(op_type, min(version, NEWEST), domain)
    except onnx.defs.SchemaError:
        return None


def schema_of(node: Node) -> onnx.defs.OpSchema | None:
    """Return what onnx knows of the operator of a node, None where it does not know it."""
    return operator_schema(node.op_type, node.scope.opset(node.domain), node.domain)


def join_tables(*tables: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return all entries of some tables, no two of which name the same operator."""
    result: dict[str, Entry] = {}
    for table in tables:
        if twice := sorted(result.keys() & table.keys()):
            raise ValueError(f"{', '.join(twice)}: registered twice")
        result.update(table)
    return result


def operator_set(text: str, domain: str = "") -> frozenset[str]:
    """Return the operators that a text lists, with their domain."""
    return frozenset(f"{domain}.{name}" if domain else name for name in text.split())


# The output has the dims of the first input, and each element depends on the same element of that input alone. Other
# inputs hold one number for the whole tensor, or only a type.
UNARY = operator_set(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal RegexFullMatch Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    Affine ParametricSoftplus Scale ScaledTanh
    """
) | operator_set("Gelu QLinearLeakyRelu QLinearSigmoid QuickGelu ScaledSiLU", "com.microsoft")

# Elementwise, and all inputs broadcast to each other, from an opset of the default domain on.
BROADCASTING: Mapping[str, int] = {
    **dict.fromkeys(operator_set("Add And Div Equal Greater Less Mul Or Pow Sub Xor"), 7),
    **dict.fromkeys(operator_set("Max Mean Min Sum"), 8),
    "Where": 9,
    "Mod": 10,
    "BitShift": 11,
    **dict.fromkeys(operator_set("GreaterOrEqual LessOrEqual"), 12),
    **dict.fromkeys(operator_set("BitwiseAnd BitwiseOr BitwiseXor"), 18),
    "StringConcat": 20,
}
# Elementwise, and the second input broadcasts to the first, never the first to the second.
UNIDIRECTIONAL: Mapping[str, int] = {"PRelu": 7}

# Data movement: every element of the outputs is an element of the first input, of a Concat one of any input.
RESHAPING = operator_set("Flatten Reshape Squeeze Unsqueeze")  # all of them, in the same order
SAME_ORDER = RESHAPING | {"Identity"}
REARRANGING = SAME_ORDER | {"Transpose"}  # all of them, each once
PRESERVING = REARRANGING | operator_set("DepthToSpace Expand ReverseSequence SpaceToDepth Tile")  # all of them
GATHERING = operator_set("Gather GatherElements GatherND")  # those that indices choose
CUTTING = operator_set("Compress Slice Split")  # those at some places of an axis
PICKING = GATHERING | CUTTING  # some of them
JOINING = operator_set("Concat")  # those of several tensors
MOVING = PRESERVING | PICKING | JOINING
# Further operators of which every element is an element of some inputs, or 0; those that write may add up, too.
COPIED: Mapping[str, tuple[int, ...]] = {
    "Pad": (0,),  # and the padding
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "TensorScatter": (0, 1),
    "Trilu": (0,),
    "Where": (1, 2),
}
COPYING = MOVING | COPIED.keys()
SCATTERING = operator_set("Scatter ScatterElements ScatterND")
MEASURING = operator_set("Shape Size")  # of a tensor, they read the dims alone
SHAPE_READERS = ("Reshape", "Expand", "ConstantOfShape", "Slice", "Tile", "Resize", "Range")  # in the order of reports
# What moves, makes or measures shapes, in the order of reports.
SHAPE_OPERATORS = tuple(
    """
    Shape Size Gather Unsqueeze Squeeze Concat Slice Reshape Flatten Expand ConstantOfShape Range Tile Resize Upsample
    Where Pad Split TopK OneHot CenterCropPad Col2Im AffineGrid MaxUnpool
    """.split()  # noqa: SIM905 - as all other tables
)

COMPARING = operator_set("Equal Greater GreaterOrEqual Less LessOrEqual")
VARIADIC = operator_set("Max Mean Min Sum")  # of any number of inputs
COMMUTATIVE = VARIADIC | operator_set("Add And Equal Mul Or Xor")
SOFTMAXES = operator_set("Softmax LogSoftmax Hardmax")
ONE_AXIS_SINCE = 13  # of them; before, all axes from one on are one
# What onnxruntime has in ONNX's own domain where ONNX does not: its own operators, those of old drafts, of TensorRT.
EXTRA = operator_set(
    "Affine Crop DisentangledAttention_TRT DynamicSlice EfficientNMS_TRT GRUUnit GivenTensorFill ImageScaler "
    "LayerNormalization MeanVarianceNormalization MultilevelCropAndResize_TRT ParametricSoftplus PyramidROIAlign_TRT "
    "Scale ScaledTanh SimplifiedLayerNormalization ThresholdedRelu"
)
NORMALIZATIONS = operator_set("LayerNormalization RMSNormalization SimplifiedLayerNormalization")
SKIP_NORMALIZATIONS = operator_set("SkipLayerNormalization SkipSimplifiedLayerNormalization", "com.microsoft")
GATES: Mapping[str, int] = {"GRU": 3, "LSTM": 4, "RNN": 1}
RECURRENT = frozenset(GATES)

REDUCTIONS = operator_set(
    """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
    """
)

DIVIDING = operator_set("Div Mod")  # of integers, by 0: some versions of onnxruntime end the process there

# May draw random numbers; those with `Dropout` in their name do so in training only.
RANDOM = operator_set(
    "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
) | operator_set("BiasDropout BitmaskBiasDropout BitmaskDropout Sampling", "com.microsoft")

# Styles of quantization, and the operators of any domain that show them: onnxruntime has them in several.
QUANTIZED: Mapping[str, frozenset[str]] = {
    "QDQ": operator_set("QuantizeLinear DequantizeLinear"),
    "dequantised weights": operator_set("DequantizeLinear"),
    "dynamic": operator_set("DynamicQuantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul"),
    "integer operators": operator_set(
        """
        ConvInteger MatMulInteger MatMulInteger16 MatMulIntegerToFloat MulInteger ReduceSumInteger QAttention
        QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv
        QLinearGlobalAveragePool QLinearLeakyRelu QLinearMatMul QLinearMul QLinearReduceMean QLinearSigmoid
        QLinearSoftmax QLinearWhere QOrderedAttention QOrderedGelu QOrderedLayerNormalization
        QOrderedLongformerAttention QOrderedMatMul QuantizeWithOrder DequantizeWithOrder
        """
    ),
    "block-quantised": operator_set(
        """
        GatherBlockQuantized MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4
        MatMulNBits MatMulNBitsMlp MatMulNBitsQLoRA MatMulNBitsQkv QMoE QuantizeBFP DequantizeBFP
        """
    ),
}


def broadcasts_inputs(node: Node) -> bool:
    """Return whether all inputs of a node broadcast to each other."""
    since = BROADCASTING.get(node.operator)
    return since is not None and node.scope.opset() >= since


def joined_parts(node: Node) -> Sequence[Value | None]:
    """Return the tensors that a node joins along an axis, none where it does something else."""
    return node.inputs if node.is_op(*JOINING) else ()


def cut_bounds(node: Node) -> Sequence[Value | None]:
    """Return what says where a node cuts its data: starts, ends, axes and steps, if inputs do; else nothing."""
    is_known = node.is_op("Slice") and node.input(0) is not None and not has_attributes_only(node)
    return [node.input(index) for index in range(1, 5)] if is_known else ()


def requested_shape(node: Node) -> Value | None:
    """Return the tensor that says which dims a node gives its data, whose elements stay in order; None for no such."""
    return node.input(1) if node.is_op("Reshape") else None


def copied_inputs(node: Node) -> Sequence[int]:
    """Return the inputs whose elements a node's outputs have, none where it computes others; 0 may be beside them."""
    if node.operator in MOVING:
        return range(len(joined_parts(node) or node.inputs[:1]))
    return () if node.attr("reduction", "none") != "none" else COPIED.get(node.operator, ())


def is_elementwise(node: Node) -> bool:
    """Return whether each element of the output depends on one element of each input, or on one number for all."""
    since = UNIDIRECTIONAL.get(node.operator)
    return node.operator in UNARY or broadcasts_inputs(node) or (since is not None and node.scope.opset() >= since)


# Attributes that became inputs, in the order of these, from input 1 on: since which version.
BECAME_INPUTS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(sorted(REDUCTIONS - {"ReduceSum"}), (18, ("axes",))),
    **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), (13, ("axes",))),
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "Slice": (10, ("starts", "ends", "axes")),
    "Split": (13, ("split",)),
    "TopK": (10, ("k",)),
}


def has_attributes_only(node: Node) -> bool:
    """Return whether a node is of a version in which what `BECAME_INPUTS` names are attributes."""
    since, _ = BECAME_INPUTS.get(node.operator, (0, ()))
    return node.scope.opset() < since


# Operator -> (first opset, {input index: name}), newest last.
VALUE_INPUTS: Mapping[str, tuple[tuple[int, Mapping[int, str]], ...]] = {
    "AffineGrid": ((20, {1: "size"}),),
    "BlackmanWindow": ((17, {0: "size"}),),
    "CenterCropPad": ((18, {1: "shape"}),),
    "Col2Im": ((18, {1: "image_shape", 2: "block_shape"}),),
    "ConstantOfShape": ((9, {0: "shape"}),),
    "CumProd": ((26, {1: "axis"}),),
    "CumSum": ((11, {1: "axis"}),),
    "DFT": ((17, {1: "dft_length"}), (20, {1: "dft_length", 2: "axis"})),
    "Expand": ((8, {1: "shape"}),),
    "HammingWindow": ((17, {0: "size"}),),
    "HannWindow": ((17, {0: "size"}),),
    "MaxUnpool": ((9, {2: "output_shape"}),),
    "MelWeightMatrix": ((17, {0: "num_mel_bins", 1: "dft_length"}),),
    "NonMaxSuppression": ((10, {2: "max_output_boxes_per_class"}),),
    "OneHot": ((9, {1: "depth"}),),
    "Range": ((11, {0: "start", 1: "limit", 2: "delta"}),),
    **{op: ((since, dict(enumerate(names, 1))),) for op, (since, names) in BECAME_INPUTS.items() if op != "Clip"},
    "Pad": ((11, {1: "pads"}), (18, {1: "pads", 3: "axes"})),
    "Reshape": ((5, {1: "shape"}),),
    "Resize": ((10, {1: "scales"}), (11, {1: "roi", 2: "scales", 3: "sizes"})),
    "Slice": ((10, {1: "starts", 2: "ends", 3: "axes", 4: "steps"}),),
    "Split": ((1, {1: "split"}), (2, {}), (13, {1: "split"})),
    "SplitToSequence": ((11, {1: "split"}),),
    "STFT": ((17, {1: "frame_step", 3: "frame_length"}),),
    "Tile": ((1, {1: "tiles", 2: "axis"}), (6, {1: "repeats"})),
    "Trilu": ((14, {1: "k"}),),
    "Upsample": ((9, {1: "scales"}),),
}
# Operators whose dims depend on the dims of their inputs alone, and on the inputs that are read for their value.
SHAPED = operator_set(
    """
    AveragePool Concat ConstantOfShape Conv ConvTranspose Einsum Expand Gemm MatMul MaxPool Pad Range Reshape Resize
    Slice Tile
    """
)


def value_inputs(node: Node) -> Mapping[int, str]:
    """Return the inputs whose value a node reads: name by index, without those that it leaves out."""
    if node.operator not in VALUE_INPUTS:
        return {}
    opset, inputs = node.scope.opset(), node.inputs
    inputs_read = next((read for since, read in reversed(VALUE_INPUTS[node.operator]) if opset >= since), {})
    return {i: name for i, name in inputs_read.items() if i < len(inputs) and inputs[i] is not None}


# What attentions, lookups and rotary embeddings read.
GROUPED = "com.microsoft.GroupQueryAttention"
INDICES: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that are indices into a table
    "Gather": (1,),
    "com.microsoft.GatherBlockQuantized": (1,),
    "com.microsoft.EmbedLayerNormalization": (0, 1, 8),
}
# Operators that look up rows of a table by their second input, and the attribute that names the axis of these.
LOOKUPS: Mapping[str, str] = {"Gather": "axis", "com.microsoft.GatherBlockQuantized": "gather_axis"}
SCORE_BIASES: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that are added to scores
    "Attention": (3,),
    "com.microsoft.Attention": (5,),
    "com.microsoft.MultiHeadAttention": (5,),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (4,),
    GROUPED: (10,),
}
PAST_KEYS: Mapping[str, int] = {  # operator -> the input of past keys [batch, heads, length, size], values come next
    "Attention": 4,
    "com.microsoft.MultiHeadAttention": 6,
    GROUPED: 3,
}
KEY_MASKS: Mapping[str, tuple[int, ...]] = {  # operator -> inputs of which 0 hides
    "com.microsoft.Attention": (3,),
    "com.microsoft.QAttention": (5,),
    "com.microsoft.MultiHeadAttention": (4,),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (3,),
    "com.microsoft.EmbedLayerNormalization": (7,),
}
KEY_LENGTHS: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that say how many positions count
    GROUPED: (5,),
    "com.microsoft.SparseAttention": (8,),
}
SCORES: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that are scores, or tell of masks of them
    "Softmax": (0,),
    **{
        operator: tuple(index for table in (SCORE_BIASES, KEY_MASKS, KEY_LENGTHS) for index in table.get(operator, ()))
        for operator in (*SCORE_BIASES, *KEY_MASKS, *KEY_LENGTHS)
    },
}
ANGLES: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that are positions, or angles of them
    "Sin": (0,),
    "Cos": (0,),
    "RotaryEmbedding": (3,),
    "com.microsoft.RotaryEmbedding": (1,),
    GROUPED: (9,),
}
COSINES: Mapping[str, int] = {  # operator -> the input that is a table of cosines, a row for each position
    "RotaryEmbedding": 1,
    "com.microsoft.RotaryEmbedding": 2,
    GROUPED: 7,
}

# The bits of what operators compute: zeros of either sign, functions whose digits depend on places, versions.
#
# Source: runs of onnxruntime 1.32, and the changelog of the ONNX operators, see `MEANINGS`.

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

NEWEST_MEANING = 24  # the newest version of https://github.com/onnx/onnx/blob/main/docs/Changelog.md that was read


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
