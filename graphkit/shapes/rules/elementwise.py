"""Elementwise operators: the dims of the input, or those that the inputs broadcast to; elements of small tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.operators import BROADCASTING, UNARY, UNIDIRECTIONAL, names
from graphkit.graph.tables import joined
from graphkit.shapes import value_propagation
from graphkit.shapes.context import InferenceContext, Rule
from graphkit.shapes.expr import const
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Dims, Tensor, array_of

__all__ = ["RULES", "finished"]


def unary(ctx: InferenceContext) -> Tensor:
    """The dims of the first input."""
    found = ctx.tensor()
    data = _propagated(ctx, found.dtype, [found], found.dims)
    return Tensor(found.dtype, found.dims, data, found.reason)


def truth(ctx: InferenceContext) -> Tensor:
    """The dims of the first input, bool."""
    found = ctx.tensor()
    return Tensor(TensorProto.BOOL, found.dims, _propagated(ctx, TensorProto.BOOL, [found], found.dims), found.reason)


def broadcasting(ctx: InferenceContext) -> Tensor:
    """All inputs broadcast, of the first one's dtype."""
    return _broadcast(ctx, ctx.tensor().dtype)


def comparison(ctx: InferenceContext) -> Tensor:
    """All inputs broadcast, bool."""
    return _broadcast(ctx, TensorProto.BOOL)


def _broadcast(ctx: InferenceContext, dtype: int) -> Tensor:
    tensors = [ctx.tensor(index) for index in range(len(ctx.inputs))]
    dims = ctx.broadcast(*(ctx.dims(index) for index in range(len(tensors))))
    data = None
    if all(found.may_have_data for found in tensors):
        data = _propagated(ctx, dtype, tensors, dims)
    return Tensor(dtype, dims, data)


def _propagated(ctx: InferenceContext, dtype: int, tensors: list[Tensor], dims: Dims | None) -> Array | None:
    """Return the elements that an operator of `value_propagation` gives."""
    name = ctx.node.op_type
    if name not in value_propagation.OPERATORS or dims is None or not _is_small(dims):
        return None
    arrays = [found.data for found in tensors if found.may_have_data]
    present = [array for array in arrays if array is not None]
    if len({found.dtype for found in tensors}) > 1 and name != "Pow":
        return None  # no model that runs
    if len(present) < len(tensors) or (name == "Mod" and ctx.attr("fmod", 0)):
        return None
    while len(present) > 2:
        left = value_propagation.apply(name, present[:2], dtype)
        if left is None or None in left.ravel().tolist():
            return None
        present[:2] = [left]
    operand = tensors[0].dtype if name in value_propagation.COMPARISONS or name == "Not" else dtype
    return finished(ctx, value_propagation.apply(name, present, operand), dtype)


def _is_small(dims: Dims) -> bool:
    count = 1
    for dim in dims:
        size = dim.constant
        if size is None:
            return False
        count *= size
    return count <= MAX_ELEMENTS


def finished(ctx: InferenceContext, data: Array | None, dtype: int) -> Array | None:
    """Return elements with an unknown of its own for each that could not be decided; no floats with unknowns."""
    if data is None:
        return None
    elements = data.ravel().tolist()
    missing = [index for index, element in enumerate(elements) if element is None]
    if not missing:
        return data
    if dtype not in INTEGERS or len(missing) == len(elements) > 8:
        return None
    for index in missing:
        if dtype == TensorProto.BOOL:
            elements[index] = ctx.engine.new_symbol(ctx.node.label, "its value depends on what the dims are", 0)
        else:
            elements[index] = ctx.new_symbol("its value depends on data, or on what the dims are", -np.inf)
    return array_of(elements, data.shape)


def where(ctx: InferenceContext) -> Tensor:
    """All inputs broadcast; each element is chosen where the condition is known."""
    dims = ctx.broadcast(ctx.dims(0), ctx.dims(1), ctx.dims(2))
    dtype = ctx.tensor(1).dtype or ctx.tensor(2).dtype
    tensors = [ctx.tensor(index) for index in range(3)]
    if not _is_small(dims) or not all(found.may_have_data for found in tensors):
        return Tensor(dtype, dims)
    arrays = [found.data for found in tensors]
    present = [array for array in arrays if array is not None]
    if len(present) < 3:
        return Tensor(dtype, dims)
    result = np.frompyfunc(value_propagation.choose, 3, 1)(*present)
    shape = np.broadcast_shapes(*(array.shape for array in present))
    chosen = array_of(result.ravel().tolist() if isinstance(result, np.ndarray) else [result], shape)
    return Tensor(dtype, dims, finished(ctx, chosen, dtype))


