"""Operators that slide a window, resample or transform: Conv, pooling, Resize, STFT, DFT, and their blocked forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from onnx import TensorProto

from graphkit.graph.operator_traits import operator_set
from graphkit.ops.preconditions import FAILS, FINE, WRONG, Ints, Related, Violation
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import EXACT, Dims, Element, Tensor, as_size, dims_product, element_number
from graphkit.symbolic.algebra import Relation, ceil_div, floor_div, lower, maximum, minimum
from graphkit.symbolic.expr import Expr, const

MS = "com.microsoft"
ASPECT = "the sizes follow an aspect ratio"
IN_FLOAT32 = "onnxruntime counts windows in float32"
WINDOW = "the window does not fit"
SAME_DILATED = "a pool with dilations is padded as if it had none"
SAME_SHORT = "its windows leave gaps, which the padding does not fill"


def _integer_list(ctx: InferenceContext, name: str, count: int, default: int) -> tuple[int, ...]:
    numbers = ctx.attr(name, ()) or (default,) * count
    if len(numbers) != count:
        problem = f"the attribute {name} has {len(numbers)} numbers, not {count}"
        raise ctx.impossible(problem, problem)
    return numbers


def _count_windows(ctx: InferenceContext, dims: Dims, kernel: Sequence[Expr], *, is_pool: bool) -> list[Expr]:
    """Return how many windows fit along each spatial dim; a convolution needs one, a pool may have none."""
    count = len(dims)
    rooms: list[tuple[Expr, int]] = []  # how far a window can move, and its stride
    strides, dilations = (_integer_list(ctx, name, count, 1) for name in ("strides", "dilations"))
    pads = _read_pads(ctx, count)
    result = []
    for axis, dim in enumerate(dims):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        if pads is None:
            is_odd = is_pool and window != kernel[axis]
            result.append(ctx.new_symbol(SAME_DILATED) if is_odd else ceil_div(dim, strides[axis]))
            continue
        room = dim + pads[axis] + pads[axis + count] - window
        rooms.append((room, strides[axis]))
        if is_pool:
            windows = _count_pool_windows(ctx, room, strides[axis], dim + pads[axis])
        else:
            windows = floor_div(room, strides[axis]) + 1
        ctx.at_least(windows, 0 if is_pool else 1, "windows that fit", None)
        result.append(windows)
    if not is_pool:
        for room, _ in rooms:
            ctx.require_at_least(room, 0, WINDOW, "Invalid input shape")
    elif not ctx.attr("ceil_mode", 0):
        shape = (*ctx.dims()[:2], *(room // stride + 1 for room, stride in rooms))
        for axis, (room, stride) in enumerate(rooms, start=2):
            if lower(room) < 0:
                relation = Relation.at_least(room, 0)
                ctx.require(WindowFits(relation, WINDOW, "output dimension is negative", axis, stride, shape))
    return result


def _count_pool_windows(ctx: InferenceContext, room: Expr, stride: int, begun: Expr) -> Expr:
    """Return how many windows a pool has, if the first may move by `room` in a dim that is `begun` with left padding.

    As onnxruntime divides towards 0, one window may be larger than the whole dim.
    """
    most = ceil_div(room, stride) + 1
    if ctx.attr("ceil_mode", 0):  # the last window must begin inside the input or its left padding
        if max(room.constant or 0, begun.constant or 0) > EXACT[32]:
            return ctx.new_symbol(IN_FLOAT32)
        for counted in (room, begun):
            ctx.at_most(counted, EXACT[32])
        return minimum(most, floor_div(begun - 1, stride) + 1)
    least = floor_div(room, stride) + 1
    return least if lower(room) >= 0 else maximum(least, minimum(most, 1))


def _read_pads(ctx: InferenceContext, count: int) -> tuple[int, ...] | None:
    """Return the padding before and after each spatial dim, None where it follows from the strides."""
    automatic, explicit = ctx.attr("auto_pad", "NOTSET"), _integer_list(ctx, "pads", 2 * count, 0)
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return None
    return (0,) * (2 * count) if automatic == "VALID" else explicit


def _image_parts(ctx: InferenceContext) -> tuple[Expr, Expr, Dims]:
    batch, *rest = ctx.dims()
    return (batch, rest[-1], tuple(rest[:-1])) if _is_channels_last(ctx) else (batch, rest[0], tuple(rest[1:]))


def _make_image(ctx: InferenceContext, batch: Expr, channels: Expr | int, spatial: Iterable[Expr | int]) -> Tensor:
    dims = (batch, *spatial, channels) if _is_channels_last(ctx) else (batch, channels, *spatial)
    return ctx.like(dims)


def _is_channels_last(ctx: InferenceContext) -> bool:
    return ctx.node.op_type.startswith("Nhwc") or bool(ctx.attr("channels_last", 0))


def _conv_rule(weight: int = 1, *, dtype: int | None = None, like: int = 0) -> Rule:
    """Return the rule of a convolution of input 0, of a dtype, or of that of an input."""

    def conv(ctx: InferenceContext) -> Tensor:
        dims, kernel = ctx.dims(), ctx.dims(weight)
        if len(dims) != len(kernel) or len(dims) < 3:
            ranks = f"an input of rank {len(dims)}, a weight of rank {len(kernel)}"
            raise ctx.impossible(ranks, "the ranks of input and weight differ")
        batch, channels, spatial = _image_parts(ctx)
        ctx.same(channels, kernel[1] * ctx.attr("group", 1), "channels of input and weight", "channels")
        result = _make_image(ctx, batch, kernel[0], _count_windows(ctx, spatial, kernel[2:], is_pool=False))
        return result.of_dtype(ctx.tensor(like).dtype if dtype is None else dtype)

    return conv


def conv_transpose(ctx: InferenceContext) -> Tensor:
    """Return the dims that a Conv would make those of the input, or the attribute output_shape."""
    dims, kernel = ctx.dims(0), ctx.dims(1)
    if len(dims) != len(kernel) or len(dims) < 3:
        ranks = f"an input of rank {len(dims)}, a weight of rank {len(kernel)}"
        raise ctx.impossible(ranks, "the ranks of input and weight differ")
    count = len(dims) - 2
    head = (dims[0], kernel[1] * ctx.attr("group", 1))
    if output_shape := ctx.attr("output_shape", ()):
        return ctx.like((*head, *output_shape[-count:]))
    strides, dilations = (_integer_list(ctx, name, count, 1) for name in ("strides", "dilations"))
    pads = _read_pads(ctx, count)
    extra = _integer_list(ctx, "output_padding", count, 0)
    result = []
    for axis, dim in enumerate(dims[2:]):
        reach = (kernel[axis + 2] - 1) * dilations[axis] + 1 + extra[axis]
        if pads is not None:
            result.append((dim - 1) * strides[axis] + reach - pads[axis] - pads[axis + count])
        else:  # padding takes away what is more than the stride, and adds nothing
            is_certain = lower(reach) >= strides[axis]
            result.append(dim * strides[axis] if is_certain else ctx.new_symbol(SAME_SHORT))
    return ctx.like((*head, *result))


def infer_pool(ctx: InferenceContext) -> list[Tensor]:
    """Return batch, channels and windows; MaxPool gives their indices too."""
    batch, channels, spatial = _image_parts(ctx)
    kernel = [const(size) for size in _integer_list(ctx, "kernel_shape", len(spatial), 1)]
    _have_elements(ctx, batch, spatial)
    result = _make_image(ctx, batch, channels, _count_windows(ctx, spatial, kernel, is_pool=True))
    return [result, result.of_dtype(TensorProto.INT64)]


def global_pool(ctx: InferenceContext) -> Tensor:
    """Return batch and channels, with ones for the spatial dims."""
    batch, channels, spatial = _image_parts(ctx)
    for dim in (channels, *spatial):
        ctx.require_at_least(dim, 1, "a dim without elements", "Only N can be zero")
    _have_elements(ctx, batch, spatial)
    return _make_image(ctx, batch, channels, [1] * len(spatial))


def _have_elements(ctx: InferenceContext, batch: Expr, spatial: Dims) -> None:
    """Note that what is pooled has elements, as onnxruntime demands where the batch is not empty."""
    for dim in spatial if lower(batch) >= 1 else ():
        ctx.at_least(dim, 1, "a dim that is pooled", None)


def infer_resize(ctx: InferenceContext) -> Tensor:
    """Return the sizes given, or each dim times its scale rounded down; the rank stays, whatever is not known."""
    dims = list(ctx.dims())
    at_scales, at_sizes = (2, 3) if ctx.opset >= 11 and ctx.node.op_type == "Resize" else (1, -1)
    listed = ctx.attr("axes", ()) or range(len(dims))
    axes = [ctx.axis(axis, len(dims)) for axis in listed]
    has_sizes = at_sizes > 0 and ctx.has(at_sizes) and ctx.tensor(at_sizes).dims != (const(0),)
    sizes: Sequence[Element]
    if not has_sizes and ctx.node.op_type == "Upsample" and ctx.opset < 9 and "scales" in ctx.attributes:
        sizes = list(ctx.attributes["scales"].floats)
    elif ctx.data(read := at_sizes if has_sizes else at_scales) is not None:
        sizes = ctx.values(read)
    else:
        return ctx.like([ctx.unknown_value(read) if index in axes else dim for index, dim in enumerate(dims)])
    if not has_sizes:
        sizes = [_scale_dim(ctx, dims[axis], scale) for axis, scale in zip(axes, sizes, strict=False)]
    elif ctx.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        if min(listed, default=0) < 0:  # which onnxruntime does not count from the back here
            return ctx.like([ctx.new_symbol(ASPECT) for _ in dims])
        sizes = _fit_sizes(ctx, [dims[axis] for axis in axes], sizes)
    if len(sizes) != len(axes):
        raise ctx.impossible(f"{len(sizes)} scales or sizes for {len(axes)} axes", "the scales do not fit the rank")
    for axis, element in zip(axes, sizes, strict=True):
        dim, size = dims[axis], ctx.as_expr(element)
        dims[axis] = size
        if has_sizes and size != dim:
            ctx.require_not_zero(size, (dim,), "a dim is resized to 0", "should be greater than 0")
            ctx.require_not_zero(dim, (size,), "nothing is resized", "Cannot scale 0")
            dims[axis] = as_size(size, least=int(lower(dim) >= 1))
    return ctx.like(dims)


def _fit_sizes(ctx: InferenceContext, dims: Sequence[Expr], sizes: Sequence[Element]) -> list[Element]:
    """Return sizes that keep the aspect ratio: one scale for all, the smallest or the largest that was asked for.

    The runtime computes in float32, so that half a pixel may be rounded either way.
    """
    numbers = [(dim.constant, element_number(size)) for dim, size in zip(dims, sizes, strict=False)]
    ratios = [Fraction(size, dim) for dim, size in numbers if dim and size]
    if len(ratios) < max(len(sizes), 1):
        return [ctx.new_symbol(ASPECT) for _ in sizes]
    scale = min(ratios) if ctx.attr("keep_aspect_ratio_policy", "stretch") == "not_larger" else max(ratios)
    exact = [scale * dim for dim, _ in numbers if dim]
    slack = Fraction(1, 100)
    is_clear = [abs(size % 1 - Fraction(1, 2)) > slack + size / (1 << 20) for size in exact]
    return [round(size) if clear else ctx.new_symbol(ASPECT) for size, clear in zip(exact, is_clear, strict=True)]


def _scale_dim(ctx: InferenceContext, dim: Expr, scale: Element) -> Expr:
    """Return a dim times a scale; onnxruntime multiplies in float32."""
    size = dim.constant
    if not isinstance(scale, (int, float)):
        return ctx.new_symbol(f"its scale is {scale}")
    if scale <= 0:
        raise ctx.impossible(f"a scale of {scale}, and scales are above 0", "a scale is not above 0")
    if scale == 1:
        return dim
    if size is not None and size * scale < EXACT[64]:
        return const(int(np.float32(size) * np.float32(scale)))
    dividend, divisor = float(scale).as_integer_ratio()
    if divisor > 64 or dividend > 1 << 12 or size is not None:
        return ctx.new_symbol(f"{dim} times {scale} is rounded as a float")
    ctx.at_most(dim * dividend, EXACT[32])
    return floor_div(dim * dividend, divisor)


def roi_align(ctx: InferenceContext) -> Tensor:
    """Infer RoiAlign and MaxRoiPool: regions, channels, the output's height and width."""
    sizes = ctx.attr("pooled_shape", ()) or (ctx.attr("output_height", 1), ctx.attr("output_width", 1))
    return ctx.like((ctx.dims(1)[0], ctx.dims(0)[1], *sizes))


