"""Operators that make or read shapes: Shape, Size, Constant, ConstantOfShape, Range, NonZero, TopK, OneHot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import SparseTensorProto, TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import has_attributes_only
from graphkit.graph.view import VALUES, ZERO, constant_tensor
from graphkit.ops.data_movement import small_data, unknown_values
from graphkit.ops.element_values import compare_elements, for_each_element
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import (
    MAX_ELEMENTS,
    Element,
    Tensor,
    array_of,
    dims_product,
    element_number,
    element_numbers,
    plain_element,
    sizes_of,
)
from graphkit.symbolic.algebra import ceil_div, lower, maximum
from graphkit.symbolic.expr import Expr, const


def infer_shape(ctx: InferenceContext) -> Tensor:
    """Return the dims from `start` to `end` as elements."""
    tensor = ctx.tensor()
    if tensor.dims is None:
        dims = (ctx.new_symbol("the rank of the input is unknown"),)
        return Tensor(TensorProto.INT64, dims, None, tensor.reason or f"the rank of {ctx.name(0)} is unknown")
    rank = len(tensor.dims)
    bounds = [ctx.attr("start", 0), ctx.attr("end", rank)]
    start, end = (min(max(bound + rank if bound < 0 else bound, 0), rank) for bound in bounds)
    elements = [plain_element(dim) for dim in tensor.dims[start : max(start, end)]]
    return Tensor(TensorProto.INT64, (len(elements),), array_of(elements))


def infer_size(ctx: InferenceContext) -> Tensor:
    """Return the number of elements."""
    return Tensor(TensorProto.INT64, (), array_of([plain_element(dims_product(ctx.dims()))], ()))


def infer_constant(ctx: InferenceContext) -> Tensor:
    """Return the tensor of the attribute that is given."""
    is_plain = ctx.attributes is ctx.node.attributes
    tensor = ctx.node.constant if is_plain else constant_tensor(ctx.attributes)
    if tensor is not None:
        return ctx.engine.load(tensor)
    if len(VALUES & ctx.attributes.keys()) != 1:
        raise UnknownError("a Constant needs one value, neither none nor several")
    sparse = ctx.attr("sparse_value", SparseTensorProto)
    return Tensor(sparse.values.data_type, tuple(sparse.dims))


def constant_of_shape(ctx: InferenceContext) -> Tensor:
    """Return a tensor whose dims are the elements of the input, filled with one value."""
    value = ctx.attr("value", ZERO)
    if ctx.data(0) is None:
        return Tensor(value.data_type, unknown_values(ctx, 0))
    for dim in ctx.exprs(0):
        ctx.require_at_least(dim, 0, "a dim below 0", "Tensor shape.Size() must be >= 0")
    dims = [maximum(dim, 0) if lower(dim) < 0 else dim for dim in ctx.exprs(0)]
    sizes = sizes_of(dims)
    if sizes is None or prod(sizes) > MAX_ELEMENTS:
        return Tensor(value.data_type, dims)
    fill = ctx.engine.load(value).data
    data = np.full(sizes, fill.item(), object) if fill is not None and fill.size == 1 else None
    return Tensor(value.data_type, dims, data)


def range_(ctx: InferenceContext) -> Tensor:
    """Count the steps from start to limit: as many elements there are."""
    dtype = ctx.tensor().dtype
    missing = [ctx.name(index) for index in range(3 if ctx.has(2) else 2) if ctx.data(index) is None]
    if missing:
        return Tensor(dtype, (ctx.new_symbol(f"the value of {missing[0]} is unknown"),))
    start, limit = map(ctx.scalar, range(2))
    delta = ctx.scalar(2) if ctx.has(2) else 1  # com.microsoft may leave it out
    if isinstance(delta, Expr) and not ctx.node.domain:
        ctx.require_not_zero(delta, (), "a step of 0", "can not be zero")
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        numbers = range(start, limit, delta)
        return Tensor(dtype, (len(numbers),), array_of(numbers) if len(numbers) <= MAX_ELEMENTS else None)
    if all(isinstance(value, (int, float)) for value in (start, limit, delta)):
        return Tensor(dtype, (_float_steps(ctx, float(start), float(limit), float(delta)),))  # type: ignore[arg-type]
    return Tensor(dtype, (_count_steps(ctx, start, limit, delta),))


def _float_steps(ctx: InferenceContext, start: float, limit: float, delta: float) -> Expr:
    """Return the number of steps between floats, unless it depends on where the runtime rounds.

    ONNX does not say where. onnxruntime 1.32 counts `Range(0, 0.3, 0.1)` in float64, which makes 4 of these float32s.
    """
    typed = FLOATS[ctx.tensor().dtype].type
    with np.errstate(all="ignore"):
        difference = typed(limit) - typed(start)
        found = [difference / typed(delta), float(difference) / delta, (limit - start) / delta]
    counts = {max(math.ceil(count), 0) for count in found}
    if len(counts) > 1:
        return ctx.new_symbol("where floats are rounded decides how many steps a Range has")
    return const(counts.pop())


HALVED = 1 << 24  # numbers of which each half is told apart


def _count_steps(ctx: InferenceContext, start: Element, limit: Element, delta: Element) -> Expr:
    ends = []
    if isinstance(start, float) and math.isfinite(start) and isinstance(limit, Expr) and delta == 1:
        ctx.at_most(limit, HALVED)  # onnxruntime counts in float64
        start = math.floor(start)  # from 0.5 on, there are as many as from 0
    for end in (start, limit):
        if isinstance(end, float) and end.is_integer():
            end = int(end)
        if not isinstance(end, (int, Expr)):
            return ctx.new_symbol(f"a Range from {start} to {limit}")
        ends.append(Expr.of(end))
    step = int(delta) if isinstance(delta, float) and delta.is_integer() else element_number(delta)
    if not step:
        return ctx.new_symbol(f"a Range in steps of {delta}")
    return maximum(0, ceil_div(ends[1] - ends[0], step) if step > 0 else ceil_div(ends[0] - ends[1], -step))


def non_zero(ctx: InferenceContext) -> Tensor:
    """Return a row for each dim, and a column for each element that is not zero."""
    rank = const(max(len(ctx.dims()), 1))
    data = small_data(ctx)
    if data is not None and data.ndim:
        zeros = for_each_element(lambda element: compare_elements("==", element, 0), data)
        if None not in zeros.ravel().tolist():
            places = np.argwhere(zeros == 0).T
            data = places.astype(object) if places.size <= MAX_ELEMENTS else None
            return Tensor(TensorProto.INT64, places.shape, data)
    return Tensor(TensorProto.INT64, (rank, ctx.new_symbol(f"it is how many elements of {ctx.name(0)} are not zero")))


def top_k(ctx: InferenceContext) -> list[Tensor]:
    """Put K in the place of the axis, for values and indices."""
    dims = list(ctx.dims())
    axis = ctx.axis(ctx.attr("axis", -1), len(dims))
    count = const(ctx.attr("k", 1)) if has_attributes_only(ctx.node) else ctx.size(1)
    ctx.require_at_least(count, 0, "k below 0", "must not be negative")
    ctx.require_at_most(count, dims[axis], "k is larger than the axis", "k argument")
    dims[axis] = count
    return [ctx.like(dims), Tensor(TensorProto.INT64, dims)]


def one_hot(ctx: InferenceContext) -> Tensor:
    """Insert the depth into the dims of the indices; where these are numbers, put the second value at each."""
    dims, given, values = ctx.dims(), ctx.data(1), ctx.data(2)
    place = ctx.axis(ctx.attr("axis", -1), len(dims) + 1)
    depth = given.ravel()[0] if given is not None and given.size == 1 else None
    depth = int(depth) if isinstance(depth, float) else depth
    new = Expr.of(depth) if isinstance(depth, (int, Expr)) else ctx.unknown_value(1)
    ctx.at_least(new, 0, "the depth", "must be non-negative")
    indices, size, data = element_numbers(ctx.tensor()), new.constant or 0, None
    if indices is not None and indices.ndim and values is not None and 0 < size * (indices.size + 1) <= MAX_ELEMENTS:
        from_start = np.where(indices < 0, indices + size, indices)
        is_hot = np.moveaxis(np.equal.outer(from_start, np.arange(size)), -1, place)
        data = values.ravel()[is_hot.astype(int)] if values.size == 2 else None
    return Tensor(ctx.tensor(2).dtype, [*dims[:place], new, *dims[place:]], data)


def infer_like(ctx: InferenceContext) -> Tensor:
    """Return the dims of the input; the dtype is given."""
    return ctx.tensor().of_dtype(ctx.attr("dtype", ctx.tensor().dtype))


def infer_compress(ctx: InferenceContext) -> Tensor:
    """Keep as many along the axis as the condition has True."""
    count = ctx.new_symbol(f"it is how many elements of {ctx.name(1)} are True")
    if "axis" not in ctx.attributes:
        return ctx.like((count,))
    dims = list(ctx.dims())
    dims[ctx.axis(ctx.attr("axis", 0), len(dims))] = count
    return ctx.like(dims)


def infer_unique(ctx: InferenceContext) -> list[Tensor]:
    """Keep as many as are distinct."""
    whole = dims_product(ctx.dims())
    count = ctx.new_symbol("it is how many distinct elements there are", int(lower(whole) >= 1))
    dims, total = [count], whole
    if "axis" in ctx.attributes:
        dims = list(ctx.dims())
        axis = ctx.axis(ctx.attr("axis", 0), len(dims))
        total, dims[axis] = dims[axis], count
    vectors = [Tensor(TensorProto.INT64, (length,)) for length in (count, total, count)]
    return [ctx.like(dims), *vectors]


def unique_vector(ctx: InferenceContext) -> list[Tensor]:
    """Infer com.microsoft Unique: as many as are distinct, where each stands, how often each is there."""
    (total,) = ctx.dims()
    count = ctx.new_symbol("it is how many distinct elements there are")
    return [ctx.like((count,)), *(Tensor(TensorProto.INT64, (n,)) for n in (total, count))]


RULES: Mapping[str, Rule] = {
    "Shape": infer_shape,
    "Size": infer_size,
    "Constant": infer_constant,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "com.microsoft.Range": range_,
    "NonZero": non_zero,
    "TopK": top_k,
    "OneHot": one_hot,
    "Compress": infer_compress,
    "Unique": infer_unique,
    "com.microsoft.Unique": unique_vector,
    "Multinomial": lambda ctx: Tensor(  # a row of samples for each batch
        ctx.attr("dtype", TensorProto.INT32), (ctx.dims()[0], ctx.attr("sample_size", 1))
    ),
    **dict.fromkeys(("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike"), infer_like),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform"),
        lambda ctx: Tensor(ctx.attr("dtype", TensorProto.FLOAT), ctx.attr("shape", ())),
    ),
}
