"""Operators that repeat elements or add some around them: Expand, Tile, Pad."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from graphkit.shapes.algebra import maximum
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.context import InferenceContext, Rule
from graphkit.shapes.expr import Expr
from graphkit.shapes.rules.common import moved, small_data, target
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Element, Tensor, array_of, number, sizes_of

__all__ = ["RULES"]


def expand(ctx: InferenceContext) -> Tensor:
    """Return the input broadcast to the target shape."""
    shape = tuple(Expr.of(element) for element in target(ctx, low=0))  # type: ignore[arg-type]
    if any(upper(dim) < 0 for dim in shape):
        raise ctx.impossible(f"a target shape of [{', '.join(map(str, shape))}]", "the target shape has a dim below 0")
    dims = ctx.broadcast(ctx.dims(0), tuple(maximum(dim, 0) if lower(dim) < 0 else dim for dim in shape))
    array, sizes = small_data(ctx), sizes_of(dims)
    if array is not None and sizes is not None and prod(sizes) <= MAX_ELEMENTS:
        array = np.broadcast_to(array, sizes)
    return moved(ctx, dims, array)


def tile(ctx: InferenceContext) -> Tensor:
    """Multiply each dim by its repeats."""
    dims, repeats = ctx.dims(), ctx.exprs(1)
    if len(repeats) != len(dims):
        raise ctx.impossible(f"{len(repeats)} repeats for rank {len(dims)}", "the repeats do not fit the rank")
    result = tuple(dim * times for dim, times in zip(dims, repeats, strict=True))
    array, sizes, numbers = small_data(ctx), sizes_of(result), sizes_of(repeats)
    if array is None or numbers is None or sizes is None or prod(sizes) > MAX_ELEMENTS:
        return moved(ctx, result, None)
    return moved(ctx, result, np.tile(array, numbers))


def pad(ctx: InferenceContext) -> Tensor:
    """Add the padding before and after to each dim."""
    dims = list(ctx.dims())
    pads: list[Element] = list(ctx.attr("pads", ())) if _has_attributes(ctx) else ctx.values(1)
    axes = list(range(len(dims)))
    if not ctx.node.domain and ctx.opset >= 18 and ctx.has(3):
        axes = [ctx.axis(axis, len(dims)) for axis in ctx.numbers(3)]
    if len(pads) != 2 * len(axes):
        raise ctx.impossible(f"{len(pads)} pads for {len(axes)} axes", "the pads do not fit the rank")
    for position, axis in enumerate(axes):
        for added in (pads[position], pads[position + len(axes)]):
            dims[axis] = dims[axis] + Expr.of(added)  # type: ignore[arg-type]
    return moved(ctx, tuple(dims), _padded(ctx, axes, pads))


def _has_attributes(ctx: InferenceContext) -> bool:
    """Whether pads are an attribute: before opset 11."""
    return not ctx.node.domain and ctx.opset < 11


def _padded(ctx: InferenceContext, axes: list[int], pads: list[Element]) -> Array | None:
    array = small_data(ctx)
    widths = [n for element in pads if (n := number(element)) is not None]
    fill = ctx.data(2) if ctx.has(2) else array_of([0])
    if array is None or fill is None or len(widths) < len(pads) or ctx.attr("mode", "constant") != "constant":
        return None
    if min(widths, default=0) < 0 or _has_attributes(ctx):
        return None
    around = [(0, 0)] * array.ndim
    for position, axis in enumerate(axes):
        around[axis] = (widths[position], widths[position + len(axes)])
    sizes = [size + sum(pair) for size, pair in zip(array.shape, around, strict=True)]
    if prod(sizes) > MAX_ELEMENTS:
        return None
    result = np.full(sizes, fill.ravel()[0], object)
    result[tuple(slice(before, before + n) for n, (before, _) in zip(array.shape, around, strict=True))] = array
    return result


RULES: Mapping[str, Rule] = {"Expand": expand, "Tile": tile, "Pad": pad, "com.microsoft.Pad": pad}
