"""Reductions, whose dims become 1 or go, and normalization layers, also those fused with a residual or an embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import REDUCTIONS, has_attributes_only
from graphkit.ops import element_values as value_propagation
from graphkit.ops.data_movement import dims_product
from graphkit.ops.elementwise import held_in_float64
from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import EXACT, Array, Dims, Element, Tensor, array_of, is_exact, sizes_of
from graphkit.symbolic.algebra import lower, upper
from graphkit.symbolic.expr import Expr, const

UNORDERED = ("Add", "Mul")  # floats are rounded in the order in which a runtime takes them, which is not fixed
STEP = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


def infer_reduce(ctx: InferenceContext) -> Tensor:
    """Reduce the axes that are given, or all of them unless `noop_with_empty_axes` says otherwise."""
    tensor = ctx.tensor()
    dims = ctx.dims()
    is_newer = not ctx.node.domain and not has_attributes_only(ctx.node)
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
    """Return the one element that a small tensor is reduced to."""
    tensor, step, sizes = ctx.tensor(), STEP.get(ctx.node.op_type), sizes_of(dims)
    if (
        step is None
        or (tensor.dtype in FLOATS and step in UNORDERED)
        or not tensor.may_have_data
        or sizes is None
        or len(axes) < len(ctx.dims())
    ):
        return None
    data = tensor.data
    if data is None or not 0 < data.size <= 32:
        return None
    listed = data.ravel().tolist()
    total, *elements = (array_of([element], ()) for element in listed)
    for element in elements:
        total = value_propagation.apply_operation(step, [total, element], tensor.dtype, ctx.may_leave)
        if total.item() is None:
            return None
    if step in UNORDERED:  # in float64, also of integers, in whatever order
        if not _is_counted(listed, total.item(), step):
            return None
        held_in_float64(ctx, total)
    return total.reshape(sizes)


def _is_counted(elements: Sequence[Element], total: Element, step: str) -> bool:
    """Whether float64 holds all that a sum or a product of integers comes by, in any order."""
    ends = [(lower(each), upper(each)) for each in map(Expr.of, elements)]  # type: ignore[arg-type]
    if all(low >= 0 for low, _ in ends):
        return is_exact(total, TensorProto.DOUBLE)
    sizes = [max(-low, high) for low, high in ends]
    return (sum(sizes) if step == "Add" else prod(max(size, 1) for size in sizes)) <= EXACT[64]


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
    result, statistics = Tensor(ctx.tensor().dtype, ctx.dims()), Tensor(TensorProto.FLOAT, (*ctx.dims()[:-1], 1))
    return [result, statistics, statistics, result]


def infer_embedding_norm(ctx: InferenceContext) -> list[Tensor]:
    """Infer EmbedLayerNormalization(ids, segments, words, ...): states, the mask index, the sum of embeddings."""
    ids = ctx.dims()
    if not ctx.has(8):  # position_ids: without them, the table of positions begins with the first
        ctx.require_at_most(ids[1], ctx.dims(3)[0], "more positions than the table has")
    states = Tensor(ctx.tensor(2).dtype, (*ids, ctx.dims(2)[-1]))
    return [states, Tensor(TensorProto.INT32, (ids[0],)), states]


def infer_batch_norm(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; the statistics have one dim, and the dtypes of the mean and the variance."""
    dims = ctx.dims()
    channels = dims[1] if len(dims) > 1 else const(1)
    mean, variance = (Tensor(ctx.tensor(index).dtype, (channels,)) for index in (3, 4))
    return [Tensor(ctx.tensor().dtype, dims), mean, variance, mean, variance]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, infer_reduce),
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
}
