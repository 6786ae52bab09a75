"""If, Loop and Scan, and operators on sequences of tensors.

Bodies are inferred in place, with the known tensors of the scopes around them. A Loop's or Scan's state starts with the
dims that it is given; a dim that an iteration changes is unknown, and the body is inferred again with that. Values of
states are not followed. The tensors of a sequence are followed one by one where their number is known, else by their
common facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import TensorProto

from graphkit.dtypes import inline_array
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.view import Scope, Value, unwrap_value
from graphkit.ops.data_movement import infer_concat
from graphkit.ops.element_values import compare_elements
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import (
    Common,
    Dims,
    Tensor,
    TensorSequence,
    array_of,
    common_facts,
    is_same_elements,
    join_sequences,
    plain_element,
    scalar_integer,
    unknown_tensor,
)
from graphkit.symbolic.algebra import ceil_div, lower, maximum, minimum
from graphkit.symbolic.expr import Expr, const

NO_ITERATION = "the loop may have no iteration, and the body does not declare it as this number"
MAX_ROUNDS = 4  # each round makes at least one more dim unknown
ONE = Expr.of(1)
MAX_DEPTH = 3  # loops in loops that are inferred more than once


def if_(ctx: InferenceContext) -> list[Tensor]:
    """Return the outputs of the branch that the condition chooses, or the facts that both branches agree on."""
    condition = ctx.data(0)
    is_false = None if condition is None or condition.size != 1 else compare_elements("==", condition.ravel()[0], 0)
    then = _infer_branch(ctx, "then_branch", None if is_false is None else not is_false)
    otherwise = _infer_branch(ctx, "else_branch", None if is_false is None else bool(is_false))
    if is_false is not None:
        return otherwise if is_false else then
    reasons_of = {finding.body: finding.message for finding in reversed(ctx.notes.findings)}  # the first one counts
    reasons = {name: reasons_of.get(body, "") for name, body in ctx.node.bodies.items()}
    if all(reasons.values()):
        told = "; ".join(f"{reason} in {name}" for name, reason in reasons.items())
        ctx.note_fault(f"neither branch can run: {told}")
    return [_merge_branches(ctx, *pair) for pair in zip(then, otherwise, strict=False)]


def _infer_branch(ctx: InferenceContext, name: str, is_chosen: bool | None) -> list[Tensor]:
    """Infer a branch, of which it may be known that the condition chooses it, or the other one."""
    body = ctx.node.bodies.get(name)
    if body is None:
        raise UnknownError(f"{name} is missing")
    mark = ctx.notes.mark()
    results = ctx.engine.run_body(body, (), is_certain=is_chosen is True)
    if is_chosen is False:  # its findings never happen
        ctx.notes.rewind(mark)
    return results


def _merge_branches(ctx: InferenceContext, first: Tensor, second: Tensor) -> Tensor:
    if isinstance(first, TensorSequence) and isinstance(second, TensorSequence):
        return join_sequences(first, second)
    dtype = first.dtype or second.dtype
    if first.dims is None or second.dims is None:
        return unknown_tensor(first.reason or second.reason, dtype)
    if len(first.dims) != len(second.dims):
        return unknown_tensor(f"then_branch gives rank {len(first.dims)}, else_branch rank {len(second.dims)}", dtype)
    pairs = zip(first.dims, second.dims, strict=True)
    where = f"it depends on {ctx.name(0)}: then_branch gives"
    dims = [left if left == right else ctx.new_symbol(f"{where} {left}, else_branch {right}") for left, right in pairs]
    return Tensor(dtype, dims, first.data if is_same_elements(first, second) else None)


def infer_loop(ctx: InferenceContext) -> list[Tensor]:
    """Return the states after the last iteration, then the outputs of all iterations, stacked."""
    body = ctx.node.bodies.get("body")
    if body is None:
        raise UnknownError("the body is missing")
    _check_inputs(body)
    counter, condition = _loop_counter(body, 0, TensorProto.INT64), _loop_counter(body, 1, TensorProto.BOOL)
    states = [_plain_state(ctx.tensor(index)) for index in range(2, len(ctx.inputs))]
    place = slice(1, 1 + len(states))
    limit, start = (ctx.tensor(index) if ctx.has(index) else None for index in (0, 1))
    runs = has_first_iteration(limit, start)
    results, states = _settle_states(ctx, body, states, lambda now: [counter, condition, *now], place, runs=runs)
    known = count_iterations(limit, start, body)
    times = ctx.new_symbol("it is the number of iterations") if known is None else known
    if times == 0:
        states = [ctx.tensor(index) for index in range(2, len(ctx.inputs))]
    outputs = zip(body.outputs[1 + len(states) :], results[1 + len(states) :], strict=True)
    each = [tensor if runs else _without_iterations(ctx, value, tensor) for value, tensor in outputs]
    return [*states, *(_stack_outputs(times, 0, tensor) for tensor in each)]


def _loop_counter(body: Scope, index: int, dtype: int) -> Tensor:
    """Return the number of an iteration, or whether it runs: a list of one where the body declares that."""
    dims = declared_dims(body.inputs[index]) if index < len(body.inputs) else None
    return Tensor(dtype, (ONE,) if dims is not None and len(dims) == 1 else ())


def _check_inputs(body: Scope) -> None:
    """Check that no input of a body has a default, which the node does not pass."""
    if any(value.tensor is not None or value.sparse is not None for value in body.inputs):
        raise UnknownError("an input of the body has a default")


def _without_iterations(ctx: InferenceContext, value: Value, tensor: Tensor) -> Tensor:
    """Return an output of a body that may never run: then it has its declared rank, and 0 where that has no number."""
    declared = declared_dims(value)
    if tensor.dims is None or declared is None or len(declared) != len(tensor.dims):
        return unknown_tensor(NO_ITERATION, tensor.dtype)
    pairs = zip(tensor.dims, declared, strict=True)
    return Tensor(tensor.dtype, [dim if dim == size else ctx.new_symbol(NO_ITERATION) for dim, size in pairs])


def _plain_state(tensor: Tensor) -> Tensor:
    """Return a state of which only dtype and dims are followed, and the common facts of the tensors of a sequence."""
    if isinstance(tensor, TensorSequence):
        return TensorSequence(None, tensor.common, tensor.length)
    return Tensor(tensor.dtype, tensor.dims, None, tensor.reason or "it is the state of a loop")


Inputs = Callable[[list[Tensor]], list[Tensor]]


def _settle_states(
    ctx: InferenceContext, body: Scope, states: list[Tensor], inputs: Inputs, place: slice, *, runs: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return a body's results, and states whose dims an iteration does not change.

    `inputs` makes the body's inputs of states, `place` says where states are among its outputs, and `runs` whether
    there is at least one iteration.
    """
    rounds = 1 if body.depth > MAX_DEPTH else MAX_ROUNDS
    if rounds == 1:
        states = [unknown_tensor("it is the state of a loop in loops", state.dtype) for state in states]
    loose: set[Expr] = set()  # unknowns that stand for any number, another one at each iteration
    mark = ctx.notes.mark()
    for turn in range(rounds + 1):
        ctx.notes.rewind(mark)  # notes about narrower states do not hold
        results = ctx.engine.run_body(body, inputs(states), is_certain=runs)
        after = [_widen_state(ctx, old, new, loose) for old, new in zip(states, results[place], strict=False)]
        if len(after) < len(states):
            raise UnknownError("the body has fewer outputs than states")
        if all(
            old.is_like(new) if isinstance(old, TensorSequence) else old.dims == new.dims
            for old, new in zip(states, after, strict=True)
        ):
            break
        states = after if turn < rounds - 1 else [unknown_tensor("an iteration changes it", s.dtype) for s in states]
    return results, [_state_after_loop(ctx, state, loose) for state in states]


