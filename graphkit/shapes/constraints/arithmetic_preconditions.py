"""Preconditions of operators that compute: elementwise ones, products, pooling, normalisation, attention.

Source for attention: onnxruntime's contrib operators (docs/ContribOperators.md) and the checks of its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.dtypes import INTEGERS
from graphkit.graph.operator_traits import BROADCASTING, DIVIDING, UNIDIRECTIONAL
from graphkit.shapes import Expr, Relation, const, is_known, lower, upper
from graphkit.shapes.constraints.preconditions import (
    FAILS,
    FINE,
    WRONG,
    Ints,
    NotZero,
    Precondition,
    PreconditionRule,
    Related,
    Violation,
    failing_where,
    name_value,
    read_integers,
    require_at_least,
    require_at_most,
    require_broadcast_dims,
    require_equal,
)
from graphkit.shapes.rule_context import NodeView
from graphkit.shapes.rules.data_movement import dims_product
from graphkit.shapes.tensor import Dims

__all__ = ["RULES", "WindowFits"]

WINDOW = "the window does not fit"


def require_broadcast(view: NodeView) -> Iterator[Precondition]:
    """All inputs broadcast; an integer is not divided by 0."""
    present = [index for index in range(len(view.inputs)) if view.has(index)]
    yield from require_broadcast_dims([view.dims(index) for index in present])
    if view.node.op_type in DIVIDING and view.tensor(1).dtype in INTEGERS and view.tensor(1).may_have_data:
        count = dims_product(view.dims(0))  # the divisor has elements: without a dividend's there is no result
        for element in read_integers(view, 1):
            if is_known(element) and is_known(count) and lower(element) <= 0 <= upper(element):
                yield NotZero(element, count, "a divisor of 0", "by zero")


def require_qlinear(view: NodeView) -> Iterator[Precondition]:
    """QLinearAdd, QLinearMul(a, a_scale, a_zero, b, ...): both broadcast."""
    yield from require_broadcast_dims([view.dims(0), view.dims(3)])


def product_of(left: int, right: int) -> PreconditionRule:
    """Return the rule of a product of two inputs."""

    def matmul(view: NodeView) -> Iterator[Precondition]:
        first, second = view.dims(left), view.dims(right)
        if first and second:
            inner = second[-2] if len(second) > 1 else second[0]
            yield from require_equal(first[-1], inner, "the inner dims of a product", "dimension mismatch")
            yield from require_broadcast_dims([first[:-2], second[:-2]], "cannot broadcast on dim")

    return matmul


def require_gemm(view: NodeView) -> Iterator[Precondition]:
    """The inner dims are equal."""
    first, second = view.dims(0), view.dims(1)
    if len(first) == len(second) == 2:
        inner = first[0 if view.attr("transA", 0) else 1]
        rows = second[1 if view.attr("transB", 0) else 0]
        yield from require_equal(inner, rows, "the inner dims of a product", "Dimension mismatch")


def arg_max(view: NodeView) -> Iterator[Precondition]:
    """The axis has elements."""
    dims = view.dims()
    axis = view.axis(view.attr("axis", 0), len(dims))
    others = dims_product((*dims[:axis], *dims[axis + 1 :]))
    if is_known(dims[axis]) and is_known(others) and lower(dims[axis]) < 1:
        yield NotZero(dims[axis], others, "an axis without elements", "")


def layer_norm(view: NodeView) -> Iterator[Precondition]:
    """The normalised axes have elements."""
    dims = view.dims()
    axis = view.axis(view.attr("axis", -1), len(dims))
    yield from require_at_least(dims_product(dims[axis:]), 1, "nothing to normalise", "must be at least 1")


def conv_rule(weight: int) -> PreconditionRule:
    """Return the rule of a convolution with the weight at an input index."""

    def convolution(view: NodeView) -> Iterator[Precondition]:
        dims, kernel = view.dims(0), view.dims(weight)
        if len(dims) != len(kernel) or len(dims) < 3:
            return
        if view.attr("channels_last", 0):
            dims = (dims[0], dims[-1], *dims[1:-1])
        yield from require_equal(dims[1], kernel[1] * view.attr("group", 1), "channels of input and weight", "channels")
        for room, _ in _window_rooms(view, dims[2:], kernel[2:]):
            yield from require_at_least(room, 0, WINDOW, "Invalid input shape")

    return convolution


@dataclass(frozen=True)
class WindowFits(Related):
    """A window of a pool fits. onnxruntime rounds towards 0, and counts some windows that do not.

    Attributes:
        axis: The spatial axis, of all axes.
        stride: Of the window along it.
        shape: The output's, as ONNX has it.
    """

    axis: int
    stride: int
    shape: tuple[Expr, ...]

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return *super().exprs, *self.shape

    @property
    def told(self) -> tuple[Expr, ...]:
        return super().exprs

    def outcome(self, values: Sequence[Ints]) -> Ints:
        return np.where(values[0] < 1 - 2 * self.stride, FAILS, np.where(values[0] < 0, WRONG, FINE))

    def violation(self, values: Sequence[int]) -> Violation:
        (room, _), shape = values[:2], list(values[2:])
        violation = super().violation(values[:2])
        if room < 1 - 2 * self.stride:
            return violation
        shape[self.axis] = 1 - -room // self.stride
        return Violation(f"{violation.problem}, and onnxruntime counts {shape[self.axis]}", "", tuple(shape))


def require_window(view: NodeView) -> Iterator[Precondition]:
    """A window fits along each axis."""
    dims = view.dims()
    kernel = tuple(const(size) for size in view.attr("kernel_shape", ()))
    if len(kernel) != len(dims) - 2 or view.attr("ceil_mode", 0):
        return
    rooms = list(_window_rooms(view, dims[2:], kernel))
    shape = (*dims[:2], *(room // stride + 1 for room, stride in rooms))
    for axis, (room, stride) in enumerate(rooms, start=2):
        if all(map(is_known, shape)) and lower(room) < 0 and room.constant is None:
            relation = Relation.at_least(room, 0)
            yield WindowFits(relation, WINDOW, "output dimension is negative", axis, stride, shape)


def _window_rooms(view: NodeView, dims: Dims, kernel: Dims) -> Iterator[tuple[Expr, int]]:
    """Yield how far a window can move, and the stride, for each spatial dim."""
    count, automatic = len(dims), view.attr("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return
    pads = (view.attr("pads", ()) if automatic == "NOTSET" else ()) or (0,) * (2 * count)
    dilations, strides = view.attr("dilations", ()) or (1,) * count, view.attr("strides", ()) or (1,) * count
    for axis, dim in enumerate(dims):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        yield dim + pads[axis] + pads[axis + count] - extent, strides[axis]


def global_pool(view: NodeView) -> Iterator[Precondition]:
    """No dim but the batch is 0."""
    for dim in view.dims()[1:]:
        yield from require_at_least(dim, 1, "a dim without elements", "Only N can be zero")


def require_einsum(view: NodeView) -> Iterator[Precondition]:
    """Equal letters are dims that broadcast."""
    terms = view.attr("equation", "").replace(" ", "").partition("->")[0].split(",")
    if "." in "".join(terms) or len(terms) != len(view.inputs):
        return
    letters: dict[str, dict[Expr, None]] = {}
    for index, term in enumerate(terms):
        for letter, dim in zip(term, view.dims(index), strict=False):
            letters.setdefault(letter, {})[dim] = None
    for dims in letters.values():
        yield from require_broadcast_dims([(dim,) for dim in dims], "could not be broadcast")


@dataclass(frozen=True)
class Cached(Precondition):
    """Total, past and new positions of a GroupQueryAttention: the total is their sum, or fits into a static cache."""

    total: Expr
    past: Expr
    new: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.total, self.past, self.new

    def outcome(self, values: Sequence[Ints]) -> Ints:
        total, past, new = values
        return failing_where((total != past + new) & ((new > total) | (total > past)))

    def violation(self, values: Sequence[int]) -> Violation:
        total, past, new = (name_value(expr, value) for expr, value in zip(self.exprs, values, strict=True))
        return Violation(
            f"total, past and new positions that do not go together: {total}, {past}, {new}",
            "total_sequence_length must",
        )

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return ((self.total, self.past + self.new),)


@dataclass(frozen=True)
class OneByOne(Precondition):
    """A GroupQueryAttention takes several new positions after a past for a single sequence only."""

    batch: Expr
    new: Expr
    total: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.batch, self.new, self.total

    def outcome(self, values: Sequence[Ints]) -> Ints:
        batch, new, total = values
        return failing_where((batch > 1) & (new > 1) & (total != new))

    def violation(self, values: Sequence[int]) -> Violation:
        batch, new, total = values
        return Violation(f"{new} new positions of {total} in a batch of {batch}", "batch_size must be 1")


def require_grouped_attention(view: NodeView) -> Iterator[Precondition]:
    """GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, cos_cache, sin_cache)."""
    query, (total,) = view.dims(0), read_integers(view, 6)
    past = view.dims(3)[2] if view.has(3) else const(0)
    new = view.dims(1)[1] if view.has(1) and len(view.dims(1)) == 3 else query[1]
    if not all(map(is_known, (query[0], total, past, new))):
        return
    if not view.attr("sliding_window_cache", 0):
        yield Cached(total, past, new)
    yield OneByOne(query[0], query[1], total)
    if view.attr("do_rotary", 0) and view.has(7):
        yield from require_table_length(total, view.dims(7)[0], "cos_cache dimension 0")


def require_table_length(length: Expr, end: Expr, says: str) -> Iterator[Precondition]:
    """Yield the precondition that a table of positions is long enough."""
    yield from require_at_most(length, end, "more positions than the table has", says)


def require_rotary_table(view: NodeView) -> Iterator[Precondition]:
    """com.microsoft RotaryEmbedding(input, position_ids, cos_cache, sin_cache)."""
    dims = view.dims(0)
    yield from require_table_length(dims[1] if len(dims) == 3 else dims[2], view.dims(2)[0], "cos_cache")


def require_position_table(view: NodeView) -> Iterator[Precondition]:
    """EmbedLayerNormalization(ids, segments, words, positions, ..., position_ids): a table of positions."""
    if not view.has(8):
        yield from require_table_length(view.dims(0)[1], view.dims(3)[0], "")


def packed_attention_rule(mask: int, past: int) -> PreconditionRule:
    """Return the rule of com.microsoft Attention and QAttention: a mask of rank 2 spans past and new positions."""

    def attention(view: NodeView) -> Iterator[Precondition]:
        if not view.has(mask) or len(view.dims(mask)) != 2 or view.attr("past_present_share_buffer", 0):
            return
        before = view.dims(past)[3] if view.has(past) else const(0)
        total = before + view.dims(0)[1]
        yield from require_equal(
            view.dims(mask)[1], total, "the lengths of the mask, and of past and new together,", "mask_index"
        )

    return attention


def require_attention(view: NodeView) -> Iterator[Precondition]:
    """Attention of opset 23: as many values as keys."""
    lengths = [dims[2] if len(dims) == 4 else dims[1] for dims in (view.dims(1), view.dims(2))]
    yield from require_equal(
        lengths[0], lengths[1], "the lengths of keys and values", "inconsistent kv_sequence_length"
    )


RULES: Mapping[str, PreconditionRule] = {
    **dict.fromkeys(BROADCASTING.keys() | UNIDIRECTIONAL.keys(), require_broadcast),
    "MatMul": product_of(0, 1),
    "MatMulInteger": product_of(0, 1),
    "QLinearMatMul": product_of(0, 3),
    "com.microsoft.MatMulIntegerToFloat": product_of(0, 1),
    "com.microsoft.DynamicQuantizeMatMul": product_of(0, 1),
    "Gemm": require_gemm,
    "ArgMax": arg_max,
    "ArgMin": arg_max,
    "LayerNormalization": layer_norm,
    "Conv": conv_rule(1),
    "ConvInteger": conv_rule(1),
    "QLinearConv": conv_rule(3),
    "com.microsoft.QLinearConv": conv_rule(3),
    "com.microsoft.FusedConv": conv_rule(1),
    "com.microsoft.QLinearAdd": require_qlinear,
    "com.microsoft.QLinearMul": require_qlinear,
    "MaxPool": require_window,
    "AveragePool": require_window,
    "LpPool": require_window,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "Einsum": require_einsum,
    "Attention": require_attention,
    "com.microsoft.Attention": packed_attention_rule(3, 4),
    "com.microsoft.QAttention": packed_attention_rule(5, 8),
    "com.microsoft.GroupQueryAttention": require_grouped_attention,
    "com.microsoft.RotaryEmbedding": require_rotary_table,
    "com.microsoft.EmbedLayerNormalization": require_position_table,
}
