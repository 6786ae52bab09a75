"""What rules that move elements share."""

from __future__ import annotations

from graphkit.shapes.expr import INF, Expr, const
from graphkit.shapes.site import Site
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Dims, Element, Tensor

__all__ = ["moved", "product", "small_data", "target"]

MAX_RANK = 16


def product(dims: Dims | list[Expr]) -> Expr:
    """Return the product of dims."""
    total = const(1)
    for dim in dims:
        total = total * dim
    return total


def moved(site: Site, dims: Dims | None, array: Array | None, index: int = 0) -> Tensor:
    """Return an input with other dims; elements only where as many as the dims say."""
    found = site.tensor(index)
    result = Tensor(found.dtype, dims, None, "" if dims is not None else found.reason)
    if array is not None and result.sizes() == array.shape and array.size <= MAX_ELEMENTS:
        return Tensor(found.dtype, dims, array)
    return result


def small_data(site: Site, index: int = 0) -> Array | None:
    """Return the elements of an input where they are followed."""
    return site.data(index) if site.tensor(index).may_have_data else None


def target(site: Site) -> list[Element]:
    """Return the second input's elements as a target shape, unknown ones where only their number is known."""
    if site.opset < 5 and not site.node.domain:
        return list(site.integers("shape") or [])
    if site.data(1) is not None:
        return site.values(1)
    length = site.dims(1)[0].constant if site.dims(1) else None
    if length is None or length > MAX_RANK:
        return site.values(1)  # says why
    reason = f"the value of {site.name(1)} is unknown"
    return [site.fresh(reason, -INF) for _ in range(length)]
