"""Elementwise operators: the dims of the input, or those that the inputs broadcast to; elements of small tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS, HALVES, INTEGERS
from graphkit.graph.operator_traits import (
    BROADCASTING,
    DIVIDING,
    UNARY,
    UNIDIRECTIONAL,
    VARIADIC,
    has_attributes_only,
    join_tables,
    operator_set,
)
from graphkit.ops import element_values as value_propagation
from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import EXACT, MAX_ELEMENTS, Array, Dims, Element, Tensor, array_of, sizes_of
from graphkit.symbolic.expr import Expr, const

PAIRED = frozenset(BROADCASTING) - VARIADIC  # operators of two inputs or more
# Dtypes of which onnxruntime has no Where.
NO_WHERE = frozenset({TensorProto.BOOL, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT64})


def infer_unary(ctx: InferenceContext) -> Tensor:
    """Return the dims of the first input; the dtype is that of the input, or bool."""
    tensor = ctx.tensor()
    dtype = TensorProto.BOOL if ctx.node.op_type in _TRUTH else tensor.dtype
    return Tensor(dtype, tensor.dims, _propagate_elements(ctx, dtype, [tensor], tensor.dims), tensor.reason)


def with_slope(ctx: InferenceContext) -> Tensor:
    """Return the dims of data and slope: onnxruntime lets either broadcast, where ONNX wants the slope to."""
    if ctx.opset < UNIDIRECTIONAL["PRelu"]:
        return infer_unary(ctx)
    return Tensor(ctx.tensor().dtype, ctx.broadcast(ctx.dims(0), ctx.dims(1)))


def infer_broadcasting(ctx: InferenceContext) -> Tensor:
    """Return the broadcast shape of all inputs; the dtype is that of the first one, or bool."""
    tensors = [ctx.tensor(index) for index in range(len(ctx.inputs))]
    dtype = TensorProto.BOOL if ctx.node.op_type in value_propagation.COMPARISONS else tensors[0].dtype
    dims = ctx.broadcast(*(ctx.dims(index) for index in range(len(tensors))))
    if ctx.node.op_type in DIVIDING and tensors[1].dtype in INTEGERS and tensors[1].data is not None:
        for element in ctx.exprs(1):  # the divisor has elements: without a dividend's there is no result
            ctx.require_not_zero(element, ctx.dims(0), "a divisor of 0", "by zero")
    return Tensor(dtype, dims, _propagate_elements(ctx, dtype, tensors, dims))


def _propagate_elements(ctx: InferenceContext, dtype: int, tensors: list[Tensor], dims: Dims | None) -> Array | None:
    """Return the elements that an operator of `value_propagation` gives."""
    name = ctx.node.op_type
    if (
        name not in value_propagation.OPERATORS
        or dims is None
        or (arrays := _broadcast_elements(tensors, dims)) is None
    ):
        return None
    if len(tensors) < 2 and name in PAIRED:
        return None  # no model that runs
    if len({tensor.dtype for tensor in tensors}) > 1 and name != "Pow":
        return None  # no model that runs
    if name == "Mod" and ctx.attr("fmod", 0):
        return None
    if (name == "Pow" and tensors[1].count() != 1) or (name == "Sum" and len(arrays) > 2 and dtype in FLOATS):
        return None  # C's pow rounds as it likes; the order of sums is not fixed
    while len(arrays) > 2:
        combined = value_propagation.apply_operation(name, arrays[:2], dtype, ctx.may_leave)
        if None in combined.ravel().tolist():
            return None
        arrays[:2] = [combined]
    operand = tensors[0].dtype if name in value_propagation.COMPARISONS or name == "Not" else dtype
    found = value_propagation.apply_operation(name, arrays, operand, ctx.may_leave)
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
    if not all(tensor.may_have_data for tensor in tensors):
        return None
    sizes = sizes_of(dims)
    if sizes is None or prod(sizes) > MAX_ELEMENTS:
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
    reason = "its value depends on data, or on what the dims are"
    if dtype == TensorProto.BOOL:
        reason = "its value depends on what the dims are"
    return array_of(
        [ctx.new_element(reason, dtype) if element is None else element for element in elements], data.shape
    )


def infer_where(ctx: InferenceContext) -> Tensor:
    """Return the broadcast shape of all inputs; each element is chosen where the condition is known."""
    dims = ctx.broadcast(ctx.dims(0), ctx.dims(1), ctx.dims(2))
    dtype = ctx.tensor(1).dtype or ctx.tensor(2).dtype
    arrays = _broadcast_elements([ctx.tensor(index) for index in range(3)], dims)
    chosen = None if arrays is None else value_propagation.for_each_element(value_propagation.choose_element, *arrays)
    return Tensor(dtype, dims, None if chosen is None else finish_elements(ctx, chosen, dtype))


def infer_cast(ctx: InferenceContext) -> Tensor:
    """Return the dims and the elements of the input in another dtype."""
    tensor = ctx.tensor()
    to = ctx.attr("to", 0) if ctx.node.op_type == "Cast" else ctx.tensor(1).dtype
    data = None
    if tensor.may_have_data and (array := tensor.data) is not None and (to in FLOATS or to in INTEGERS):
        found = value_propagation.for_each_element(
            lambda each: value_propagation.cast_element(each, to, tensor.dtype in FLOATS), array
        )
        for before, after in zip(array.ravel().tolist(), found.ravel().tolist(), strict=True):
            if after is None:
                ctx.may_leave(before, to)
        data = finish_elements(ctx, found, to)
    return Tensor(to, tensor.dims, data, tensor.reason)


def infer_dropout(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input, for the output and for the mask."""
    tensor = ctx.tensor()
    return [tensor.of_dtype(tensor.dtype), tensor.of_dtype(TensorProto.BOOL if ctx.opset >= 12 else tensor.dtype)]


def infer_clip(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, and its elements where the limits are known."""
    tensor = ctx.tensor()
    data = tensor.data if tensor.may_have_data and not has_attributes_only(ctx.node) else None
    for index, limit in ((1, "Max"), (2, "Min")):
        if data is not None and ctx.has(index):
            bound = None if None in data.ravel().tolist() else ctx.data(index)
            data = (
                None
                if bound is None
                else value_propagation.apply_operation(limit, [data, bound.reshape(())], tensor.dtype)
            )
        elif data is not None and tensor.dtype in FLOATS:
            data = value_propagation.for_each_element(
                partial(_finite_element, tensor.dtype, math.inf if index == 2 else -math.inf), data
            )
    return tensor.replaced(tensor.dims, None if data is None else finish_elements(ctx, data, tensor.dtype))


def _finite_element(dtype: int, infinity: float, element: Element | None) -> Element | None:
    """Return an element, of an infinity the largest number: of float16 or of float32, which runs in its place."""
    if element != infinity:
        return element
    return None if dtype in HALVES else math.copysign(float(np.finfo(FLOATS[dtype]).max), infinity)


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

RULES: Mapping[str, Rule] = join_tables(
    dict.fromkeys(UNARY - _ELSEWHERE, infer_unary),
    dict.fromkeys(_LIKE_FIRST, infer_unary),
    dict.fromkeys(_TRUTH, infer_unary),
    dict.fromkeys(BROADCASTING.keys() - {"Where"}, infer_broadcasting),
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
    },
)
