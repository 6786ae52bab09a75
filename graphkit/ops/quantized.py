"""Quantising, and elementwise operators on quantised tensors."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import Tensor
from graphkit.symbolic.expr import const


def infer_quantize(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, with the dtype of the zero point."""
    dtype = ctx.attr("output_dtype", 0) or (ctx.tensor(2).dtype if ctx.has(2) else TensorProto.UINT8)
    return ctx.tensor().of_dtype(dtype)


def infer_dequantize(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, with the dtype of the scale."""
    dtype = ctx.attr("output_dtype", 0) or ctx.tensor(1).dtype
    return ctx.tensor().of_dtype(dtype)


def _broadcast_rule(*indices: int, like: int = 0, dtype: int | None = None) -> Rule:
    """Return the rule of inputs that broadcast, with the dtype of one, or a given one."""

    def infer(ctx: InferenceContext) -> Tensor:
        dims = ctx.broadcast(*map(ctx.dims, indices))
        return Tensor(ctx.tensor(like).dtype if dtype is None else dtype, dims)

    return infer


def infer_qlinear_concat(ctx: InferenceContext) -> Tensor:
    """Infer QLinearConcat(y_scale, y_zero, x, x_scale, x_zero, ...)."""
    shapes = [ctx.dims(index) for index in range(2, len(ctx.inputs), 3)]
    axis = ctx.axis(ctx.attr("axis", 0), len(shapes[0]))
    total = sum((dims[axis] for dims in shapes), const(0))
    return Tensor(ctx.tensor(1).dtype, (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def gather_blocks(ctx: InferenceContext) -> Tensor:
    """Infer GatherBlockQuantized(data, indices, scales, zeros), where a byte may hold several numbers."""
    dims, indices = list(ctx.dims(0)), ctx.dims(1)
    axis = ctx.axis(ctx.attr("gather_axis", 0), len(dims))
    if ctx.tensor().dtype == TensorProto.UINT8:
        dims[-1] = dims[-1] * (8 // max(ctx.attr("bits", 4), 1))
    return Tensor(ctx.tensor(2).dtype, (*dims[:axis], *indices, *dims[axis + 1 :]))


RULES: Mapping[str, Rule] = {
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
    "com.microsoft.QLinearConcat": infer_qlinear_concat,
    "com.microsoft.QLinearWhere": _broadcast_rule(0, 1, 4, like=1),  # condition, X, x_scale, x_zero, Y, ...
    "com.microsoft.MulInteger": _broadcast_rule(0, 2, dtype=TensorProto.INT32),  # A, a_zero, B, b_zero
    "com.microsoft.GatherBlockQuantized": gather_blocks,
}
