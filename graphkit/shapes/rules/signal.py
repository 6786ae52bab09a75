"""Fourier transforms and window functions."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.algebra import floor_div
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.site import Rule, Site, UnknownError
from graphkit.shapes.tensor import Tensor

__all__ = ["RULES"]


def _size(site: Site, index: int) -> Expr:
    if site.data(index) is None:
        return site.fresh(f"the value of {site.name(index)} is unknown")
    return Expr.of(site.values(index)[0])  # type: ignore[arg-type]


def stft(site: Site) -> Tensor:
    """STFT(signal, frame_step, window, frame_length): batch, frames, frequencies, real and imaginary part."""
    dims, step = site.dims(), _size(site, 1)
    length = _size(site, 3) if site.has(3) else site.dims(2)[0]
    if step == 0 or len(dims) < 2:
        raise UnknownError("a frame step of 0, or a signal without batch")
    frames = floor_div(dims[1] - length, step) + 1
    bins = floor_div(length, 2) + 1 if site.integer("onesided", 1) else length
    return Tensor(site.tensor().dtype, (dims[0], frames, bins, 2))


def dft(site: Site) -> Tensor:
    """DFT(input, length, axis): the transformed axis has the length, half of it where one-sided."""
    dims = list(site.dims())
    if site.opset >= 20:
        axis = site.numbers(2)[0] if site.has(2) else -2
    else:
        axis = site.integer("axis", 1)
    place = site.axis(axis, len(dims))
    length = _size(site, 1) if site.has(1) else dims[place]
    one_sided, inverse = site.integer("onesided", 0), site.integer("inverse", 0)
    if one_sided and inverse:
        raise UnknownError("the inverse of a one-sided transform")
    dims[place] = floor_div(length, 2) + 1 if one_sided else length
    dims[-1] = const(2)
    return Tensor(site.tensor().dtype, dims)


def window(site: Site) -> Tensor:
    """As many elements as the input says."""
    return Tensor(site.integer("output_datatype", TensorProto.FLOAT), (_size(site, 0),))


RULES: Mapping[str, Rule] = {
    "STFT": stft,
    "DFT": dft,
    "BlackmanWindow": window,
    "HammingWindow": window,
    "HannWindow": window,
}
