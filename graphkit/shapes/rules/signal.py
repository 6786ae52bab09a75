"""Fourier transforms and window functions."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.algebra import floor_div
from graphkit.shapes.context import InferenceContext, Rule
from graphkit.shapes.expr import const
from graphkit.shapes.node_view import UnknownError
from graphkit.shapes.tensor import Tensor

__all__ = ["RULES"]


def stft(ctx: InferenceContext) -> Tensor:
    """Infer STFT(signal, frame_step, window, frame_length): batch, frames, frequencies, real and imaginary part."""
    dims, step = ctx.dims(), ctx.size(1)
    length = ctx.size(3) if ctx.has(3) else ctx.dims(2)[0]
    if step == 0 or len(dims) < 2:
        raise UnknownError("a frame step of 0, or a signal without batch")
    frames = floor_div(dims[1] - length, step) + 1
    bins = floor_div(length, 2) + 1 if ctx.attr("onesided", 1) else length
    return Tensor(ctx.tensor().dtype, (dims[0], frames, bins, 2))


def dft(ctx: InferenceContext) -> Tensor:
    """Infer DFT(input, length, axis): the transformed axis has the length, or half of it where it is one-sided."""
    dims = list(ctx.dims())
    if ctx.opset >= 20:
        axis = ctx.numbers(2)[0] if ctx.has(2) else -2
    else:
        axis = ctx.attr("axis", 1)
    place = ctx.axis(axis, len(dims))
    length = ctx.size(1) if ctx.has(1) else dims[place]
    one_sided, inverse = ctx.attr("onesided", 0), ctx.attr("inverse", 0)
    if one_sided and inverse:
        raise UnknownError("the inverse of a one-sided transform")
    dims[place] = floor_div(length, 2) + 1 if one_sided else length
    dims[-1] = const(2)
    return Tensor(ctx.tensor().dtype, dims)


def window(ctx: InferenceContext) -> Tensor:
    """Return as many elements as the input says."""
    return Tensor(ctx.attr("output_datatype", TensorProto.FLOAT), (ctx.size(0),))


def unfold(ctx: InferenceContext) -> Tensor:
    """Infer UnfoldTensor: windows along a dim, with their elements in a new last dim."""
    dims, size, step = list(ctx.dims()), ctx.attr("size", 1), ctx.attr("step", 1)
    place = ctx.axis(ctx.attr("dim", -1), len(dims))
    ctx.at_least(dims[place] - size, 0, "the window does not fit")
    dims[place] = floor_div(dims[place] - size, const(step)) + 1
    return Tensor(ctx.tensor().dtype, (*dims, const(size)))


RULES: Mapping[str, Rule] = {
    "STFT": stft,
    "DFT": dft,
    "BlackmanWindow": window,
    "HammingWindow": window,
    "HannWindow": window,
    "com.microsoft.UnfoldTensor": unfold,
}
