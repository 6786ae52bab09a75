"""Operators that give elements another shape or join them: Reshape, Transpose, Squeeze, Concat, Split and their kin."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from graphkit.shapes.algebra import ceil_div
from graphkit.shapes.bounds import is_nonzero, lower, upper
from graphkit.shapes.expr import INF, Expr, const
from graphkit.shapes.rules.common import moved, product, small_data, target
from graphkit.shapes.site import Rule, Site, UnknownError
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Dims, Element, Tensor, array_of, number

__all__ = ["RULES"]


def reshape(site: Site) -> Tensor:
    """Target dims from the second input: 0 copies (allowzero=0), one -1 takes the rest."""
    found = site.tensor()
    wanted = target(site)
    if found.dims is None:
        return moved(site, tuple(_copied(site, None, i, element) for i, element in enumerate(wanted)), None)
    dims = _reshaped(site, found.dims, wanted)
    array = found.data if found.may_have_data else None
    sizes = Tensor(0, dims).sizes()
    if array is not None and sizes is not None and prod(sizes) == array.size:
        array = array.reshape(sizes)
    return moved(site, dims, array)


def _copied(site: Site, source: Dims | None, index: int, element: Element) -> Expr:
    value = number(element)
    if value == -1 or (value == 0 and not site.integer("allowzero", 0)):
        if value == 0 and source is not None and index < len(source):
            return source[index]
        return site.fresh(
            "it is inferred from an input whose rank is unknown" if source is None else "it has no source"
        )
    expr = Expr.of(element)  # type: ignore[arg-type]
    return expr if lower(expr) >= 0 else site.fresh(f"it is {expr}, which may be below 0")


def _reshaped(site: Site, source: Dims, wanted: list[Element]) -> Dims:
    allow_zero = bool(site.integer("allowzero", 0))
    dims: list[Expr | None] = [_explicit(site, source, i, element, allow_zero) for i, element in enumerate(wanted)]
    missing = [index for index, dim in enumerate(dims) if dim is None]
    total = product(source)
    present = product([dim for dim in dims if dim is not None])
    if len(missing) == 1:
        if present == 0:
            raise UnknownError("-1 beside a dim of 0")
        dims[missing[0]] = site.quotient(total, present, f"{total} elements")
    elif not missing:
        _check_count(site, source, tuple(dim for dim in dims if dim is not None))
    reason = "the target shape has more than one dim that is not known"
    return tuple(site.fresh(reason) if dim is None else dim for dim in dims)


def _explicit(site: Site, source: Dims, index: int, element: Element, allow_zero: bool) -> Expr | None:
    """Return a target dim, or None where what is left of the elements decides it."""
    value = number(element)
    if value is not None:
        if value == -1:
            return None
        if value < -1:
            site.finding(f"a target dim of {value}")
            raise UnknownError(f"a target dim of {value}")
        if value or allow_zero:
            return const(value)
        if index < len(source):
            return source[index]
        site.finding(f"a target dim of 0 at {index}, where the input has rank {len(source)}")
        raise UnknownError("a target dim of 0 has nothing to copy")
    expr = Expr.of(element)  # type: ignore[arg-type]
    least = lower(expr)
    if least >= 1 or (least >= 0 and (allow_zero or (index < len(source) and _is_zero_together(source[index], expr)))):
        return expr
    return None


def _is_zero_together(copied: Expr, expr: Expr) -> bool:
    """Whether a dim is 0 where an expression is, so that 0 for "copy" does what 0 says."""
    atom = expr.atom
    return copied == expr or (atom is not None and copied.substitute({str(atom): 0}) == 0)


def _check_count(site: Site, source: Dims, wanted: Dims) -> None:
    """Note that both dims have as many elements, less what they share."""
    left, right = list(source), list(wanted)
    for dim in source:
        if dim in right and is_nonzero(dim):
            left.remove(dim)
            right.remove(dim)
    before, after = product(left), product(right)
    if before != after:
        site.same(before, after, "elements before and after")


def flatten(site: Site) -> Tensor:
    """Two dims: the product of those before the axis and of the others."""
    dims, axis = site.dims(), site.integer("axis", 1)
    split = axis if axis == len(dims) else site.axis(axis, max(len(dims), 1))
    array = small_data(site)
    result = (product(dims[:split]), product(dims[split:]))
    sizes = Tensor(0, result).sizes()
    return moved(site, result, None if array is None or sizes is None else array.reshape(sizes))


def transpose(site: Site) -> Tensor:
    """The dims in another order."""
    dims = site.dims()
    order = site.integers("perm") or list(range(len(dims)))[::-1]
    if sorted(order) != list(range(len(dims))):
        site.finding(f"perm {order} of a tensor of rank {len(dims)}")
        raise UnknownError("perm does not fit the rank")
    array = small_data(site)
    return moved(site, tuple(dims[axis] for axis in order), None if array is None else array.transpose(order))


def squeeze(site: Site) -> Tensor:
    """Without dims of 1: those named, or all; an empty list names none by ONNX, and all in onnxruntime."""
    dims, axes = site.dims(), site.axes(1, 13)
    if axes == [] and any(lower(dim) <= 1 <= upper(dim) for dim in dims):
        raise UnknownError("its list of axes is empty, which onnxruntime takes for all dims of 1, and ONNX for none")
    if axes is None:
        undecided = [dim for dim in dims if dim.constant is None and lower(dim) <= 1 <= upper(dim)]
        if undecided:
            raise UnknownError(f"without axes, the rank depends on whether {undecided[0]} is 1")
        gone = {index for index, dim in enumerate(dims) if dim == 1}
    else:
        gone = {site.axis(axis, len(dims)) for axis in axes}
        for index in gone:
            site.same(dims[index], const(1), "a dim that is squeezed")
    kept = tuple(dim for index, dim in enumerate(dims) if index not in gone)
    array = small_data(site)
    if array is not None and all(array.shape[index] == 1 for index in gone):
        array = array.reshape([size for index, size in enumerate(array.shape) if index not in gone])
    return moved(site, kept, array)


def unsqueeze(site: Site) -> Tensor:
    """With dims of 1 at the axes."""
    dims, axes = site.dims(), site.axes(1, 13) or []
    rank = len(dims) + len(axes)
    places = {site.axis(axis, rank) for axis in axes}
    rest = iter(dims)
    if len(places) < len(axes):
        raise UnknownError("an axis is given twice")
    result = tuple(const(1) if index in places else next(rest) for index in range(rank))
    array = small_data(site)
    return moved(site, result, None if array is None else np.expand_dims(array, tuple(places)))


def expand_dims(site: Site) -> Tensor:
    """com.microsoft ExpandDims: with a dim of 1 at the axis."""
    dims, axes = site.dims(), site.numbers(1)
    if len(axes) != 1:
        raise UnknownError(f"{site.name(1)} is no single number")
    place = site.axis(axes[0], len(dims) + 1)
    array = small_data(site)
    result = (*dims[:place], const(1), *dims[place:])
    return moved(site, result, None if array is None else np.expand_dims(array, place))


def concat(site: Site) -> Tensor:
    """The sum along the axis; all other dims must be equal."""
    shapes = [site.dims(index) for index in range(len(site.inputs))]
    axis = site.axis(site.integer("axis", 1), len(shapes[0]))
    if len({len(dims) for dims in shapes}) > 1:
        site.finding("inputs of different rank")
        raise UnknownError("the inputs differ in rank")
    dims = [dim if index == axis else _common(site, shapes, index) for index, dim in enumerate(shapes[0])]
    dims[axis] = sum((other[axis] for other in shapes[1:]), dims[axis])
    return moved(site, tuple(dims), _joined(site, axis))


def _common(site: Site, shapes: list[Dims], index: int) -> Expr:
    """Return a dim that is not concatenated, equal in all inputs; onnxruntime lets one without elements differ."""
    if all(dims[index] is shapes[0][index] or dims[index] == shapes[0][index] for dims in shapes[1:]):
        return shapes[0][index]
    full = [dims for dims in shapes if all(lower(dim) >= 1 for dim in dims)]
    if not full:
        different = ", ".join(dict.fromkeys(str(dims[index]) for dims in shapes))
        return site.fresh(f"the inputs have {different}, and any may be without elements")
    result = full[0][index]
    for dims in full[1:]:
        result = site.same(result, dims[index], "dims that are not concatenated")
    return result


def _joined(site: Site, axis: int) -> Array | None:
    tensors = [site.tensor(index) for index in range(len(site.inputs))]
    if not any(found.may_have_data for found in tensors):
        return None
    counts = [found.count() for found in tensors]
    if sum(MAX_ELEMENTS + 1 if count is None else count for count in counts) > MAX_ELEMENTS:
        return None
    arrays = [_filled(site, index) for index in range(len(tensors))]
    present = [array for array in arrays if array is not None]
    return np.concatenate(present, axis) if len(present) == len(arrays) else None


def _filled(site: Site, index: int) -> Array | None:
    """Return the elements of an integer input, unknown ones where it has none."""
    found = site.tensor(index)
    if (data := found.data) is not None:
        return data
    if not found.is_shape_like or (count := found.count()) is None or count > 8:
        return None
    reason = found.reason or f"the value of {site.name(index)} is unknown"
    return array_of([site.fresh(reason, -INF) for _ in range(count)], found.sizes())


def split(site: Site) -> list[Tensor]:
    """Parts of the sizes given, or as many equal ones as there are outputs."""
    dims = site.dims()
    axis = site.axis(site.integer("axis", 0), len(dims))
    count = len(site.node.outputs)
    sizes: list[Expr]
    if site.opset >= 13 and site.has(1):
        if site.data(1) is None:
            reason = f"the value of {site.name(1)} is unknown"
            sizes = [site.fresh(reason) for _ in range(count)]
        else:
            sizes = [Expr.of(size) for size in site.values(1)]  # type: ignore[arg-type]
    elif site.opset < 13 and site.integers("split"):
        sizes = [const(size) for size in site.integers("split") or []]
    else:
        parts = site.integer("num_outputs", count) if site.opset >= 18 else count
        if parts != count:
            raise UnknownError(f"num_outputs is {parts}, and there are {count}")
        size = ceil_div(dims[axis], parts) if site.opset >= 18 else site.quotient(dims[axis], const(parts), "a dim")
        sizes = [size] * (parts - 1) + [dims[axis] - size * (parts - 1)]
    negative = [size for size in sizes if (n := size.constant) is not None and n < 0]
    if negative:
        site.finding(f"a part of size {negative[0]}")
        raise UnknownError("a part has a negative size")
    if len(sizes) != count:
        site.finding(f"{len(sizes)} sizes for {count} outputs")
        raise UnknownError("the sizes do not fit the outputs")
    site.same(sum(sizes, const(0)), dims[axis], "the sum of the parts")
    array = small_data(site)
    result, start = [], 0
    for size in sizes:
        part, length = None, size.constant
        if array is not None and length is not None:
            part = array.take(range(start, min(start + length, array.shape[axis])), axis)
            start += length
        result.append(moved(site, (*dims[:axis], size, *dims[axis + 1 :]), part))
    return result


def depth_to_space(site: Site) -> Tensor:
    """Channels divided by the square of the block, height and width times the block."""
    batch, channels, height, width = site.dims()
    size = site.integer("blocksize", 1)
    if site.node.op_type == "DepthToSpace":
        channels = site.quotient(channels, const(size * size), "channels")
        return Tensor(site.tensor().dtype, (batch, channels, height * size, width * size))
    height, width = (site.quotient(dim, const(size), "a dim") for dim in (height, width))
    return Tensor(site.tensor().dtype, (batch, channels * (size * size), height, width))


RULES: Mapping[str, Rule] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "com.microsoft.ExpandDims": expand_dims,
    "Concat": concat,
    "Split": split,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": depth_to_space,
}