def col_to_image(ctx: InferenceContext) -> Tensor:
    """Infer Col2Im(input, image_shape, block_shape): batch, channels, the shape of the image."""
    dims = ctx.dims()
    channels = ctx.quotient(dims[1], dims_product(ctx.exprs(2)), "channels")
    return ctx.like((dims[0], channels, *ctx.exprs(1)))


def sample_grid(ctx: InferenceContext) -> Tensor:
    """Infer GridSample(input, grid), of two domains."""
    return ctx.like((*ctx.dims()[:2], *ctx.dims(1)[1:-1]))


def infer_stft(ctx: InferenceContext) -> Tensor:
    """Infer STFT(signal, frame_step, window, frame_length): batch, frames, frequencies, real and imaginary part."""
    dims, step = ctx.dims(), ctx.size(1)
    length = ctx.size(3) if ctx.has(3) else ctx.dims(2)[0]
    if step == 0 or len(dims) < 2:
        raise UnknownError("a frame step of 0, or a signal without batch")
    is_rounded = (dims[1].constant or 0) > EXACT[32]
    ctx.at_most(dims[1], EXACT[32])
    frames = ctx.new_symbol(IN_FLOAT32) if is_rounded else floor_div(dims[1] - length, step) + 1
    bins = floor_div(length, 2) + 1 if ctx.attr("onesided", 1) else length
    return ctx.like((dims[0], frames, bins, 2))


