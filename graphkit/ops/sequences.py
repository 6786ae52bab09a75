"""Operators on sequences of tensors: tensors one by one where their number is known, else their common facts."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from graphkit.ops.data_movement import infer_concat
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import (
    Common,
    Dims,
    Tensor,
    TensorSequence,
    array_of,
    common_facts,
    plain_element,
    unknown_tensor,
)
from graphkit.symbolic.algebra import ceil_div
from graphkit.symbolic.expr import Expr, const

__all__ = ["RULES"]

MAX_ITEMS = 64  # tensors of a longer sequence are not followed one by one


def infer_construct(ctx: InferenceContext) -> Tensor:
    """Infer SequenceConstruct: a sequence of the inputs."""
    return TensorSequence.of(tuple(ctx.tensor(index) for index in range(len(ctx.inputs))))


def infer_empty(ctx: InferenceContext) -> Tensor:  # noqa: ARG001 - one signature for all
    """Infer SequenceEmpty."""
    return TensorSequence.of(())


def infer_insert(ctx: InferenceContext) -> Tensor:
    """Infer SequenceInsert(sequence, tensor, position), which inserts at the end where no position is given."""
    sequence, new = _read_sequence(ctx), ctx.tensor(1)
    place = _read_position(ctx, 2, sequence) if ctx.has(2) else len(sequence.items or ())
    if sequence.items is not None and len(sequence.items) < MAX_ITEMS and place is not None:
        return TensorSequence.of((*sequence.items[:place], new, *sequence.items[place:]))
    count = None if sequence.length is None else sequence.length + 1
    return TensorSequence(None, common_facts(sequence.common, Common(new.dtype, new.dims)), count)


def infer_erase(ctx: InferenceContext) -> Tensor:
    """Infer SequenceErase(sequence, position), which erases the last tensor where no position is given."""
    sequence = _read_sequence(ctx)
    if sequence.length == 0:
        raise UnknownError("there is nothing to erase in an empty sequence")
    place = _read_position(ctx, 1, sequence) if ctx.has(1) else len(sequence.items or ()) - 1
    if sequence.items and place is not None and place < len(sequence.items):
        return TensorSequence.of((*sequence.items[:place], *sequence.items[place + 1 :]))
    return TensorSequence(None, sequence.common, None if sequence.length is None else sequence.length - 1)


def infer_at(ctx: InferenceContext) -> Tensor:
    """Infer SequenceAt(sequence, position)."""
    sequence, place = _read_sequence(ctx), None
    if sequence.items and (place := _read_position(ctx, 1, sequence)) is not None and place < len(sequence.items):
        return sequence.items[place]
    return _any_tensor(ctx, sequence)


def infer_length(ctx: InferenceContext) -> Tensor:
    """Infer SequenceLength."""
    count = _read_sequence(ctx).length
    value = ctx.new_symbol("it is the length of a sequence") if count is None else count
    return Tensor(TensorProto.INT64, (), array_of([plain_element(value)], ()))


def concat_from(ctx: InferenceContext) -> Tensor:
    """Infer ConcatFromSequence, which joins along an axis, or stacks along a new one."""
    sequence, is_new = _read_sequence(ctx), bool(ctx.attr("new_axis", 0))
    if sequence.items and not is_new:
        return infer_concat(InferenceContext(ctx.node, sequence.items, ctx.attributes, ctx.engine))
    member = _any_tensor(ctx, sequence)
    if member.dims is None:
        return unknown_tensor(member.reason, member.dtype)
    axis = ctx.axis(ctx.attr("axis", 0), len(member.dims) + is_new)
    if not is_new:
        total = ctx.new_symbol("it is the sum of the lengths of a sequence's tensors")
        return Tensor(member.dtype, (*member.dims[:axis], total, *member.dims[axis + 1 :]))
    count = sequence.length if sequence.length is not None else ctx.new_symbol("it is the length of a sequence")
    return Tensor(member.dtype, (*member.dims[:axis], count, *member.dims[axis:]))


def split_to(ctx: InferenceContext) -> Tensor:
    """Infer SplitToSequence(input, split): parts of the sizes that are given, of one size, or of 1."""
    tensor, dims = ctx.tensor(), ctx.dims()
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    if ctx.has(1) and len(ctx.dims(1)) == 1:
        return _split_parts(ctx, tensor, axis)
    step = const(1)
    if ctx.has(1):
        data = ctx.data(1)
        step = ctx.unknown_value(1, 1) if data is None else Expr.of(data.ravel()[0])
    # ONNX says so where no size is given; onnxruntime drops the axis also where one is
    is_dropped = not ctx.attr("keepdims", 1)
    if is_dropped and step != 1:
        raise UnknownError("its parts lose an axis that is not known to be 1")
    size, width = dims[axis].constant, step.constant
    if size is not None and width is not None and width > 0 and -(-size // width) <= MAX_ITEMS:
        widths = [min(width, size - start) for start in range(0, size, width)]
        return TensorSequence.of(tuple(_split_part(tensor, axis, const(n), is_dropped) for n in widths))
    part_dims = () if is_dropped else (const(1) if step == 1 else None,)
    parts = (*dims[:axis], *part_dims, *dims[axis + 1 :])
    return TensorSequence(None, Common(tensor.dtype, parts), ceil_div(dims[axis], step))


def _split_parts(ctx: InferenceContext, tensor: Tensor, axis: int) -> Tensor:
    """Return the parts of the sizes that the second input lists."""
    dims, count = ctx.dims(), ctx.dims(1)[0]
    if ctx.data(1) is not None and (count.constant or 0) <= MAX_ITEMS:
        return TensorSequence.of(tuple(_split_part(tensor, axis, size, False) for size in ctx.exprs(1)))
    return TensorSequence(None, Common(tensor.dtype, (*dims[:axis], None, *dims[axis + 1 :])), count)


def _split_part(tensor: Tensor, axis: int, size: Expr, is_dropped: bool) -> Tensor:
    dims: Dims = tensor.dims or ()
    return Tensor(tensor.dtype, (*dims[:axis], *(() if is_dropped else (size,)), *dims[axis + 1 :]))


def infer_identity(ctx: InferenceContext) -> Tensor:
    """Return the input, which may be a sequence; its elements stay unread until something asks for them."""
    return ctx.tensor()


def _read_sequence(ctx: InferenceContext) -> TensorSequence:
    tensor = ctx.tensor()
    if not isinstance(tensor, TensorSequence):
        raise UnknownError(tensor.reason or f"{ctx.name(0)} is not a sequence")
    return tensor


def _read_position(ctx: InferenceContext, index: int, sequence: TensorSequence) -> int | None:
    """Return a position counted from the front, None where it is not known or there is no such one."""
    data, items = ctx.data(index), sequence.items or ()
    place = None if data is None or data.size != 1 else Expr.of(data.ravel()[0]).constant
    if place is None or not -len(items) <= place <= len(items):
        return None
    return place + len(items) if place < 0 else place


def _any_tensor(ctx: InferenceContext, sequence: TensorSequence) -> Tensor:
    """Return the facts that hold for any tensor of a sequence."""
    shared = sequence.common
    if shared is None or shared.dims is None:
        reason = "nothing is known to be in the sequence" if shared is None else "the tensors of the sequence differ"
        return unknown_tensor(reason, 0 if shared is None else shared.dtype)
    differs = "the tensors of the sequence differ in it"
    return Tensor(shared.dtype, [ctx.new_symbol(differs) if dim is None else dim for dim in shared.dims])


RULES: Mapping[str, Rule] = {
    "Identity": infer_identity,
    "SequenceConstruct": infer_construct,
    "SequenceEmpty": infer_empty,
    "SequenceInsert": infer_insert,
    "SequenceErase": infer_erase,
    "SequenceAt": infer_at,
    "SequenceLength": infer_length,
    "ConcatFromSequence": concat_from,
    "SplitToSequence": split_to,
}
