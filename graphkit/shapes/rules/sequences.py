"""Operators on sequences of tensors: tensors one by one where their number is known, else their common facts."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.shapes.algebra import ceil_div
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.rule_context import InferenceContext, Rule, UnknownError
from graphkit.shapes.rules.data_movement import concat
from graphkit.shapes.rules.elementwise import unary
from graphkit.shapes.tensor import Common, Dims, Tensor, TensorSequence, array_of, plain, union, unknown

__all__ = ["RULES"]

MAX_ITEMS = 64  # tensors of a longer sequence are not followed one by one


def construct(ctx: InferenceContext) -> Tensor:
    """Infer SequenceConstruct: a sequence of the inputs."""
    return TensorSequence.of(tuple(ctx.tensor(index) for index in range(len(ctx.inputs))))


def empty(ctx: InferenceContext) -> Tensor:  # noqa: ARG001 - one signature for all
    """Infer SequenceEmpty."""
    return TensorSequence.of(())


def insert(ctx: InferenceContext) -> Tensor:
    """Infer SequenceInsert(sequence, tensor, position), which inserts at the end where no position is given."""
    found, new = _sequence(ctx), ctx.tensor(1)
    place = _position(ctx, 2, found) if ctx.has(2) else len(found.items or ())
    if found.items is not None and len(found.items) < MAX_ITEMS and place is not None:
        return TensorSequence.of((*found.items[:place], new, *found.items[place:]))
    count = None if found.length is None else found.length + 1
    return TensorSequence(None, union(found.common, Common(new.dtype, new.dims)), count)


def erase(ctx: InferenceContext) -> Tensor:
    """Infer SequenceErase(sequence, position), which erases the last tensor where no position is given."""
    found = _sequence(ctx)
    if found.length == 0:
        raise UnknownError("there is nothing to erase in an empty sequence")
    place = _position(ctx, 1, found) if ctx.has(1) else len(found.items or ()) - 1
    if found.items and place is not None and place < len(found.items):
        return TensorSequence.of((*found.items[:place], *found.items[place + 1 :]))
    return TensorSequence(None, found.common, None if found.length is None else found.length - 1)


def at(ctx: InferenceContext) -> Tensor:
    """Infer SequenceAt(sequence, position)."""
    found, place = _sequence(ctx), None
    if found.items and (place := _position(ctx, 1, found)) is not None and place < len(found.items):
        return found.items[place]
    return _any(ctx, found)


def length(ctx: InferenceContext) -> Tensor:
    """Infer SequenceLength."""
    found = _sequence(ctx).length
    value = ctx.new_symbol("it is the length of a sequence") if found is None else found
    return Tensor(TensorProto.INT64, (), array_of([plain(value)], ()))


def concat_from(ctx: InferenceContext) -> Tensor:
    """Infer ConcatFromSequence, which joins along an axis, or stacks along a new one."""
    found, is_new = _sequence(ctx), bool(ctx.attr("new_axis", 0))
    if found.items and not is_new:
        return concat(InferenceContext(ctx.node, found.items, ctx.attributes, ctx.engine))
    one = _any(ctx, found)
    if one.dims is None:
        return unknown(one.reason, one.dtype)
    axis = ctx.axis(ctx.attr("axis", 0), len(one.dims) + is_new)
    if not is_new:
        total = ctx.new_symbol("it is the sum of the lengths of a sequence's tensors")
        return Tensor(one.dtype, (*one.dims[:axis], total, *one.dims[axis + 1 :]))
    count = found.length if found.length is not None else ctx.new_symbol("it is the length of a sequence")
    return Tensor(one.dtype, (*one.dims[:axis], count, *one.dims[axis:]))


def split_to(ctx: InferenceContext) -> Tensor:
    """Infer SplitToSequence(input, split): parts of the sizes that are given, of one size, or of 1."""
    found, dims = ctx.tensor(), ctx.dims()
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    if ctx.has(1) and len(ctx.dims(1)) == 1:
        return _parts(ctx, found, axis)
    step = const(1)
    if ctx.has(1):
        data = ctx.data(1)
        step = ctx.unknown_value(1, 1) if data is None else Expr.of(data.ravel()[0])
    is_dropped = not ctx.has(1) and not ctx.attr("keepdims", 1)
    size, width = dims[axis].constant, step.constant
    if size is not None and width is not None and width > 0 and -(-size // width) <= MAX_ITEMS:
        widths = [min(width, size - start) for start in range(0, size, width)]
        return TensorSequence.of(tuple(_part(found, axis, const(n), is_dropped) for n in widths))
    kept = () if is_dropped else (const(1) if step == 1 else None,)
    parts = (*dims[:axis], *kept, *dims[axis + 1 :])
    return TensorSequence(None, Common(found.dtype, parts), ceil_div(dims[axis], step))


def _parts(ctx: InferenceContext, found: Tensor, axis: int) -> Tensor:
    """Return the parts of the sizes that the second input lists."""
    dims, count = ctx.dims(), ctx.dims(1)[0]
    if ctx.data(1) is not None and (count.constant or 0) <= MAX_ITEMS:
        return TensorSequence.of(tuple(_part(found, axis, size, False) for size in ctx.exprs(1)))
    return TensorSequence(None, Common(found.dtype, (*dims[:axis], None, *dims[axis + 1 :])), count)


def _part(found: Tensor, axis: int, size: Expr, is_dropped: bool) -> Tensor:
    dims: Dims = found.dims or ()
    return Tensor(found.dtype, (*dims[:axis], *(() if is_dropped else (size,)), *dims[axis + 1 :]))


def identity(ctx: InferenceContext) -> Tensor:
    """Return the input, which may be a sequence."""
    found = ctx.tensor()
    return found if isinstance(found, TensorSequence) else unary(ctx)


def _sequence(ctx: InferenceContext) -> TensorSequence:
    found = ctx.tensor()
    if not isinstance(found, TensorSequence):
        raise UnknownError(found.reason or f"{ctx.name(0)} is not a sequence")
    return found


def _position(ctx: InferenceContext, index: int, found: TensorSequence) -> int | None:
    """Return a position counted from the front, None where it is not known or there is no such one."""
    data, items = ctx.data(index), found.items or ()
    place = None if data is None or data.size != 1 else Expr.of(data.ravel()[0]).constant
    if place is None or not -len(items) <= place <= len(items):
        return None
    return place + len(items) if place < 0 else place


def _any(ctx: InferenceContext, found: TensorSequence) -> Tensor:
    """Return the facts that hold for any tensor of a sequence."""
    shared = found.common
    if shared is None or shared.dims is None:
        reason = "nothing is known to be in the sequence" if shared is None else "the tensors of the sequence differ"
        return unknown(reason, 0 if shared is None else shared.dtype)
    differs = "the tensors of the sequence differ in it"
    return Tensor(shared.dtype, [ctx.new_symbol(differs) if dim is None else dim for dim in shared.dims])


RULES: Mapping[str, Rule] = {
    "Identity": identity,
    "SequenceConstruct": construct,
    "SequenceEmpty": empty,
    "SequenceInsert": insert,
    "SequenceErase": erase,
    "SequenceAt": at,
    "SequenceLength": length,
    "ConcatFromSequence": concat_from,
    "SplitToSequence": split_to,
}
