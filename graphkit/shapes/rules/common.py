"""Helpers of rules that move elements."""

from __future__ import annotations

from graphkit.shapes.context import InferenceContext
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.symbols import INF
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Dims, Element, Tensor

__all__ = ["moved", "product", "small_data", "target"]

MAX_RANK = 16


def product(dims: Dims | list[Expr]) -> Expr:
    """Return the product of dims."""
    total = const(1)
    for dim in dims:
        total = total * dim
    return total


def moved(ctx: InferenceContext, dims: Dims | None, array: Array | None, index: int = 0) -> Tensor:
    """Return an input with other dims; elements only where as many as the dims say."""
    found = ctx.tensor(index)
    result = Tensor(found.dtype, dims, None, "" if dims is not None else found.reason)
    if array is not None and result.sizes() == array.shape and array.size <= MAX_ELEMENTS:
        return Tensor(found.dtype, dims, array)
    return result


def small_data(ctx: InferenceContext) -> Array | None:
    """Return the elements of the first input where they are followed."""
    return ctx.data(0) if ctx.tensor().may_have_data else None


def target(ctx: InferenceContext) -> list[Element]:
    """Return the second input's elements as a target shape, unknown ones where only their number is known."""
    if ctx.opset < 5 and not ctx.node.domain:
        return list(ctx.attr("shape", ()))
    if ctx.data(1) is not None:
        return ctx.values(1)
    length = ctx.dims(1)[0].constant if ctx.dims(1) else None
    if length is None or length > MAX_RANK:
        return ctx.values(1)  # says why
    reason = f"the value of {ctx.name(1)} is unknown"
    return [ctx.new_symbol(reason, -INF) for _ in range(length)]
