"""The shape rules of all operators, by operator (with its domain unless that is the default one), and new ones.

What an operator needs of the dims of its parameters, beside its rule, is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TypeVar

import numpy as np
from onnx import TensorProto

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph import operator_traits
from graphkit.ops import (
    control_and_sequences,
    data_movement,
    elementwise_and_reduction,
    indexing,
    matmul_and_attention,
    spatial,
    tensor_creation,
)
from graphkit.ops.matmul_and_attention import recurrent_sizes
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import Dims, Tensor
from graphkit.symbolic.algebra import upper
from graphkit.symbolic.expr import TooComplexError, const

RULES: dict[str, Rule] = operator_traits.join_tables(
    control_and_sequences.RULES,
    data_movement.RULES,
    elementwise_and_reduction.RULES,
    indexing.RULES,
    matmul_and_attention.RULES,
    spatial.RULES,
    tensor_creation.RULES,
)

SIGNATURE = "a rule takes an InferenceContext and returns a Tensor, or a list with one for each output of its node"
Registered = TypeVar("Registered", bound=Rule)
_forget: list[Callable[[], None]] = []


def forget_on_registration(forget: Callable[[], None]) -> None:
    """Call a function whenever a rule is registered, because earlier results no longer hold."""
    _forget.append(forget)


def register_rule(op_type: str, domain: str = "", *, replace: bool = False) -> Callable[[Registered], Registered]:
    """Return a decorator that registers a function as the shape rule of an operator.

    The rule is called for each node of the operator. It reads dims, elements and attributes from its context, notes
    there the relations that must hold for the node to run, and raises `UnknownError` with a reason for unknown facts.

    Args:
        op_type: The operator, such as "CDist".
        domain: Its domain; "" is that of ONNX itself.
        replace: Whether the rule may replace another one, such as when a notebook's cell runs again.

    Raises:
        UsageError: The operator has a rule already, or the name is not text.

    Example:
        >>> from graphkit.shapes import InferenceContext, Tensor, register_rule
        >>> @register_rule("CDist", domain="com.mine")
        ... def pairwise_distances(ctx: InferenceContext) -> Tensor:
        ...     (rows, left), (columns, right) = ctx.dims(0), ctx.dims(1)
        ...     ctx.same(left, right, "the coordinates of both inputs")
        ...     return Tensor(ctx.tensor(0).dtype, (rows, columns))
    """
    if not isinstance(op_type, str) or not op_type:
        raise UsageError(f'{op_type!r:.80} is not an operator - write `@register_rule("CDist", domain="com.mine")`')
    operator = f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type

    def register(rule: Registered) -> Registered:
        if operator in RULES and not replace:
            raise UsageError(f"{operator} has a shape rule already - pass `replace=True` to put this one in its place")
        if not callable(rule):
            raise UsageError(f"the shape rule for {operator} is not a function - {SIGNATURE}")
        RULES[operator] = _check_rule(operator, rule)
        for forget in _forget:
            forget()
        return rule

    return register


def _check_rule(operator: str, rule: Rule) -> Rule:
    @wraps(rule)
    def checked_rule(ctx: InferenceContext) -> list[Tensor]:
        def fault(problem: str) -> ModelError:
            said, hint = f"the shape rule for {operator} {problem}", f"correct the rule: {SIGNATURE}"
            return ModelError(said, file=ctx.engine.model.file, node=ctx.node.path, hint=hint)

        try:
            results = rule(ctx)
        except (GraphkitError, TooComplexError, UnknownError):
            raise
        except Exception as error:  # the code of others may raise anything
            raise fault(f"raised {type(error).__name__}: {error!s:.300}") from error
        tensors = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(tensors) < len(ctx.node.outputs):
            raise fault(f"returned {len(tensors)} of {len(ctx.node.outputs)} outputs")
        for index, tensor in enumerate(tensors):
            if problem := _result_problem(tensor):
                raise fault(f"returned output {index} {problem}")
        return tensors

    return checked_rule


def _result_problem(tensor: object) -> str:
    """Return why an object cannot be a rule's description of an output, "" where it can."""
    if not isinstance(tensor, Tensor):
        return f"as {type(tensor).__name__}, not as a Tensor"
    if tensor.dtype not in TensorProto.DataType.values():
        return f"with the dtype {tensor.dtype!r:.80}, which is not a TensorProto.DataType"
    if tensor.dims is not None and any(upper(dim) < 0 for dim in tensor.dims):
        return f"with dims below 0: [{', '.join(map(str, tensor.dims))}]"
    data = tensor.data if tensor.may_have_data else None
    if data is not None and (not isinstance(data, np.ndarray) or data.dtype != object or data.shape != tensor.sizes()):
        return "with elements that are not an array of objects with its dims"
    return ""


