"""Operators that choose elements by index: Slice, Gather, Scatter and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import INT32_MAX, INT64_MAX
from graphkit.graph.operator_traits import has_attributes_only, joined_parts
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.ops.data_movement import small_data, with_dims
from graphkit.ops.preconditions import FINE, WRONG, Index, Ints, Precondition, Violation, name_value
from graphkit.ops.rule_context import InferenceContext, NodeView, Rule, UnknownError
from graphkit.ops.tensor import Array, Element, Tensor, array_of, dims_product, element_number, is_known, is_to_the_end
from graphkit.ops.value_ranges import ValueRangeAnalysis
from graphkit.symbolic.algebra import ceil_div, lower, maximum, minimum, upper
from graphkit.symbolic.expr import Expr, const

Bound = Element | None  # of a slice, or its step: None where it is not known


def slice_(ctx: InferenceContext) -> Tensor:
    """Count the steps from start to end along each axis; the rank stays, whatever is not known."""
    dims = list(ctx.dims())
    if unknown := _unknown_axes(ctx):
        return with_dims(ctx, tuple(ctx.new_symbol(unknown) for _ in dims), None)
    rows, array = _slice_bounds(ctx, len(dims)), small_data(ctx)
    for axis, start, end, step in rows:
        if isinstance(start, (int, Expr)) and isinstance(end, (int, Expr)) and step == 1:
            bounds = Expr.of(start), Expr.of(end)  # which are meant to count from the front
            if any(bound.constant is None and lower(bound) < 0 <= upper(bound) for bound in bounds):
                ctx.require(Sliced(*bounds, ctx.dims(), axis))
        array = _slice_elements(array, axis, start, end, step)
        dims[axis] = _slice_dim(ctx, dims[axis], start, end, step)
    return with_dims(ctx, tuple(dims), array)


def _unknown_axes(ctx: InferenceContext) -> str:
    """Return why it is not known which axes are sliced, "" where it is."""
    if has_attributes_only(ctx.node):
        return ""
    if ctx.has(3):
        data = ctx.data(3)
        is_known = data is not None and all(element_number(element) is not None for element in data.ravel().tolist())
        return "" if is_known else f"the value of {ctx.name(3)} is unknown"
    counts = [ctx.tensor(index).count() for index in (1, 2)]
    return "the number of sliced axes is unknown" if counts == [None, None] else ""


def _slice_bounds(ctx: InferenceContext, rank: int) -> list[tuple[int, Bound, Bound, Bound]]:
    """Return axis, start, end and step for each axis that is sliced; None for one that is not known."""
    if has_attributes_only(ctx.node):
        starts, ends = ctx.attr("starts", ()), ctx.attr("ends", ())
        axes = ctx.attr("axes", ()) or range(len(starts))
        return [(ctx.axis(a, rank), s, e, 1) for a, s, e in zip(axes, starts, ends, strict=False)]
    chosen = ctx.numbers(3) if ctx.has(3) else None
    counts = [ctx.tensor(1).count(), ctx.tensor(2).count(), None if chosen is None else len(chosen)]
    count = next(n for n in counts if n is not None)
    if count > rank:
        problem = f"{count} axes are sliced of a tensor of rank {rank}"
        raise ctx.impossible(problem, "more axes are sliced than there are")
    columns: list[list[Bound]] = []
    for index in (1, 2, 4):
        data = ctx.data(index)
        elements: list[Bound] = [None] * count if data is None else data.ravel().tolist()
        columns.append([1] * count if index == 4 and not ctx.has(4) else elements)
    rows = zip(range(count) if chosen is None else chosen, *columns, strict=False)
    return [(ctx.axis(axis, rank), start, end, step) for axis, start, end, step in rows]


def _slice_elements(array: Array | None, axis: int, start: Bound, end: Bound, step: Bound) -> Array | None:
    first, last = (None if bound is None else element_number(bound) for bound in (start, end))
    if array is None or first is None or last is None or not isinstance(step, int) or step == 0:
        return None
    if step < 0 and last < -array.shape[axis]:
        last = None  # past the front: in Python, -1 - length would count from the end again
    return array[(slice(None),) * axis + (slice(first, last, step),)]


def _slice_dim(ctx: InferenceContext, dim: Expr, start: Bound, end: Bound, step: Bound) -> Expr:
    if start is None or end is None or step is None:
        return ctx.new_symbol("what the Slice cuts depends on data")
    stride = Expr.of(step)  # type: ignore[arg-type]
    if lower(stride) <= 0 <= upper(stride):
        return ctx.new_symbol(f"the step of the Slice is {step}, which may be above or below 0")
    if upper(stride) < 0 and element_number(end) in (INT32_MAX, INT64_MAX):
        where = "which is the front in onnxruntime, and the end in ONNX"
        return ctx.new_symbol(f"the Slice goes backwards to {end}, {where}")
    is_forward = lower(stride) > 0
    least, most = (const(0), dim) if is_forward else (const(-1), dim - 1)
    first = _clamp_bound(Expr.of(start), dim, const(0), most)  # type: ignore[arg-type]
    last = _clamp_bound(Expr.of(end), dim, least, most)  # type: ignore[arg-type]
    if first is None or last is None:
        return ctx.new_symbol(f"the Slice goes from {start} to {end}, and either may be below 0 or not")
    return maximum(0, ceil_div(last - first, stride) if is_forward else ceil_div(first - last, -stride))


def _clamp_bound(bound: Expr, dim: Expr, least: Expr, most: Expr) -> Expr | None:
    """Return a slice's bound counted from the front and kept in range."""
    value = bound.constant
    if value is not None and is_to_the_end(abs(value)):
        return most if value > 0 else minimum(least, most)
    if upper(bound) < 0:
        bound = bound + dim
    elif lower(bound) < 0:
        return None
    return minimum(maximum(least, bound), most)  # in this order: of nothing, `most` is below `least`