def cast(ctx: InferenceContext) -> Tensor:
    """The dims of the input in another dtype, elements too."""
    found = ctx.tensor()
    to = ctx.attr("to", 0) if ctx.node.op_type == "Cast" else ctx.tensor(1).dtype
    data = None
    if found.may_have_data and (array := found.data) is not None and (to in FLOATS or to in INTEGERS):
        elements = [value_propagation.cast(element, to, found.dtype in FLOATS) for element in array.ravel().tolist()]
        data = finished(ctx, array_of(elements, array.shape), to)
    return Tensor(to, found.dims, data, found.reason)


def dropout(ctx: InferenceContext) -> list[Tensor]:
    """The input, and a mask of its dims."""
    found = ctx.tensor()
    mask = Tensor(TensorProto.BOOL if ctx.opset >= 12 else found.dtype, found.dims, None, found.reason)
    return [Tensor(found.dtype, found.dims, None, found.reason), mask]


def second(ctx: InferenceContext) -> Tensor:
    """NGramRepeatBlock(ids, scores): the dims of the second input."""
    return Tensor(ctx.tensor(1).dtype, ctx.dims(1))


def hash_(ctx: InferenceContext) -> Tensor:
    """MurmurHash3: the dims of the input in 32 bits."""
    dtype = TensorProto.UINT32 if ctx.attr("positive", 1) else TensorProto.INT32
    return Tensor(dtype, ctx.tensor().dims, None, ctx.tensor().reason)


def half(ctx: InferenceContext) -> Tensor:
    """BiasSplitGelu: half of the last dim."""
    dims = ctx.dims()
    return Tensor(ctx.tensor().dtype, (*dims[:-1], ctx.quotient(dims[-1], const(2), "the hidden size")))


def clip(ctx: InferenceContext) -> Tensor:
    """The dims of the input; elements between known limits."""
    found = ctx.tensor()
    low, high = ctx.data(1), ctx.data(2)
    data = found.data if found.may_have_data else None
    limits_are_known = (low is not None or not ctx.has(1)) and (high is not None or not ctx.has(2))
    if ctx.opset < 11 or data is None or not limits_are_known:
        return Tensor(found.dtype, found.dims, None, found.reason)
    if low is not None:
        data = value_propagation.apply("Max", [data, low.reshape(())], found.dtype)
    if high is not None and data is not None and None not in data.ravel().tolist():
        data = value_propagation.apply("Min", [data, high.reshape(())], found.dtype)
    return Tensor(found.dtype, found.dims, finished(ctx, data, found.dtype), found.reason)


# The first output has the dims and the dtype of the first input.
_LIKE_FIRST = names(
    """
    CumProd CumSum GroupNormalization Hardmax ImageScaler InstanceNormalization LRN LogSoftmax LpNormalization
    MeanVarianceNormalization ReverseSequence RotaryEmbedding Scatter Softmax TensorScatter Trilu
    """
) | names(
    """
    BiasAdd BiasGelu BiasSoftmax BranchwiseRMSNorm FastGelu GatedAdd GatedRMSNorm GroupNorm Inverse LongformerAttention
    MRotaryEmbedding MoE QLinearSoftmax QMoE RotaryEmbedding Trilu
    """,
    "com.microsoft",
)
_TRUTH = ("IsInf", "IsNaN", "Not", "RegexFullMatch")
_ELSEWHERE = {"BitCast", "Cast", "CastLike", "Clip", "Identity", *_TRUTH}  # unary, with a rule of its own

RULES: Mapping[str, Rule] = joined(
    dict.fromkeys(UNARY - _ELSEWHERE, unary),
    dict.fromkeys(_LIKE_FIRST, unary),
    dict.fromkeys(UNIDIRECTIONAL, unary),
    dict.fromkeys(BROADCASTING.keys() - value_propagation.COMPARISONS.keys() - {"Where"}, broadcasting),
    dict.fromkeys(value_propagation.COMPARISONS, comparison),
    dict.fromkeys(_TRUTH, truth),
    {
        "Where": where,
        "Cast": cast,
        "CastLike": cast,
        "Dropout": dropout,
        "Clip": clip,
        "com.microsoft.BiasDropout": dropout,
        "com.microsoft.BiasSplitGelu": half,
        "com.microsoft.MurmurHash3": hash_,
        "com.microsoft.NGramRepeatBlock": second,
    },
)