# The dims that scales, biases and other parameters of an operator need beside its data, and axes that it has to have.
#
# They are stated for operators whose shape rule does not read these inputs. The messages are those of onnxruntime 1.32.

# An input, the dims that it needs, part of onnxruntime's message, and whether it may have ones or fewer axes instead
Need = tuple[int, Dims, str, bool]
NeedsOf = Callable[[InferenceContext], Iterable[Need]]


def require_parameter_dims(ctx: InferenceContext) -> None:
    """Note what a node needs of the dims of its parameters."""
    for index, needed, says, may_broadcast in NEEDS[ctx.node.operator](ctx):
        given = ctx.inputs[index].dims if ctx.has(index) else None  # type: ignore[union-attr]
        if given is None:
            continue
        excess, schema = len(given) - len(needed), operator_traits.schema_of(ctx.node)
        name = schema.inputs[index].name if schema is not None else f"input {index}"
        if excess > 0 and may_broadcast:
            needed = (const(1),) * excess + needed
        elif excess and not may_broadcast:
            ctx.note_fault(f"{name} of rank {len(given)}, not {len(needed)}")
            continue
        for has, needs in zip(given[::-1], needed[::-1], strict=False):
            if not may_broadcast or has.constant not in (None, 1):
                ctx.same(has, needs, f"a dim of {name} and what the input needs", says)


def _of_channels(ctx: InferenceContext) -> Iterator[Need]:
    if ctx.attr("spatial", 1):  # until opset 9, else statistics of each place
        for index in range(1, len(ctx.inputs)):
            yield index, (ctx.dims()[1],), "", False


def _of_groups(ctx: InferenceContext) -> Iterator[Need]:
    """Before opset 21 a scale and a bias for each group, then for each channel."""
    channels, groups = ctx.dims()[1], const(ctx.attr("num_groups", 0))
    ctx.quotient(channels, groups, "channels in groups", "")
    for index in (1, 2):
        yield index, (channels if ctx.opset >= 21 else groups,), "", False


def _of_convolution(bias: int, weight: int) -> NeedsOf:
    return lambda ctx: [(bias, ctx.dims(weight)[:1], "bias", False)]


def _of_transposed_convolution(ctx: InferenceContext) -> Iterator[Need]:
    kernel = ctx.dims(1)
    ctx.same(kernel[0], ctx.dims()[1], "channels of input and weight", "channel")
    yield 2, (kernel[1] * ctx.attr("group", 1),), "Bias", False


def _of_normalization(ctx: InferenceContext) -> Iterator[Need]:
    for index in (1, 2):
        yield index, ctx.dims(), "scale", True


def _of_skip_normalization(ctx: InferenceContext) -> Iterator[Need]:
    for index in range(2, len(ctx.inputs)):
        yield index, ctx.dims()[-1:], "", False


def _of_product(ctx: InferenceContext) -> Iterator[Need]:
    """Of a Gemm, whose third input broadcasts to the product."""
    rows, columns = ctx.dims(0)[ctx.attr("transA", 0) != 0], ctx.dims(1)[ctx.attr("transB", 0) == 0]
    yield 2, (rows, columns), "bias", True


