"""Helpers of rules that move elements."""

from __future__ import annotations

from math import prod

from graphkit.shapes.expr import Expr, const
from graphkit.shapes.rule_context import InferenceContext
from graphkit.shapes.symbols import INF
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Dims, Element, Tensor, sizes_of

__all__ = ["moved", "product", "reshaped", "small_data", "target", "unknown_values"]

MAX_RANK = 16


def product(dims: Dims | list[Expr]) -> Expr:
    """Return the product of dims."""
    return prod(dims, start=const(1))


def moved(ctx: InferenceContext, dims: Dims, array: Array | None) -> Tensor:
    """Return the first input with other dims; elements only where as many as the dims say."""
    dtype = ctx.tensor().dtype
    if array is None or sizes_of(dims) != array.shape or array.size > MAX_ELEMENTS:
        return Tensor(dtype, dims)
    return Tensor(dtype, dims, array)


def reshaped(ctx: InferenceContext, dims: Dims) -> Tensor:
    """Return the first input with other dims, its elements in the same order."""
    array, sizes = small_data(ctx), sizes_of(dims)
    if array is None or sizes is None or prod(sizes) != array.size:
        return moved(ctx, dims, None)
    return moved(ctx, dims, array.reshape(sizes))


def small_data(ctx: InferenceContext) -> Array | None:
    """Return the elements of the first input where they are followed."""
    return ctx.data(0) if ctx.tensor().may_have_data else None


def target(ctx: InferenceContext, low: float = -INF) -> list[Element]:
    """Return the second input's elements as a target shape, unknown ones where only their number is known."""
    if ctx.opset < 5 and not ctx.node.domain:
        return list(ctx.attr("shape", ()))
    return ctx.values(1) if ctx.data(1) is not None else [*unknown_values(ctx, 1, low)]


def unknown_values(ctx: InferenceContext, index: int, low: float = 0) -> list[Expr]:
    """Return symbols for the elements of a vector of which only the number is known."""
    length = ctx.dims(index)[0].constant if ctx.dims(index) else None
    if length is None or length > MAX_RANK:
        ctx.values(index)  # says why
    return [ctx.unknown_value(index, low) for _ in range(length or 0)]