def _widen_state(ctx: InferenceContext, old: Tensor, new: Tensor, loose: set[Expr]) -> Tensor:
    if isinstance(old, TensorSequence) and isinstance(new, TensorSequence):
        return join_sequences(old, new)
    dtype = old.dtype or new.dtype
    if old.dims is None or new.dims is None or len(old.dims) != len(new.dims):
        return unknown_tensor(old.reason or new.reason or "an iteration changes its rank", dtype)
    dims = []
    for left, right in zip(old.dims, new.dims, strict=True):
        if left != right and left not in loose:
            left = ctx.new_symbol(f"an iteration makes {right} of {left}")
            loose.add(left)
        dims.append(left)
    return Tensor(dtype, dims, None, "it is the state of a loop")


def _state_after_loop(ctx: InferenceContext, state: Tensor, loose: set[Expr]) -> Tensor:
    """Return a state after the loop, whose unknown dims are others than those inside."""
    if state.dims is None:
        return state
    dims = [ctx.new_symbol("a loop changes it") if dim in loose else dim for dim in state.dims]
    return Tensor(state.dtype, dims, None, state.reason)


def has_first_iteration(limit: Tensor | None, start: Tensor | None) -> bool:
    """Whether a Loop with this limit and first condition has a first iteration at all legal dims; None if left out."""
    times, is_on = scalar_integer(limit), start is None or scalar_integer(start) == 1
    return is_on and (limit is None or (times is not None and lower(times) >= 1))