def _of_quantization(ctx: InferenceContext) -> Iterator[Need]:
    """A scale for all, or for each place along the axis; a zero point for each scale."""
    scale, dims = ctx.dims(1), ctx.dims()
    is_single = scale in ((), (1,))
    if len(scale) == 1 and not is_single and not ctx.attr("block_size", 0):
        yield 1, (dims[ctx.axis(ctx.attr("axis", 1), len(dims))],), "scale", False
    yield 2, scale, "zero", is_single


def _of_limits(_: InferenceContext) -> Iterator[Need]:
    for index in (1, 2):
        yield index, (), "should be a scalar", True


def _of_recurrence(ctx: InferenceContext) -> Iterator[Need]:
    batch, directions, hidden = recurrent_sizes(ctx)
    gates = operator_traits.GATES[ctx.node.op_type] * hidden
    state = (batch, directions, hidden) if ctx.attr("layout", 0) else (directions, batch, hidden)
    weights = (directions, gates, ctx.dims()[2]), (directions, gates, hidden), (directions, 2 * gates)
    for index, needed in enumerate((*weights, (batch,), state, state, (directions, 3 * hidden)), 1):
        yield index, needed, "must have shape", False


def _of_sequences(ctx: InferenceContext) -> Iterator[Need]:
    batch, time = ctx.attr("batch_axis", 1), ctx.attr("time_axis", 0)
    if {batch, time} != {0, 1}:
        ctx.note_fault(f"the axes {batch} and {time}, where 0 and 1 may be")
    else:
        yield 1, (ctx.dims()[batch],), "sequence_lens shape must be", False


def _of_scattering(ctx: InferenceContext) -> Iterator[Need]:
    """Of a ScatterElements or a GatherElements, which has no updates."""
    if len(ctx.dims(1)) != len(ctx.dims()):
        ctx.note_fault(f"indices of rank {len(ctx.dims(1))} into a tensor of rank {len(ctx.dims())}")
    yield 2, ctx.dims(1), "Indices vs updates", False


def _of_one_axis(ctx: InferenceContext) -> Iterable[Need]:
    is_flat = ctx.node.operator in operator_traits.SOFTMAXES and ctx.opset < operator_traits.ONE_AXIS_SINCE
    ctx.axis(ctx.attr("axis", 1 if is_flat else -1), len(ctx.dims()))
    return ()


def _of_axis_input(ctx: InferenceContext) -> Iterable[Need]:
    for axis in ctx.numbers(1):
        ctx.axis(axis, len(ctx.dims()))
    return ()


def _of_matrices(ctx: InferenceContext) -> Iterable[Need]:
    """Of a Trilu, which takes a batch of them, and an EyeLike, which does not."""
    rank = len(ctx.dims())
    if rank < 2 or (rank > 2 and ctx.node.op_type == "EyeLike"):
        ctx.note_fault(f"a tensor of rank {rank}, where there has to be a matrix")
    return ()


NEEDS: Mapping[str, NeedsOf] = {
    **dict.fromkeys(operator_traits.operator_set("BatchNormalization InstanceNormalization"), _of_channels),
    "GroupNormalization": _of_groups,
    "Conv": _of_convolution(2, 1),
    "QLinearConv": _of_convolution(8, 3),
    "ConvTranspose": _of_transposed_convolution,
    **dict.fromkeys(operator_traits.NORMALIZATIONS, _of_normalization),
    **dict.fromkeys(operator_traits.SKIP_NORMALIZATIONS, _of_skip_normalization),
    "Gemm": _of_product,
    **dict.fromkeys(operator_traits.operator_set("QuantizeLinear DequantizeLinear"), _of_quantization),
    "Clip": _of_limits,
    **dict.fromkeys(operator_traits.GATES, _of_recurrence),
    "ReverseSequence": _of_sequences,
    **dict.fromkeys(operator_traits.operator_set("GatherElements ScatterElements"), _of_scattering),
    **dict.fromkeys(operator_traits.operator_set("LpNormalization") | operator_traits.SOFTMAXES, _of_one_axis),
    **dict.fromkeys(operator_traits.operator_set("CumSum CumProd"), _of_axis_input),
    **dict.fromkeys(operator_traits.operator_set("EyeLike Trilu"), _of_matrices),
}
