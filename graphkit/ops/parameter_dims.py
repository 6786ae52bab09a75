"""The dims that scales, biases and other parameters of an operator need beside its data, and axes that it has to have.

They are stated for operators whose shape rule does not read these inputs. The messages are those of onnxruntime 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from graphkit.graph.operator_traits import (
    GATES,
    NORMALIZATIONS,
    ONE_AXIS_SINCE,
    SKIP_NORMALIZATIONS,
    SOFTMAXES,
    operator_set,
    schema_of,
)
from graphkit.ops.matmul_and_attention import recurrent_sizes
from graphkit.ops.rule_context import InferenceContext
from graphkit.ops.tensor import Dims
from graphkit.symbolic.expr import const

# An input, the dims that it needs, part of onnxruntime's message, and whether it may have ones or fewer axes instead
Need = tuple[int, Dims, str, bool]
Rule = Callable[[InferenceContext], Iterable[Need]]


def require_parameter_dims(ctx: InferenceContext) -> None:
    """Note what a node needs of the dims of its parameters."""
    for index, needed, says, may_broadcast in NEEDS[ctx.node.operator](ctx):
        given = ctx.inputs[index].dims if ctx.has(index) else None  # type: ignore[union-attr]
        if given is None:
            continue
        excess, schema = len(given) - len(needed), schema_of(ctx.node)
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


def _of_convolution(bias: int, weight: int) -> Rule:
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
    gates = GATES[ctx.node.op_type] * hidden
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
    is_flat = ctx.node.operator in SOFTMAXES and ctx.opset < ONE_AXIS_SINCE
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


NEEDS: Mapping[str, Rule] = {
    **dict.fromkeys(operator_set("BatchNormalization InstanceNormalization"), _of_channels),
    "GroupNormalization": _of_groups,
    "Conv": _of_convolution(2, 1),
    "QLinearConv": _of_convolution(8, 3),
    "ConvTranspose": _of_transposed_convolution,
    **dict.fromkeys(NORMALIZATIONS, _of_normalization),
    **dict.fromkeys(SKIP_NORMALIZATIONS, _of_skip_normalization),
    "Gemm": _of_product,
    **dict.fromkeys(operator_set("QuantizeLinear DequantizeLinear"), _of_quantization),
    "Clip": _of_limits,
    **dict.fromkeys(GATES, _of_recurrence),
    "ReverseSequence": _of_sequences,
    **dict.fromkeys(operator_set("GatherElements ScatterElements"), _of_scattering),
    **dict.fromkeys(operator_set("LpNormalization") | SOFTMAXES, _of_one_axis),
    **dict.fromkeys(operator_set("CumSum CumProd"), _of_axis_input),
    **dict.fromkeys(operator_set("EyeLike Trilu"), _of_matrices),
}