def infer_gather(ctx: InferenceContext) -> Tensor:
    """Put the dims of the indices in the place of the axis."""
    dims, indices = ctx.dims(0), ctx.dims(1)
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    size, given = dims[axis].constant, ctx.data(1)
    numbers = [*map(element_number, () if given is None else given.ravel().tolist())]
    if size is not None and any(n is not None and not -size <= n < size for n in numbers):
        ctx.note_fault(f"an index outside of an axis of {size}")
    array, taken = small_data(ctx), None
    length = 0 if array is None else array.shape[axis]
    if array is not None and given is not None and all(n is not None and -length <= n < length for n in numbers):
        shape = (*array.shape[:axis], *given.shape, *array.shape[axis + 1 :])
        taken = array_of(array.take(np.array(numbers, np.int64), axis).ravel().tolist(), shape)
    return with_dims(ctx, (*dims[:axis], *indices, *dims[axis + 1 :]), taken)


def gather_blocks(ctx: InferenceContext) -> Tensor:
    """Infer GatherBlockQuantized(data, indices, scales, zeros), where a byte may hold several numbers."""
    dims, indices = list(ctx.dims(0)), ctx.dims(1)
    axis = ctx.axis(ctx.attr("gather_axis", 0), len(dims))
    if ctx.tensor().dtype == TensorProto.UINT8:
        dims[-1] = dims[-1] * (8 // max(ctx.attr("bits", 4), 1))
    return ctx.like((*dims[:axis], *indices, *dims[axis + 1 :]), 2)


def gather_elements(ctx: InferenceContext) -> Tensor:
    """Return the dims of the indices, which are no larger than those of the data off the axis."""
    _require_inside(ctx, "'indices' shape")
    return ctx.like(ctx.dims(1))


def _require_inside(ctx: InferenceContext, says: str) -> None:
    dims = ctx.dims(0)
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    for index, (largest, dim) in enumerate(zip(dims, ctx.dims(1), strict=False)):
        if index != axis:
            ctx.require_at_most(dim, largest, "indices of a larger dim than the data", says)


def gather_nd(ctx: InferenceContext) -> Tensor:
    """Return the batch dims, the dims of the indices but the last, and the dims of the data that they do not index."""
    dims, indices, batch = ctx.dims(0), ctx.dims(1), ctx.attr("batch_dims", 0)
    depth = indices[-1].constant if indices else None
    if depth is None:
        raise UnknownError(f"the last dim of {ctx.name(1)} is not a number")
    if depth + batch > len(dims):
        raise ctx.impossible(f"{depth} indices into a tensor of rank {len(dims)}", "the indices do not fit the rank")
    return ctx.like((*indices[:-1], *dims[batch + depth :]))


def infer_scatter(ctx: InferenceContext) -> Tensor:
    """Return the dims of the data, and its elements where the indices are numbers.

    Updates of a ScatterND have the dims of the indices less the last, then the data's that it does not index.
    """
    tensor = ctx.tensor()
    with suppress(UnknownError):
        if ctx.node.op_type == "ScatterElements":
            _require_inside(ctx, "is greater than input dim")
        elif (indices := ctx.dims(1)) and (depth := indices[-1].constant) is not None:
            what, says = "the dims of updates and of what they replace", "updates tensor should have shape"
            for left, right in zip(ctx.dims(2), (*indices[:-1], *ctx.dims(0)[depth:]), strict=False):
                ctx.same(left, right, what, says)
    array = tensor.data if tensor.may_have_data else None
    data = None
    if array is not None and ctx.node.op_type == "ScatterND" and ctx.attr("reduction", "none") == "none":
        data = _scatter_elements(ctx, array)
    return Tensor(tensor.dtype, tensor.dims, data, tensor.reason)


def _scatter_elements(ctx: InferenceContext, array: Array) -> Array | None:
    indices, updates = ctx.data(1), ctx.data(2)
    if indices is None or updates is None or not indices.ndim or not (depth := indices.shape[-1]):
        return None
    result: Array = array.copy()
    rows = indices.reshape(-1, depth).tolist()
    for row, part in zip(rows, updates.reshape((len(rows), *array.shape[depth:])), strict=True):
        place = tuple(element_number(element) for element in row)
        if any(n is None for n in place):
            return None
        result[place] = part
    return result


# Operators with indices into one axis, and what onnxruntime says of those that are outside
ONE_AXIS = {"Gather": "indices element out of data bounds", "GatherElements": "GatherElements op"}


def indices_inside(view: NodeView, ranges: ValueRangeAnalysis) -> Iterator[Precondition]:
    """Yield the preconditions that the indices of a Gather, GatherElements or GatherND are inside of the axes."""
    dims, count = view.dims(0), dims_product(view.dims(1))
    if view.node.operator in ONE_AXIS:
        sizes, says = [dims[view.axis(view.attr("axis", 0), len(dims))]], ONE_AXIS[view.node.operator]
        columns: Sequence[Value | None] = view.node.inputs[1:2]
    elif view.node.is_op("GatherND") and not view.attr("batch_dims", 0):
        sizes, says, columns = list(dims), "invalid index found", _index_columns(view.node)
    else:
        return
    for column, size in zip(columns, sizes, strict=False):
        ends = ranges.range(column) if is_known(size) else None
        if ends is None or (upper(ends.high) < lower(size) and lower(ends.low) >= -lower(size)):
            continue
        if lower(size - 1 - ends.high) < 0 or lower(ends.low + size) < 0:
            yield Index(ends.low, ends.high, size, count if is_known(count) else const(1), says)


def _index_columns(node: Node) -> Sequence[Value | None]:
    """Return the parts of indices that are concatenated of one part for each axis."""
    indices = node.input(1)
    producer = unwrap_value(indices, ("Cast", "Identity")).producer if indices is not None else None
    if producer is None or producer.attr("axis", int) != -1:
        return ()
    parts = [value.producer if value is not None else None for value in joined_parts(producer)]
    return joined_parts(producer) if all(part is not None and part.is_op("Unsqueeze") for part in parts) else ()


RULES: Mapping[str, Rule] = {
    "Slice": slice_,
    "Gather": infer_gather,
    "com.microsoft.GatherBlockQuantized": gather_blocks,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "com.microsoft.GatherND": gather_nd,
    "ScatterND": infer_scatter,
    "ScatterElements": infer_scatter,
}

MAX_BOUND = 1 << 40  # exporters write INT64_MAX for "to the end"


@dataclass(frozen=True)
class Sliced(Precondition):
    """Bounds along one axis count from the front, as meant. Below 0 they would count from the end.

    Where both are computed, and lie before and behind all that there is, less is left than is meant.
    """

    start: Expr
    end: Expr
    dims: tuple[Expr, ...]
    axis: int

    @property
    def told(self) -> tuple[Expr, ...]:
        return self.start, self.end

    @property
    def is_guess(self) -> bool:
        return True

    def outcome(self, values: Sequence[Ints]) -> Ints:
        start, end, size = values[0], values[1], values[2 + self.axis]
        below = ((self.start.constant is None) & (start < 0)) | ((self.end.constant is None) & (end < 0))
        meant = np.maximum(np.clip(end, 0, size) - np.clip(start, 0, size), 0)
        actual = np.maximum(_from_front(end, size) - _from_front(start, size), 0)
        beyond = (self.start.constant is None) & (self.end.constant is None) & (start < 0) & (end > size)
        return np.where((below & (meant != actual)) | beyond, WRONG, FINE)

    def violation(self, values: Sequence[int]) -> Violation:
        start, end, size = values[0], values[1], values[2 + self.axis]
        side, value = ("start", start) if start < 0 and self.start.constant is None else ("end", end)
        expr = self.start if side == "start" else self.end
        bounds = [int(_from_front(np.int64(bound), np.int64(size))) for bound in (start, end)]
        shape = list(values[2:])
        shape[self.axis] = max(bounds[1] - bounds[0], 0)
        rest = f"{shape[self.axis]} of {size} are left"
        why = "it counts from the end" if -size <= value else "it lies before all that there is"
        return Violation(f"{side} {name_value(expr, value)}: {why}, {rest}", "", tuple(shape))


def _from_front(bound: Ints, size: Ints) -> Ints:
    bound = np.clip(bound, -MAX_BOUND, MAX_BOUND)
    return np.clip(np.where(bound < 0, bound + size, bound), 0, size)