def infer_dft(ctx: InferenceContext) -> Tensor:
    """Infer DFT(input, length, axis): the transformed axis has the length, or half of it where it is one-sided."""
    dims = list(ctx.dims())
    axis = ctx.attr("axis", 1) if ctx.opset < 20 else ctx.numbers(2)[0] if ctx.has(2) else -2
    place = ctx.axis(axis, len(dims))
    length = ctx.size(1) if ctx.has(1) else dims[place]
    one_sided, inverse = ctx.attr("onesided", 0), ctx.attr("inverse", 0)
    if one_sided and inverse:
        raise UnknownError("the inverse of a one-sided transform")
    dims[place] = floor_div(length, 2) + 1 if one_sided else length
    dims[-1] = const(2)
    return ctx.like(dims)


def infer_unfold(ctx: InferenceContext) -> Tensor:
    """Infer UnfoldTensor: windows along a dim, with their elements in a new last dim."""
    dims, size, step = list(ctx.dims()), ctx.attr("size", 1), ctx.attr("step", 1)
    place = ctx.axis(ctx.attr("dim", -1), len(dims))
    ctx.at_least(dims[place] - size, 0, "the window does not fit")
    dims[place] = floor_div(dims[place] - size, const(step)) + 1
    return ctx.like((*dims, const(size)))


