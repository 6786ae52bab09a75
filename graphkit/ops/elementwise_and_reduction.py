"""Elementwise operators, reductions and normalization layers, also quantised, or fused with a residual or an embedding.

Their dims are those of the input, or those that the inputs broadcast to; those that are reduced become 1 or go. Among
them are scalers, linear models, support vectors and trees of ai.onnx.ml, of which onnx infers no dims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np
from onnx import AttributeProto, TensorProto

from graphkit.dtypes import FLOATS, HALVES, INTEGERS
from graphkit.graph import operator_traits
from graphkit.graph.operator_traits import operator_set
from graphkit.ops.data_movement import small_data
from graphkit.ops.element_values import (
    COMPARISONS,
    OPERATORS,
    apply_operation,
    cast_element,
    choose_element,
    for_each_element,
)
from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import (
    EXACT,
    MAX_ELEMENTS,
    Array,
    Dims,
    Element,
    Tensor,
    array_of,
    dims_product,
    is_exact,
    sizes_of,
)
from graphkit.symbolic.algebra import lower, upper
from graphkit.symbolic.expr import Expr, const

PAIRED = frozenset(operator_traits.BROADCASTING) - operator_traits.VARIADIC  # operators of two inputs or more
# Dtypes of which onnxruntime has no Where.
NO_WHERE = frozenset({TensorProto.BOOL, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT64})


def infer_unary(ctx: InferenceContext) -> Tensor:
    """Return the dims of the first input; the dtype is that of the input, or bool."""
    tensor = ctx.tensor()
    dtype = TensorProto.BOOL if ctx.node.op_type in _TRUTH else tensor.dtype
    return Tensor(dtype, tensor.dims, _propagate_elements(ctx, dtype, [tensor], tensor.dims), tensor.reason)


def with_slope(ctx: InferenceContext) -> Tensor:
    """Return the dims of data and slope: onnxruntime lets either broadcast, where ONNX wants the slope to."""
    if ctx.opset < operator_traits.UNIDIRECTIONAL["PRelu"]:
        return infer_unary(ctx)
    return ctx.like(ctx.broadcast(ctx.dims(0), ctx.dims(1)))


def infer_broadcasting(ctx: InferenceContext) -> Tensor:
    """Return the broadcast shape of all inputs; the dtype is that of the first one, or bool."""
    tensors = [ctx.tensor(index) for index in range(len(ctx.inputs))]
    dtype = TensorProto.BOOL if ctx.node.op_type in COMPARISONS else tensors[0].dtype
    dims = ctx.broadcast(*(ctx.dims(index) for index in range(len(tensors))))
    if ctx.node.op_type in operator_traits.DIVIDING and tensors[1].dtype in INTEGERS and tensors[1].data is not None:
        for element in ctx.exprs(1):  # the divisor has elements: without a dividend's there is no result
            ctx.require_not_zero(element, ctx.dims(0), "a divisor of 0", "by zero")
    return Tensor(dtype, dims, _propagate_elements(ctx, dtype, tensors, dims))


def _propagate_elements(ctx: InferenceContext, dtype: int, tensors: list[Tensor], dims: Dims | None) -> Array | None:
    name = ctx.node.op_type
    if name not in OPERATORS or dims is None or (arrays := _broadcast_elements(tensors, dims)) is None:
        return None
    if (len(tensors) < 2 and name in PAIRED) or (len({each.dtype for each in tensors}) > 1 and name != "Pow"):
        return None  # no model that runs
    if (name == "Pow" and tensors[1].count() != 1) or (name == "Sum" and len(arrays) > 2 and dtype in FLOATS):
        return None  # C's pow rounds as it likes; the order of sums is not fixed
    if name == "Mod" and ctx.attr("fmod", 0):
        return None
    while len(arrays) > 2:
        combined = apply_operation(name, arrays[:2], dtype, ctx.may_leave)
        if None in combined.ravel().tolist():
            return None
        arrays[:2] = [combined]
    operand = tensors[0].dtype if name in COMPARISONS or name == "Not" else dtype
    found = apply_operation(name, arrays, operand, ctx.may_leave)
    if name == "Pow" and dtype in INTEGERS:
        held_in_float64(ctx, found)
    return finish_elements(ctx, found, dtype)


def held_in_float64(ctx: InferenceContext, data: Array) -> None:
    """Note up to which numbers elements hold that the runtime computes in float64, though they are integers."""
    for element in data.ravel().tolist():
        if isinstance(element, Expr):
            ctx.at_most(element, EXACT[64])
            ctx.at_most(-element, EXACT[64])


def _broadcast_elements(tensors: list[Tensor], dims: Dims) -> list[Array] | None:
    """Return the elements of tensors that broadcast to some dims, None where they are too many or not all known."""
    sizes = sizes_of(dims)
    if not all(tensor.may_have_data for tensor in tensors) or sizes is None or prod(sizes) > MAX_ELEMENTS:
        return None
    arrays = [data for tensor in tensors if (data := tensor.data) is not None]
    return arrays if len(arrays) == len(tensors) else None


def finish_elements(ctx: InferenceContext, data: Array, dtype: int) -> Array | None:
    """Return elements with an unknown of its own for each that could not be decided; no floats with unknowns."""
    elements = data.ravel().tolist()
    missing = elements.count(None)
    if not missing:
        return data
    if dtype not in INTEGERS or missing == len(elements) > 8:
        return None
    reason = f"its value depends on {'' if dtype == TensorProto.BOOL else 'data, or on '}what the dims are"
    return array_of([ctx.new_element(reason, dtype) if each is None else each for each in elements], data.shape)


def infer_where(ctx: InferenceContext) -> Tensor:
    """Return the broadcast shape of all inputs; each element is chosen where the condition is known."""
    dims = ctx.broadcast(ctx.dims(0), ctx.dims(1), ctx.dims(2))
    dtype = ctx.tensor(1).dtype or ctx.tensor(2).dtype
    arrays = _broadcast_elements([ctx.tensor(index) for index in range(3)], dims)
    chosen = None if arrays is None else for_each_element(choose_element, *arrays)
    return Tensor(dtype, dims, None if chosen is None else finish_elements(ctx, chosen, dtype))


def infer_cast(ctx: InferenceContext) -> Tensor:
    """Return the dims and the elements of the input in another dtype."""
    tensor = ctx.tensor()
    to = ctx.attr("to", 0) if ctx.node.op_type == "Cast" else ctx.tensor(1).dtype
    data = None
    if tensor.may_have_data and (array := tensor.data) is not None and (to in FLOATS or to in INTEGERS):
        found = for_each_element(lambda each: cast_element(each, to, tensor.dtype in FLOATS), array)
        for before, after in zip(array.ravel().tolist(), found.ravel().tolist(), strict=True):
            if after is None:
                ctx.may_leave(before, to)
        data = finish_elements(ctx, found, to)
    return Tensor(to, tensor.dims, data, tensor.reason)


def infer_dropout(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input, for the output and for the mask."""
    tensor = ctx.tensor()
    return [tensor.of_dtype(tensor.dtype), tensor.of_dtype(TensorProto.BOOL if ctx.opset >= 10 else tensor.dtype)]


