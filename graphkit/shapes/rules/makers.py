"""Operators that make or read shapes: Shape, Size, Constant, ConstantOfShape, Range, NonZero, TopK, OneHot."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import TensorProto

from graphkit.shapes import calc
from graphkit.shapes.algebra import ceil_div, maximum
from graphkit.shapes.bounds import lower
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.rules.common import product
from graphkit.shapes.site import Rule, Site, UnknownError
from graphkit.shapes.tensor import FLOATS, MAX_ELEMENTS, Element, Tensor, array_of, number

__all__ = ["RULES"]


def shape(site: Site) -> Tensor:
    """The dims as elements, from `start` to `end`."""
    found = site.tensor()
    if found.dims is None:
        dims = (site.fresh("the rank of the input is unknown"),)
        return Tensor(TensorProto.INT64, dims, None, found.reason or f"the rank of {site.name(0)} is unknown")
    rank = len(found.dims)
    bounds = [site.integer("start", 0), site.integer("end", rank)]
    start, end = (min(max(bound + rank if bound < 0 else bound, 0), rank) for bound in bounds)
    return _vector(list(found.dims[start : max(start, end)]))


def _vector(elements: list[Expr]) -> Tensor:
    plain: list[Element] = [dim if (n := dim.constant) is None else n for dim in elements]
    return Tensor(TensorProto.INT64, (len(plain),), array_of(plain))


def size(site: Site) -> Tensor:
    """The number of elements."""
    total = product(site.dims())
    return Tensor(TensorProto.INT64, (), array_of([total if total.constant is None else int(total)], ()))


def constant(site: Site) -> Tensor:
    """The attribute that is given."""
    given = site.attributes
    if "value" in given:
        return site.engine.load(given["value"].t)
    if "value_int" in given:
        return Tensor(TensorProto.INT64, (), array_of([given["value_int"].i], ()))
    if "value_float" in given:
        return Tensor(TensorProto.FLOAT, (), array_of([given["value_float"].f], ()))
    if "value_ints" in given:
        ints: list[Element] = list(given["value_ints"].ints)
        return Tensor(TensorProto.INT64, (len(ints),), array_of(ints) if len(ints) <= MAX_ELEMENTS else None)
    if "value_floats" in given:
        floats: list[Element] = list(given["value_floats"].floats)
        return Tensor(TensorProto.FLOAT, (len(floats),), array_of(floats) if len(floats) <= MAX_ELEMENTS else None)
    if "value_string" in given:
        return Tensor(TensorProto.STRING, ())
    if "value_strings" in given:
        return Tensor(TensorProto.STRING, (len(given["value_strings"].strings),))
    if "sparse_value" in given:
        sparse = given["sparse_value"].sparse_tensor
        return Tensor(sparse.values.data_type, tuple(sparse.dims))
    raise UnknownError("a Constant without a value")


def constant_of_shape(site: Site) -> Tensor:
    """The input's elements as dims, filled with one value."""
    value = site.attributes.get("value")
    dtype = value.t.data_type if value is not None else TensorProto.FLOAT
    if site.data(0) is None:
        length = site.dims(0)[0].constant if site.dims(0) else None
        if length is None or length > 16:
            site.values(0)  # says why
        reason = f"the value of {site.name(0)} is unknown"
        return Tensor(dtype, tuple(site.fresh(reason) for _ in range(length or 0)))
    dims = []
    for element in site.values(0):
        expr = Expr.of(element)  # type: ignore[arg-type]
        dims.append(maximum(expr, 0) if lower(expr) < 0 else expr)
    result = Tensor(dtype, dims)
    sizes = result.sizes()
    if sizes is None or prod(sizes) > MAX_ELEMENTS:
        return result
    fill = array_of([0.0]) if value is None else site.engine.load(value.t).data
    if fill is None or fill.size != 1:
        return result
    return Tensor(dtype, dims, array_of([fill.item()] * prod(sizes), sizes))


def range_(site: Site) -> Tensor:
    """As many elements as steps from start to limit."""
    dtype = site.tensor().dtype
    missing = [site.name(index) for index in range(3 if site.has(2) else 2) if site.data(index) is None]
    if missing:
        return Tensor(dtype, (site.fresh(f"the value of {missing[0]} is unknown"),))
    start, limit = (_scalar(site, index) for index in range(2))
    delta = _scalar(site, 2) if site.has(2) else 1  # com.microsoft may leave it out
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        found = range(start, limit, delta)
        elements: list[Element] = list(found) if len(found) <= MAX_ELEMENTS else []
        return Tensor(dtype, (len(found),), array_of(elements) if len(found) <= MAX_ELEMENTS else None)
    if all(isinstance(value, (int, float)) for value in (start, limit, delta)):
        typed = FLOATS[dtype].type
        count = np.ceil((typed(limit) - typed(start)) / typed(delta))
        return Tensor(dtype, (max(int(count), 0),))
    return Tensor(dtype, (_steps(site, start, limit, delta),))


def _scalar(site: Site, index: int) -> Element:
    values = site.values(index)
    if len(values) != 1:
        raise UnknownError(f"{site.name(index)} is no single number")
    return values[0]