QLINEAR_CONV = _conv_rule(3, like=7)  # x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, ...
RULES: Mapping[str, Rule] = {
    "Conv": _conv_rule(),
    **dict.fromkeys(operator_set("FusedConv NhwcConv NhwcFusedConv nchwc.Conv", MS), _conv_rule()),
    "ConvInteger": _conv_rule(dtype=TensorProto.INT32),
    **dict.fromkeys(operator_set("QLinearConv") | operator_set("QLinearConv", MS), QLINEAR_CONV),
    "ConvTranspose": conv_transpose,
    **dict.fromkeys(operator_set("MaxPool AveragePool LpPool"), infer_pool),
    **dict.fromkeys(operator_set("QLinearAveragePool NhwcMaxPool nchwc.MaxPool nchwc.AveragePool", MS), infer_pool),
    **dict.fromkeys(operator_set("GlobalAveragePool GlobalMaxPool GlobalLpPool"), global_pool),
    **dict.fromkeys(operator_set("nchwc.GlobalAveragePool nchwc.GlobalMaxPool", MS), global_pool),
    "com.microsoft.QLinearGlobalAveragePool": global_pool,
    **dict.fromkeys(operator_set("Resize Upsample"), infer_resize),
    **dict.fromkeys(operator_set("RoiAlign MaxRoiPool"), roi_align),
    **dict.fromkeys(operator_set("GridSample") | operator_set("GridSample", MS), sample_grid),
    "Col2Im": col_to_image,
    # (X, rois, batch_indices, crop_size): regions, channels, height and width
    "com.microsoft.CropAndResize": lambda ctx: ctx.like((ctx.dims(1)[0], ctx.dims()[1], *ctx.exprs(3))),
    # the channels without the padding of the blocked layout
    "com.microsoft.nchwc.ReorderOutput": lambda ctx: _make_image(
        ctx, ctx.dims()[0], ctx.attr("channels", 0), ctx.dims()[2:]
    ),
    "STFT": infer_stft,
    "DFT": infer_dft,
    **dict.fromkeys(
        ("BlackmanWindow", "HammingWindow", "HannWindow"),
        lambda ctx: Tensor(ctx.attr("output_datatype", TensorProto.FLOAT), (ctx.size(0),)),
    ),
    "com.microsoft.UnfoldTensor": infer_unfold,
}


@dataclass(frozen=True)
class WindowFits(Related):
    """A window of a pool fits. onnxruntime rounds towards 0, and counts some windows that do not."""

    axis: int  # the spatial axis, of all axes
    stride: int  # of the window along it
    shape: tuple[Expr, ...]  # the output's, as ONNX has it

    @property
    def told(self) -> tuple[Expr, ...]:
        return self.relation.left, self.relation.right

    def outcome(self, values: Sequence[Ints]) -> Ints:
        return np.where(values[0] < 1 - 2 * self.stride, FAILS, np.where(values[0] < 0, WRONG, FINE))

    def violation(self, values: Sequence[int]) -> Violation:
        (room, _), shape = values[:2], list(values[2:])
        violation = super().violation(values[:2])
        if room < 1 - 2 * self.stride:
            return violation
        shape[self.axis] = 1 - -room // self.stride
        return Violation(f"{violation.problem}, and onnxruntime counts {shape[self.axis]}", "", tuple(shape))
