"""Unknown integers that are no dims, so that they may be large, and what is computed from them may wrap around."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.shapes import Expr, Shapes
from graphkit.shapes.tensor import Ratio, Tensor

__all__ = ["free_elements"]


def free_elements(shapes: Shapes) -> frozenset[str]:
    """Return the names of unknown elements, such as those of an input, that are not first known as dims of a tensor.

    A dim is small, and so is what models compute from it. An element of an input may be any number: the shape engine
    takes `4 * x // 4` for `x`, which does not hold where the product wraps around.
    """
    dims: set[str] = set()
    free: set[str] = set()
    for value, tensor in shapes.first.items():
        if value.tensor is not None:
            continue
        dims.update(name for dim in tensor.dims or () for name in dim.symbols if name not in free)
        free.update(name for name in _of_elements(tensor) if name[:1] == "?" and name not in dims)
    return frozenset(free)


def _of_elements(tensor: Tensor) -> Iterator[str]:
    for element in tensor.elements or () if tensor.may_have_data else ():
        expr = element.dividend if isinstance(element, Ratio) else element
        if isinstance(expr, Expr) and expr.constant is None:
            yield from expr.symbols
