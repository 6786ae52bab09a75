"""Quantising, and elementwise operators on quantised tensors."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.expr import const
from graphkit.shapes.site import Rule, Site
from graphkit.shapes.tensor import Tensor

__all__ = ["RULES"]


def quantize(site: Site) -> Tensor:
    """The dims of the input, the dtype of the zero point."""
    dtype = site.integer("output_dtype", 0) or (site.tensor(2).dtype if site.has(2) else TensorProto.UINT8)
    return Tensor(dtype, site.tensor().dims, None, site.tensor().reason)


def dequantize(site: Site) -> Tensor:
    """The dims of the input, the dtype of the scale."""
    dtype = site.integer("output_dtype", 0) or site.tensor(1).dtype
    return Tensor(dtype, site.tensor().dims, None, site.tensor().reason)


def dynamic_quantize(site: Site) -> list[Tensor]:
    """The dims of the input in uint8, a scale and a zero point."""
    found = site.tensor()
    quantised = Tensor(TensorProto.UINT8, found.dims, None, found.reason)
    return [quantised, Tensor(TensorProto.FLOAT, ()), Tensor(TensorProto.UINT8, ())]


def binary(site: Site) -> Tensor:
    """QLinearAdd, QLinearMul(A, a_scale, a_zero, B, b_scale, b_zero, C, c_zero)."""
    return Tensor(site.tensor().dtype, site.broadcast(site.dims(0), site.dims(3)))


def where(site: Site) -> Tensor:
    """QLinearWhere(condition, X, x_scale, x_zero, Y, ...)."""
    return Tensor(site.tensor(1).dtype, site.broadcast(site.dims(0), site.dims(1), site.dims(4)))


def product(site: Site) -> Tensor:
    """MulInteger(A, a_zero, B, b_zero): 8-bit factors, int32 product."""
    return Tensor(TensorProto.INT32, site.broadcast(site.dims(0), site.dims(2)))


def concat(site: Site) -> Tensor:
    """QLinearConcat(y_scale, y_zero, x, x_scale, x_zero, ...)."""
    shapes = [site.dims(index) for index in range(2, len(site.inputs), 3)]
    axis = site.axis(site.integer("axis", 0), len(shapes[0]))
    total = sum((dims[axis] for dims in shapes), const(0))
    return Tensor(site.tensor(1).dtype, (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def gather_blocks(site: Site) -> Tensor:
    """GatherBlockQuantized(data, indices, scales, zeros): the scales' dtype; uint8 data may hold several numbers."""
    dims, indices = list(site.dims(0)), site.dims(1)
    axis = site.axis(site.integer("gather_axis", 0), len(dims))
    if site.tensor().dtype == TensorProto.UINT8:
        dims[-1] = dims[-1] * (8 // max(site.integer("bits", 4), 1))
    return Tensor(site.tensor(2).dtype, (*dims[:axis], *indices, *dims[axis + 1 :]))


RULES: Mapping[str, Rule] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "com.microsoft.QuantizeLinear": quantize,
    "com.microsoft.DequantizeLinear": dequantize,
    "com.microsoft.QLinearAdd": binary,
    "com.microsoft.QLinearMul": binary,
    "com.microsoft.QLinearConcat": concat,
    "com.microsoft.QLinearWhere": where,
    "com.microsoft.MulInteger": product,
    "com.microsoft.GatherBlockQuantized": gather_blocks,
}
