"""The dims that scales, biases and other parameters of an operator need beside its data, and axes that it has to have.

They are stated for operators whose shape rule does not read these inputs. The messages are those of onnxruntime 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphkit.graph.operator_traits import ONE_AXIS_SINCE, SOFTMAXES, operator_set, schema_of
from graphkit.ops.rule_context import InferenceContext
from graphkit.ops.tensor import Dims
from graphkit.symbolic.expr import const

# An input, the dims that it needs, part of onnxruntime's message, and whether it may have ones or fewer axes instead
Need = tuple[int, Dims, str, bool]
GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}


def require_parameter_dims(ctx: InferenceContext) -> None:
    """Note what a node needs of the dims of its parameters."""
    for index, needed, says, may_broadcast in NEEDS[ctx.node.operator](ctx):
        given = ctx.inputs[index].dims if ctx.has(index) else None  # type: ignore[union-attr]
        if given is None:
            continue
        excess, name = len(given) - len(needed), _name_input(ctx, index)
        if excess > 0 and may_broadcast:
            needed = (const(1),) * excess + needed
        elif excess and not may_broadcast:
            ctx.note_fault(f"{name} of rank {len(given)}, not {len(needed)}")
            continue
        for has, needs in zip(given[::-1], needed[::-1], strict=False):
            if not may_broadcast or has.constant not in (None, 1):
                ctx.same(has, needs, f"a dim of {name} and what the input needs", says)


def _name_input(ctx: InferenceContext, index: int) -> str:
    schema = schema_of(ctx.node)
    return schema.inputs[index].name if schema is not None else f"input {index}"


def _exactly(says: str, *needs: tuple[int, Dims]) -> Iterator[Need]:
    return ((index, dims, says, False) for index, dims in needs)


def _of_channels(ctx: InferenceContext) -> Iterator[Need]:
    return _exactly("", *((index, (ctx.dims()[1],)) for index in range(1, len(ctx.inputs))))


def _of_groups(ctx: InferenceContext) -> Iterator[Need]:
    """Before opset 21 a scale and a bias for each group, then for each channel."""
    size = ctx.dims()[1] if ctx.opset >= 21 else const(ctx.attr("num_groups", 0))
    ctx.quotient(ctx.dims()[1], const(ctx.attr("num_groups", 0)), "channels in groups", "")
    return _exactly("", (1, (size,)), (2, (size,)))


def _of_convolution(bias: int, weight: int) -> Callable[[InferenceContext], Iterator[Need]]:
    return lambda ctx: _exactly("bias", (bias, ctx.dims(weight)[:1]))


def _of_transposed_convolution(ctx: InferenceContext) -> Iterator[Need]:
    kernel = ctx.dims(1)
    ctx.same(kernel[0], ctx.dims()[1], "channels of input and weight", "channel")
    return _exactly("Bias", (2, (kernel[1] * ctx.attr("group", 1),)))


def _of_normalization(ctx: InferenceContext) -> Iterator[Need]:
    return iter([(1, ctx.dims(), "scale", True), (2, ctx.dims(), "scale", True)])


def _of_skip_normalization(ctx: InferenceContext) -> Iterator[Need]:
    return _exactly("", *((index, ctx.dims()[-1:]) for index in range(2, len(ctx.inputs))))


def _of_product(ctx: InferenceContext) -> Iterator[Need]:
    """Of a Gemm, whose third input broadcasts to the product."""
    rows, columns = ctx.dims(0)[ctx.attr("transA", 0) != 0], ctx.dims(1)[ctx.attr("transB", 0) == 0]
    yield 2, (rows, columns), "bias", True


def _of_quantization(ctx: InferenceContext) -> Iterator[Need]:
    """A scale for all, or for each place along the axis; a zero point for each scale."""
    scale, dims = ctx.dims(1), ctx.dims()
    if len(scale) == 1 and scale[0] != 1 and not ctx.attr("block_size", 0):
        yield 1, (dims[ctx.axis(ctx.attr("axis", 1), len(dims))],), "scale", False
    yield 2, scale, "zero", len(scale) < 2 and scale in ((), (1,))


def _of_limits(_: InferenceContext) -> Iterator[Need]:
    return iter([(1, (), "should be a scalar", True), (2, (), "should be a scalar", True)])


def _of_recurrence(ctx: InferenceContext) -> Iterator[Need]:
    dims, gates = ctx.dims(), GATES[ctx.node.op_type]
    hidden = const(ctx.attr("hidden_size", 0)) if "hidden_size" in ctx.attributes else ctx.dims(2)[-1]
    directions = const(2 if ctx.attr("direction", "forward") == "bidirectional" else 1)
    is_batch_first = bool(ctx.attr("layout", 0))
    batch = dims[0 if is_batch_first else 1]
    state = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
    weights = (1, (directions, gates * hidden, dims[2])), (2, (directions, gates * hidden, hidden))
    biases = (3, (directions, 2 * gates * hidden)), (7, (directions, 3 * hidden))
    return _exactly("must have shape", *weights, *biases, (4, (batch,)), (5, state), (6, state))


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
    return _exactly("Indices vs updates", (2, ctx.dims(1)))


def _of_one_axis(default: int) -> Callable[[InferenceContext], Iterator[Need]]:
    def check(ctx: InferenceContext) -> Iterator[Need]:
        rank = len(ctx.dims())
        is_flat = ctx.node.operator in SOFTMAXES and ctx.opset < ONE_AXIS_SINCE
        if not is_flat or "axis" in ctx.attributes:
            ctx.axis(ctx.attr("axis", default), rank)
        return iter(())

    return check


def _of_axis_input(ctx: InferenceContext) -> Iterator[Need]:
    for axis in ctx.numbers(1):
        ctx.axis(axis, len(ctx.dims()))
    return iter(())


def _of_rank(least: int, most: int) -> Callable[[InferenceContext], Iterator[Need]]:
    def check(ctx: InferenceContext) -> Iterator[Need]:
        if not least <= len(ctx.dims()) <= most:
            ctx.note_fault(f"a tensor of rank {len(ctx.dims())}, not {least}{' or more' if most > least else ''}")
        return iter(())

    return check


NEEDS: Mapping[str, Callable[[InferenceContext], Iterator[Need]]] = {
    **dict.fromkeys(operator_set("BatchNormalization InstanceNormalization"), _of_channels),
    "GroupNormalization": _of_groups,
    "Conv": _of_convolution(2, 1),
    "QLinearConv": _of_convolution(8, 3),
    "ConvTranspose": _of_transposed_convolution,
    **dict.fromkeys(operator_set("LayerNormalization RMSNormalization"), _of_normalization),
    **dict.fromkeys(
        operator_set("SkipLayerNormalization SkipSimplifiedLayerNormalization", "com.microsoft"), _of_skip_normalization
    ),
    "Gemm": _of_product,
    **dict.fromkeys(operator_set("QuantizeLinear DequantizeLinear"), _of_quantization),
    "Clip": _of_limits,
    **dict.fromkeys(GATES, _of_recurrence),
    "ReverseSequence": _of_sequences,
    **dict.fromkeys(operator_set("GatherElements ScatterElements"), _of_scattering),
    **dict.fromkeys(operator_set("LpNormalization") | SOFTMAXES, _of_one_axis(-1)),
    **dict.fromkeys(operator_set("CumSum CumProd"), _of_axis_input),
    "EyeLike": _of_rank(2, 2),
    "Trilu": _of_rank(2, 1 << 10),
}