def _steps(site: Site, start: Element, limit: Element, delta: Element) -> Expr:
    ends = []
    for end in (start, limit):
        if isinstance(end, float) and end.is_integer():
            end = int(end)
        if not isinstance(end, (int, Expr)):
            return site.fresh(f"a Range from {start} to {limit}")
        ends.append(Expr.of(end))
    step = int(delta) if isinstance(delta, float) and delta.is_integer() else number(delta)
    if not step:
        return site.fresh(f"a Range in steps of {delta}")
    return maximum(0, ceil_div(ends[1] - ends[0], step) if step > 0 else ceil_div(ends[0] - ends[1], -step))


def non_zero(site: Site) -> Tensor:
    """A row for each dim, a column for each element that is not zero."""
    rank = const(max(len(site.dims()), 1))
    data = site.data(0) if site.tensor().may_have_data else None
    if data is not None:
        zeros = [calc.compare("==", element, 0) for element in data.ravel().tolist()]
        if None not in zeros and data.ndim:
            places = np.argwhere(np.array(zeros).reshape(data.shape) == 0).T
            elements: list[Element] = places.ravel().tolist()
            small = array_of(elements, places.shape) if places.size <= MAX_ELEMENTS else None
            return Tensor(TensorProto.INT64, places.shape, small)
    return Tensor(TensorProto.INT64, (rank, site.fresh(f"it is how many elements of {site.name(0)} are not zero")))


def top_k(site: Site) -> list[Tensor]:
    """K in the place of the axis, for values and indices."""
    dims = list(site.dims())
    axis = site.axis(site.integer("axis", -1), len(dims))
    if site.opset < 10:
        count = const(site.integer("k", 1))
    elif site.data(1) is None:
        count = site.fresh(f"the value of {site.name(1)} is unknown")
    else:
        count = Expr.of(_scalar(site, 1))  # type: ignore[arg-type]
    dims[axis] = count
    return [Tensor(site.tensor().dtype, dims), Tensor(TensorProto.INT64, dims)]


def one_hot(site: Site) -> Tensor:
    """The indices' dims and one of the depth."""
    dims, axis = list(site.dims(0)), site.integer("axis", -1)
    data = site.data(1)
    depth = data.ravel()[0] if data is not None and data.size else None
    if isinstance(depth, float):
        depth = int(depth)
    place = site.axis(axis, len(dims) + 1)
    new = Expr.of(depth) if isinstance(depth, (int, Expr)) else site.fresh(f"the value of {site.name(1)} is unknown")
    return Tensor(site.tensor(2).dtype, [*dims[:place], new, *dims[place:]])


def eye_like(site: Site) -> Tensor:
    """The dims of the input."""
    return Tensor(site.integer("dtype", site.tensor().dtype), site.dims())


def random_like(site: Site) -> Tensor:
    """The dims of the input, of the dtype given."""
    found = site.tensor()
    return Tensor(site.integer("dtype", found.dtype), found.dims, None, found.reason)


def random(site: Site) -> Tensor:
    """The dims of the attribute."""
    return Tensor(site.integer("dtype", TensorProto.FLOAT), site.integers("shape") or [])


def compress(site: Site) -> Tensor:
    """As many along the axis as the condition has True."""
    count = site.fresh(f"it is how many elements of {site.name(1)} are True")
    if "axis" not in site.attributes:
        return Tensor(site.tensor().dtype, (count,))
    dims = list(site.dims())
    dims[site.axis(site.integer("axis", 0), len(dims))] = count
    return Tensor(site.tensor().dtype, dims)


def unique(site: Site) -> list[Tensor]:
    """As many as are distinct."""
    count = site.fresh("it is how many distinct elements there are", 1)
    dims = list(site.dims())
    total = product(tuple(dims))
    if "axis" in site.attributes:
        axis = site.axis(site.integer("axis", 0), len(dims))
        total = dims[axis]
        dims[axis] = count
    else:
        dims = [count]
    vectors = [Tensor(TensorProto.INT64, (length,)) for length in (count, total, count)]
    return [Tensor(site.tensor().dtype, dims), *vectors]


def unique_vector(site: Site) -> list[Tensor]:
    """com.microsoft Unique: as many as are distinct, where each stands, how often each is there."""
    (total,) = site.dims()
    count = site.fresh("it is how many distinct elements there are")
    return [Tensor(site.tensor().dtype, (count,)), *(Tensor(TensorProto.INT64, (n,)) for n in (total, count))]


def multinomial(site: Site) -> Tensor:
    """A row for each batch."""
    return Tensor(site.integer("dtype", TensorProto.INT32), (site.dims()[0], site.integer("sample_size", 1)))


RULES: Mapping[str, Rule] = {
    "Shape": shape,
    "Size": size,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "com.microsoft.Range": range_,
    "NonZero": non_zero,
    "TopK": top_k,
    "OneHot": one_hot,
    "EyeLike": eye_like,
    "Compress": compress,
    "Unique": unique,
    "com.microsoft.Unique": unique_vector,
    "Multinomial": multinomial,
    "Bernoulli": random_like,
    "RandomNormalLike": random_like,
    "RandomUniformLike": random_like,
    "RandomNormal": random,
    "RandomUniform": random,
}