def count_iterations(limit: Tensor | None, start: Tensor | None, body: Scope) -> Expr | None:
    """Return how often a Loop with this limit and first condition runs its body, None where that is not known."""
    times, goes_on = scalar_integer(limit), _goes_on(body)
    if (start is not None and scalar_integer(start) == 0) or times == 0:
        return Expr.of(0)
    if (start is not None and scalar_integer(start) != 1) or goes_on is None or (times is None and limit is not None):
        return None
    if times is None:
        return None if goes_on else ONE
    return maximum(0, times if goes_on else minimum(1, times))


def _goes_on(body: Scope) -> bool | None:
    """Whether a body's condition is its own input, or a constant True; None where that depends on data."""
    if not body.outputs or len(body.inputs) < 2:
        return None
    value = unwrap_value(body.outputs[0], ("Identity",))
    array = inline_array(value.constant)
    return (value is body.inputs[1] or None) if array is None or not array.size else bool(array.all())


def _stack_outputs(times: Expr, axis: int, tensor: Tensor) -> Tensor:
    if tensor.dims is None:
        return unknown_tensor(tensor.reason, tensor.dtype)
    place = axis % (len(tensor.dims) + 1)
    return Tensor(tensor.dtype, (*tensor.dims[:place], times, *tensor.dims[place:]))


def infer_scan(ctx: InferenceContext) -> list[Tensor]:
    """Return the states after the last step, then the outputs of all steps, stacked; for opset 9 and newer."""
    body, count = ctx.node.bodies.get("body"), ctx.attr("num_scan_inputs", 0)
    if body is None or ctx.opset < 9 or not 0 < count <= len(ctx.inputs):
        raise UnknownError("a Scan without body, or of opset 8")
    _check_inputs(body)
    split = len(ctx.inputs) - count
    axes = ctx.attr("scan_input_axes", ()) or (0,) * count
    states = [_plain_state(ctx.tensor(index)) for index in range(split)]
    steps: list[Tensor] = []
    times: Expr | None = None
    for index, axis in enumerate(axes, split):
        dims = ctx.dims(index)
        place = ctx.axis(axis, len(dims))
        times = dims[place] if times is None else ctx.same(times, dims[place], "the lengths of scanned inputs")
        steps.append(Tensor(ctx.tensor(index).dtype, (*dims[:place], *dims[place + 1 :])))
    runs = times is not None and lower(times) >= 1
    results, states = _settle_states(ctx, body, states, lambda now: [*now, *steps], slice(0, split), runs=runs)
    outputs = ctx.attr("scan_output_axes", ()) or (0,) * (len(results) - split)
    length = times if times is not None else ctx.new_symbol("it is the number of steps")
    return [*states, *(_stack_outputs(length, axis, t) for axis, t in zip(outputs, results[split:], strict=False))]


MAX_ITEMS = 64  # tensors of a longer sequence are not followed one by one


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
    data = ctx.data(1)
    if ctx.has(1) and len(ctx.dims(1)) == 1:
        (count,) = ctx.dims(1)
        if data is not None and (count.constant or 0) <= MAX_ITEMS:
            return TensorSequence.of(tuple(_split_part(tensor, axis, size, False) for size in ctx.exprs(1)))
        return TensorSequence(None, Common(tensor.dtype, (*dims[:axis], None, *dims[axis + 1 :])), count)
    step = const(1)
    if ctx.has(1):
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


def _split_part(tensor: Tensor, axis: int, size: Expr, is_dropped: bool) -> Tensor:
    dims: Dims = tensor.dims or ()
    return Tensor(tensor.dtype, (*dims[:axis], *(() if is_dropped else (size,)), *dims[axis + 1 :]))


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
    shared = sequence.common
    if shared is None or shared.dims is None:
        reason = "nothing is known to be in the sequence" if shared is None else "the tensors of the sequence differ"
        return unknown_tensor(reason, 0 if shared is None else shared.dtype)
    differs = "the tensors of the sequence differ in it"
    return Tensor(shared.dtype, [ctx.new_symbol(differs) if dim is None else dim for dim in shared.dims])


RULES: Mapping[str, Rule] = {
    "If": if_,
    "Loop": infer_loop,
    "Scan": infer_scan,
    "Identity": lambda ctx: ctx.tensor(),  # which may be a sequence, and stays unread until something asks for it
    "SequenceConstruct": lambda ctx: TensorSequence.of(tuple(map(ctx.tensor, range(len(ctx.inputs))))),
    "SequenceEmpty": lambda _: TensorSequence.of(()),
    "SequenceInsert": infer_insert,
    "SequenceErase": infer_erase,
    "SequenceAt": infer_at,
    "SequenceLength": infer_length,
    "ConcatFromSequence": concat_from,
    "SplitToSequence": split_to,
}