def infer_clip(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, and its elements where the limits are known."""
    tensor = ctx.tensor()
    data = tensor.data if tensor.may_have_data and not operator_traits.has_attributes_only(ctx.node) else None
    for index, limit in ((1, "Max"), (2, "Min")):
        if data is not None and ctx.has(index):
            bound = None if None in data.ravel().tolist() else ctx.data(index)
            data = None if bound is None else apply_operation(limit, [data, bound.reshape(())], tensor.dtype)
        elif data is not None and tensor.dtype in FLOATS:
            infinity = math.inf if index == 2 else -math.inf
            data = for_each_element(partial(_finite_element, tensor.dtype, infinity), data)
    return tensor.with_contents(tensor.dims, None if data is None else finish_elements(ctx, data, tensor.dtype))


def _finite_element(dtype: int, infinity: float, element: Element | None) -> Element | None:
    """Return an element, of an infinity the largest number: of float16 or of float32, which runs in its place."""
    if element != infinity:
        return element
    return None if dtype in HALVES else math.copysign(float(np.finfo(FLOATS[dtype]).max), infinity)


def infer_quantize(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, with the dtype of the zero point."""
    zero = ctx.tensor(2).dtype if ctx.has(2) else TensorProto.UINT8
    return ctx.tensor().of_dtype(ctx.attr("output_dtype", 0) or zero)


def infer_dequantize(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, with the dtype of the scale."""
    return ctx.tensor().of_dtype(ctx.attr("output_dtype", 0) or ctx.tensor(1).dtype)


def _broadcast_rule(*indices: int, like: int = 0, dtype: int | None = None) -> Rule:
    """Return the rule of inputs that broadcast, with the dtype of one, or a given one."""

    def infer(ctx: InferenceContext) -> Tensor:
        dims = ctx.broadcast(*map(ctx.dims, indices))
        return Tensor(ctx.tensor(like).dtype if dtype is None else dtype, dims)

    return infer


UNORDERED = ("Add", "Mul")  # floats are rounded in the order in which a runtime takes them, which is not fixed
STEP = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


def infer_reduce(ctx: InferenceContext) -> Tensor:
    """Reduce the axes that are given, or all of them unless `noop_with_empty_axes` says otherwise."""
    tensor, dims = ctx.tensor(), ctx.dims()
    is_newer = not ctx.node.domain and not operator_traits.has_attributes_only(ctx.node)
    if is_newer and ctx.has(1) and ctx.data(1) is None and ctx.attr("keepdims", 1):
        return Tensor(tensor.dtype, [dim if dim == 1 else ctx.unknown_value(1) for dim in dims])
    axes = ctx.axes()
    if not axes and is_newer and ctx.attr("noop_with_empty_axes", 0):
        return Tensor(tensor.dtype, dims)
    chosen = {ctx.axis(axis, len(dims)) for axis in axes} if axes else set(range(len(dims)))
    result = _reduced_dims(dims, chosen, bool(ctx.attr("keepdims", 1)))
    return Tensor(tensor.dtype, result, _fold_elements(ctx, chosen, result))


def _reduced_dims(dims: Dims, axes: set[int], keep: bool) -> Dims:
    return tuple(const(1) if i in axes else dim for i, dim in enumerate(dims) if keep or i not in axes)


def _fold_elements(ctx: InferenceContext, axes: set[int], dims: Dims) -> Array | None:
    tensor, step, sizes, data = ctx.tensor(), STEP.get(ctx.node.op_type), sizes_of(dims), small_data(ctx)
    if step is None or (tensor.dtype in FLOATS and step in UNORDERED) or sizes is None or len(axes) < len(ctx.dims()):
        return None
    if data is None or not 0 < data.size <= 32:
        return None
    listed = data.ravel().tolist()
    total, *elements = (array_of([element], ()) for element in listed)
    for element in elements:
        total = apply_operation(step, [total, element], tensor.dtype, ctx.may_leave)
        if total.item() is None:
            return None
    if step in UNORDERED:  # in float64, also of integers, in whatever order
        ends = [(lower(each), upper(each)) for each in map(Expr.of, listed)]
        most = [max(-low, high) for low, high in ends]
        if all(low >= 0 for low, _ in ends):
            is_held = is_exact(total.item(), TensorProto.DOUBLE)
        else:
            is_held = (sum(most) if step == "Add" else prod(max(size, 1) for size in most)) <= EXACT[64]
        if not is_held:
            return None
        held_in_float64(ctx, total)
    return total.reshape(sizes)


def arg_extreme(ctx: InferenceContext) -> Tensor:
    """Infer ArgMax and ArgMin, which reduce one axis and give indices."""
    dims = ctx.dims()
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    ctx.require_not_zero(dims[axis], (*dims[:axis], *dims[axis + 1 :]), "an axis without elements")
    return Tensor(TensorProto.INT64, _reduced_dims(dims, {axis}, bool(ctx.attr("keepdims", 1))))


def infer_layer_norm(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; those of mean and deviation are 1 from the axis on."""
    tensor, dims = ctx.tensor(), ctx.dims()
    axis = ctx.axis(ctx.attr("axis", -1), max(len(dims), 1))
    if ctx.node.op_type == "LayerNormalization" and any(lower(dim) < 1 for dim in dims[axis:]):
        ctx.require_at_least(dims_product(dims[axis:]), 1, "nothing to normalise", "must be at least 1")
    statistics = Tensor(ctx.attr("stash_type", TensorProto.FLOAT), (*dims[:axis], *[1] * (len(dims) - axis)))
    return [Tensor(tensor.dtype, dims), statistics, statistics]


def infer_skip_norm(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; the fourth output is the sum of input and residual."""
    result, statistics = ctx.like(ctx.dims()), Tensor(TensorProto.FLOAT, (*ctx.dims()[:-1], 1))
    return [result, statistics, statistics, result]


def infer_embedding_norm(ctx: InferenceContext) -> list[Tensor]:
    """Infer EmbedLayerNormalization(ids, segments, words, ...): states, the mask index, the sum of embeddings."""
    ids = ctx.dims()
    if not ctx.has(8):  # position_ids: without them, the table of positions begins with the first
        ctx.require_at_most(ids[1], ctx.dims(3)[0], "more positions than the table has")
    states = ctx.like((*ids, ctx.dims(2)[-1]), 2)
    return [states, Tensor(TensorProto.INT32, (ids[0],)), states]


def infer_batch_norm(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; the statistics have one dim, and the dtypes of the mean and the variance."""
    dims = ctx.dims()
    channels = dims[1] if len(dims) > 1 else const(1)
    mean, variance = (Tensor(ctx.tensor(index).dtype, (channels,)) for index in (3, 4))
    return [ctx.like(dims), mean, variance, mean, variance]


# Operators of ai.onnx.ml: features are scaled, and those of a row become scores.

ML = "ai.onnx.ml"


def _count_rows(ctx: InferenceContext) -> Expr:
    """Return how many rows of features there are: a list is one row."""
    dims = ctx.dims()
    return const(1) if len(dims) < 2 else dims[0]


def _infer_regressor(ctx: InferenceContext) -> Tensor:
    targets = 1 if ctx.node.op_type == "SVMRegressor" else ctx.attr("n_targets", 0) or ctx.attr("targets", 1)
    return Tensor(TensorProto.FLOAT, (_count_rows(ctx), targets))


def _infer_classifier(ctx: InferenceContext) -> list[Tensor]:
    """Return a label for each row, and scores, of which support vectors without probabilities have their own number."""
    lists = [ctx.attributes.get(f"classlabels_{kind}", AttributeProto()) for kind in ("strings", "int64s", "ints")]
    texts, count = lists[0].strings, sum(len(each.strings) + len(each.ints) for each in lists)
    rows, votes = _count_rows(ctx), ctx.node.op_type == "SVMClassifier" and "prob_a" not in ctx.attributes
    classes = ctx.new_symbol("it is how many scores a class takes", 1) if votes or count < 2 else const(count)
    labels = Tensor(TensorProto.STRING if texts else TensorProto.INT64, (rows,))
    return [labels, Tensor(TensorProto.FLOAT, (rows, classes))]


def _extract_features(ctx: InferenceContext) -> Tensor:
    """Take the last axis at some places."""
    return ctx.like((*(ctx.dims()[:-1] or (const(1),)), dims_product(ctx.dims(1))))


def _join_features(ctx: InferenceContext) -> Tensor:
    dims: Dims = tuple(const(size) for size in ctx.attr("inputdimensions", ()))
    return Tensor(TensorProto.FLOAT, (_count_rows(ctx), sum(dims, const(0))))


# The first output has the dims and the dtype of the first input.
_LIKE_FIRST = operator_set(
    """
    CumProd CumSum GroupNormalization Hardmax ImageScaler InstanceNormalization LRN LogSoftmax LpNormalization
    MeanVarianceNormalization ReverseSequence RotaryEmbedding Scatter Softmax TensorScatter Trilu
    """
) | operator_set(
    """
    BiasAdd BiasGelu BiasSoftmax BranchwiseRMSNorm FastGelu GatedAdd GatedRMSNorm GroupNorm Inverse LongformerAttention
    MRotaryEmbedding MoE QLinearSoftmax QMoE Trilu
    """,
    "com.microsoft",
)
_TRUTH = ("IsInf", "IsNaN", "Not", "RegexFullMatch")
_ELSEWHERE = {"BitCast", "Cast", "CastLike", "Clip", "Identity", *_TRUTH}  # unary, with a rule of its own

RULES: Mapping[str, Rule] = operator_traits.join_tables(
    {
        **dict.fromkeys(operator_set("Normalizer Scaler", ML), lambda ctx: ctx.tensor().of_dtype(TensorProto.FLOAT)),
        **dict.fromkeys(operator_set("Imputer", ML), lambda ctx: ctx.like(ctx.dims())),
        **dict.fromkeys(operator_set("LinearRegressor SVMRegressor TreeEnsembleRegressor", ML), _infer_regressor),
        **dict.fromkeys(operator_set("LinearClassifier SVMClassifier TreeEnsembleClassifier", ML), _infer_classifier),
        "ai.onnx.ml.ArrayFeatureExtractor": _extract_features,
        "ai.onnx.ml.FeatureVectorizer": _join_features,
    },
    dict.fromkeys(operator_traits.UNARY - _ELSEWHERE, infer_unary),
    dict.fromkeys(_LIKE_FIRST, infer_unary),
    dict.fromkeys(_TRUTH, infer_unary),
    dict.fromkeys(operator_traits.BROADCASTING.keys() - {"Where"}, infer_broadcasting),
    dict.fromkeys(operator_traits.REDUCTIONS, infer_reduce),
    {
        "Where": infer_where,
        "PRelu": with_slope,
        "Cast": infer_cast,
        "CastLike": infer_cast,
        "Dropout": infer_dropout,
        "Clip": infer_clip,
        "com.microsoft.BiasDropout": infer_dropout,
        # which halves the last dim
        "com.microsoft.BiasSplitGelu": lambda ctx: ctx.like(
            (*ctx.dims()[:-1], ctx.quotient(ctx.dims()[-1], const(2), "the hidden size"))
        ),
        # which gives 32 bits
        "com.microsoft.MurmurHash3": lambda ctx: ctx.tensor().of_dtype(
            TensorProto.UINT32 if ctx.attr("positive", 1) else TensorProto.INT32
        ),
        "com.microsoft.NGramRepeatBlock": lambda ctx: ctx.like(ctx.dims(1), 1),  # (ids, scores)
        "QuantizeLinear": infer_quantize,
        "DequantizeLinear": infer_dequantize,
        "DynamicQuantizeLinear": lambda ctx: [  # in uint8, a scale and a zero point
            ctx.tensor().of_dtype(TensorProto.UINT8),
            Tensor(TensorProto.FLOAT, ()),
            Tensor(TensorProto.UINT8, ()),
        ],
        "com.microsoft.QuantizeLinear": infer_quantize,
        "com.microsoft.DequantizeLinear": infer_dequantize,
        "com.microsoft.QLinearAdd": _broadcast_rule(0, 3),  # A, a_scale, a_zero, B, ...
        "com.microsoft.QLinearMul": _broadcast_rule(0, 3),
        "com.microsoft.QLinearWhere": _broadcast_rule(0, 1, 4, like=1),  # condition, X, x_scale, x_zero, Y, ...
        "com.microsoft.MulInteger": _broadcast_rule(0, 2, dtype=TensorProto.INT32),  # A, a_zero, B, b_zero
        "ArgMax": arg_extreme,
        "ArgMin": arg_extreme,
        "com.microsoft.QLinearReduceMean": infer_reduce,
        "LayerNormalization": infer_layer_norm,
        "SimplifiedLayerNormalization": infer_layer_norm,
        "RMSNormalization": lambda ctx: ctx.like(ctx.dims(), 1),  # of the dtype of the scale
        "BatchNormalization": infer_batch_norm,
        "com.microsoft.SkipLayerNormalization": infer_skip_norm,
        "com.microsoft.SkipSimplifiedLayerNormalization": infer_skip_norm,
        "com.microsoft.SkipGroupNorm": lambda ctx: [ctx.like(ctx.dims())] * 2,  # and the sum of input and residual
        "com.microsoft.EmbedLayerNormalization": infer_embedding_norm,
        "com.microsoft.QEmbedLayerNormalization": infer_embedding_norm,
    },
)
