"""Normalisation layers, also those fused with a residual or an embedding."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.context import InferenceContext, Rule
from graphkit.shapes.expr import const
from graphkit.shapes.tensor import Tensor

__all__ = ["RULES"]


def layer(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; those of mean and deviation are 1 from the axis on."""
    found, dims = ctx.tensor(), ctx.dims()
    axis = ctx.axis(ctx.attr("axis", -1), max(len(dims), 1))
    statistics = Tensor(ctx.attr("stash_type", TensorProto.FLOAT), (*dims[:axis], *[1] * (len(dims) - axis)))
    return [Tensor(found.dtype, dims), statistics, statistics]


def rms(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input, with the dtype of the scale."""
    return Tensor(ctx.tensor(1).dtype, ctx.dims())


def skip(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; the fourth output is the sum of input and residual."""
    found, statistics = Tensor(ctx.tensor().dtype, ctx.dims()), Tensor(TensorProto.FLOAT, (*ctx.dims()[:-1], 1))
    return [found, statistics, statistics, found]


def embedding(ctx: InferenceContext) -> list[Tensor]:
    """Infer EmbedLayerNormalization(ids, segments, words, ...): states, the mask index, the sum of embeddings."""
    ids = ctx.dims()
    states = Tensor(ctx.tensor(2).dtype, (*ids, ctx.dims(2)[-1]))
    return [states, Tensor(TensorProto.INT32, (ids[0],)), states]


def batch(ctx: InferenceContext) -> list[Tensor]:
    """Return the dims of the input; the statistics have one dim, and the dtypes of the mean and the variance."""
    dims = ctx.dims()
    channels = dims[1] if len(dims) > 1 else const(1)
    mean, variance = (Tensor(ctx.tensor(index).dtype, (channels,)) for index in (3, 4))
    return [Tensor(ctx.tensor().dtype, dims), mean, variance, mean, variance]


def group(ctx: InferenceContext) -> list[Tensor]:
    """Infer SkipGroupNorm: the dims of the input, also for the sum of input and residual."""
    found = Tensor(ctx.tensor().dtype, ctx.dims())
    return [found, found]


RULES: Mapping[str, Rule] = {
    "LayerNormalization": layer,
    "SimplifiedLayerNormalization": layer,
    "RMSNormalization": rms,
    "BatchNormalization": batch,
    "com.microsoft.SkipLayerNormalization": skip,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip,
    "com.microsoft.SkipGroupNorm": group,
    "com.microsoft.EmbedLayerNormalization": embedding,
    "com.microsoft.QEmbedLayerNormalization": embedding,
}
