"""Preconditions of operators that move, cut, join or make elements: Reshape, Expand, Concat, Slice and others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.shapes import Expr, const, is_known, lower, upper
from graphkit.shapes.algebra import divide_exactly
from graphkit.shapes.constraints.preconditions import (
    FAILS,
    FINE,
    WRONG,
    Bools,
    Concatenated,
    Ints,
    Multiple,
    NotZero,
    Precondition,
    PreconditionRule,
    Violation,
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

__all__ = ["RULES", "Reshaped", "Sliced"]

CANNOT = "cannot be reshaped to the requested shape"


@dataclass(frozen=True)
class Reshaped(Precondition):
    """A target shape fits the number of elements, and is read as it was written.

    A constant 0 in the target is meant to copy a dim. An expression that is 0 is meant as 0: if onnxruntime copies
    another dim instead, the shape is wrong.
    """

    source: tuple[Expr, ...]
    target: tuple[Expr, ...]
    allow_zero: bool

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.source, *self.target)

    def outcome(self, values: Sequence[Ints]) -> Ints:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        shape = values[0].shape
        total = math.prod(source, start=np.ones(shape, np.int64))
        fails = np.zeros(shape, np.bool_)
        wrong = np.zeros(shape, np.bool_)
        inferred = np.zeros(shape, np.int64)
        size = np.ones(shape, np.int64)
        for index, element in enumerate(target):
            is_rest = element == -1
            fails |= element < -1
            inferred += is_rest
            copied, cannot = self._copied(index, element, source)
            fails |= cannot
            wrong |= (copied != element) & (self.target[index].constant is None)
            size = size * np.where(is_rest, 1, copied)
        fails |= inferred > 1
        divisor = np.where(size == 0, 1, size)
        beside_zero = (size == 0) & (not self.allow_zero)  # with allowzero, onnxruntime takes -1 beside 0 for 1
        fails |= np.where(inferred == 1, beside_zero | (total % divisor != 0), total != size)
        return np.where(fails, FAILS, np.where(wrong, WRONG, FINE))

    def _copied(self, index: int, element: Ints, source: Sequence[Ints]) -> tuple[Ints, Bools]:
        """Return an element with 0 replaced by the dim that it copies, and where there is no dim to copy."""
        if self.allow_zero:
            return element, np.zeros(element.shape, np.bool_)
        if index >= len(source):
            return element, element == 0
        return np.where(element == 0, source[index], element), np.zeros(element.shape, np.bool_)

    def violation(self, values: Sequence[int]) -> Violation:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        text = f"{source} to [{', '.join(map(str, self.target))}] = {target}"
        if any(element < -1 for element in target):
            return Violation(f"{text}: below -1", "A dimension cannot be less than -1")
        if not self.allow_zero and 0 in target[len(source) :]:
            return Violation(f"{text}: 0 has nothing to copy", "exceeds the dimension size of the input tensor")
        if target.count(-1) > 1:
            return Violation(f"{text}: more than one -1", "At most one dimension can be -1")
        result = [
            source[index] if element == 0 and not self.allow_zero else element for index, element in enumerate(target)
        ]
        meant = [i for i, expr in enumerate(self.target) if expr.constant is None]
        copies = [f"0 copies {result[i]}" for i in meant if target[i] != result[i]]
        size = int(np.prod([element for element in result if element != -1]))
        total = int(np.prod(source))
        if -1 in target and size == 0 and not self.allow_zero:
            return Violation(f"{text}: -1 beside 0 cannot be inferred", CANNOT)
        if (-1 in target and total % max(size, 1)) or (-1 not in target and total != size):
            return Violation(f"{text}: {'; '.join([*copies, f'{total} elements do not fit'])}", CANNOT)
        result = [total // max(size, 1) if element == -1 else element for element in result]
        return Violation(f"{text}: {'; '.join(copies)}", "", tuple(result))


MAX_BOUND = 1 << 40  # exporters write INT64_MAX for "to the end"


@dataclass(frozen=True)
class Sliced(Precondition):
    """Bounds along one axis count from the front, as meant. Below 0 they would count from the end.

    Where both are computed, and lie before and behind all that there is, less is left than is meant.
    """

    dims: tuple[Expr, ...]
    axis: int
    start: Expr
    end: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.start, self.end, *self.dims

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


NEGATIVE = "Tensor shape.Size() must be >= 0"
MAX_RANK = 8  # of tensors that are compared dim by dim


def require_reshape(view: NodeView) -> Iterator[Precondition]:
    """The target's elements are read as they were written, and it has as many elements as the input."""
    if view.opset < 5:
        return
    source, target = view.dims(), tuple(read_integers(view, 1))
    if not all(map(is_known, (*source, *target))) or _always_reshapes(source, target):
        return
    yield Reshaped(source, target, bool(view.attr("allowzero", 0)))


def _always_reshapes(source: Dims, target: Dims) -> bool:
    """Whether a target fits at all legal dims."""
    dims = []
    for index, element in enumerate(target):
        if element == 0 and index < len(source):
            element = source[index]
        if element != -1 and lower(element) < 1:
            return False
        dims.append(element)
    present, total = dims_product([element for element in dims if element != -1]), dims_product(source)
    if -1 not in dims:
        return present == total
    return dims.count(const(-1)) == 1 and divide_exactly(total, present) * present == total


def require_expand(view: NodeView) -> Iterator[Precondition]:
    """Dims and target broadcast; the target is not below 0."""
    target = tuple(read_integers(view, 1))
    for element in target:
        yield from require_at_least(element, 0, "a target dim below 0", "")
    yield from require_broadcast_dims([view.dims(), target], "invalid expand shape")


def require_tile(view: NodeView) -> Iterator[Precondition]:
    """Repeats are not below 0."""
    for element in read_integers(view, 1):
        yield from require_at_least(element, 0, "repeats below 0", "must be non-negative")


def constant_of_shape(view: NodeView) -> Iterator[Precondition]:
    """Dims are not below 0."""
    for element in read_integers(view, 0):
        yield from require_at_least(element, 0, "a dim below 0", NEGATIVE)


def range_(view: NodeView) -> Iterator[Precondition]:
    """The step is not 0."""
    if view.tensor(2).may_have_data:
        for element in read_integers(view, 2):
            if is_known(element) and element.constant is None:
                yield NotZero(element, const(1), "a step of 0", "can not be zero")


def require_concat(view: NodeView) -> Iterator[Precondition]:
    """Inputs with elements are equal off the axis."""
    shapes = tuple(view.dims(index) for index in range(len(view.inputs)))
    if not shapes or len({len(dims) for dims in shapes}) > 1 or not 0 < len(shapes[0]) <= MAX_RANK:
        return
    axis = view.axis(view.attr("axis", 1), len(shapes[0]))
    places = [index for index in range(len(shapes[0])) if index != axis]
    if any(dims[index] != shapes[0][index] for dims in shapes for index in places):
        distinct = tuple(dict.fromkeys(shapes))
        if all(is_known(dim) for dims in distinct for dim in dims):
            yield Concatenated(distinct, axis)


def gather_elements(view: NodeView) -> Iterator[Precondition]:
    """Indices have no larger dims than the data off the axis."""
    dims, indices = view.dims(0), view.dims(1)
    axis = view.axis(view.attr("axis", 0), len(dims))
    says = "'indices' shape" if view.node.op_type == "GatherElements" else "is greater than input dim"
    for index, (largest, dim) in enumerate(zip(dims, indices, strict=False)):
        if index != axis:
            yield from require_at_most(dim, largest, "indices of a larger dim than the data", says)


def scatter_nd(view: NodeView) -> Iterator[Precondition]:
    """Updates have the indices' dims less the last, then the data's that it does not index."""
    dims, indices, updates = view.dims(0), view.dims(1), view.dims(2)
    depth = indices[-1].constant if indices else None
    if depth is None:
        return
    for left, right in zip(updates, (*indices[:-1], *dims[depth:]), strict=False):
        yield from require_equal(
            left, right, "the dims of updates and of what they replace", "updates tensor should have shape"
        )


def top_k(view: NodeView) -> Iterator[Precondition]:
    """K is not below 0, and not above the dim."""
    dims = view.dims()
    if view.opset < 10:
        count = const(view.attr("k", 1))
    else:
        (count,) = read_integers(view, 1)
    dim = dims[view.axis(view.attr("axis", -1), len(dims))]
    yield from require_at_least(count, 0, "k below 0", "must not be negative")
    yield from require_at_most(count, dim, "k is larger than the axis", "k argument")


def require_split(view: NodeView) -> Iterator[Precondition]:
    """The parts are as long as the whole."""
    dims, count = view.dims(), len(view.node.outputs)
    dim = dims[view.axis(view.attr("axis", 0), len(dims))]
    if not is_known(dim):
        return
    sizes = view.attr("split", ()) if view.opset < 13 else None
    if view.opset >= 13 and view.has(1):
        parts_given = read_integers(view, 1)
    elif sizes:
        parts_given = [const(size) for size in sizes]
    elif view.opset < 18:
        if dim.constant is None:
            yield Multiple(dim, count, "a dim to be split evenly", "cannot be split evenly")
        return
    else:
        parts = view.attr("num_outputs", count)
        yield from require_at_least(dim, parts, f"a dim to be split in {parts}", "Invalid num_outputs value")
        return
    yield from require_equal(sum(parts_given, const(0)), dim, "the sum of the parts and the whole", "split")


def require_squeeze(view: NodeView) -> Iterator[Precondition]:
    """Dims that are squeezed are 1."""
    dims = view.dims()
    for axis in view.axes(1, 13) or []:
        yield from require_equal(
            dims[view.axis(axis, len(dims))], const(1), "a dim that is squeezed and 1", "must be 1 instead"
        )


def slice_(view: NodeView) -> Iterator[Precondition]:
    """A bound that is meant to count from the front does not count from the end."""
    if view.opset < 10 or not view.tensor(1).may_have_data or not view.tensor(2).may_have_data:
        return
    dims, starts, ends = view.dims(), read_integers(view, 1), read_integers(view, 2)
    axes = view.numbers(3) if view.has(3) else list(range(len(starts)))
    steps = view.numbers(4) if view.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        may_turn = any(bound.constant is None and lower(bound) < 0 <= upper(bound) for bound in (start, end))
        if may_turn and step == 1 and all(map(is_known, (start, end, *dims))):
            yield Sliced(dims, view.axis(axis, len(dims)), start, end)


def require_resize(view: NodeView) -> Iterator[Precondition]:
    """A dim is resized to 0 if and only if it is 0."""
    if view.opset < 11 or not view.has(3) or view.tensor(3).dims == (const(0),):
        return
    dims = view.dims()
    axes = [view.axis(axis, len(dims)) for axis in view.attr("axes", ()) or range(len(dims))]
    for axis, size in zip(axes, read_integers(view, 3), strict=False):
        if is_known(size) and is_known(dims[axis]) and size != dims[axis]:
            if lower(size) < 1:
                yield NotZero(size, dims[axis], "a dim is resized to 0", "should be greater than 0")
            if lower(dims[axis]) < 1:
                yield NotZero(dims[axis], size, "nothing is resized", "Cannot scale 0")


def require_pad(view: NodeView) -> Iterator[Precondition]:
    """No dim is cut below 0, and there are enough elements to reflect."""
    if view.opset < 11:
        return
    dims, pads, mode = view.dims(), read_integers(view, 1), view.attr("mode", "constant")
    axes = list(range(len(dims)))
    if view.opset >= 18 and view.has(3):
        axes = [view.axis(axis, len(dims)) for axis in view.numbers(3)]
    for position, axis in enumerate(axes):
        around = pads[position], pads[position + len(axes)]
        yield from require_at_least(dims[axis] + around[0] + around[1], 0, "a dim that is cut", "must be >= 0")
        for width in around if mode == "reflect" else ():
            yield from require_at_most(width, dims[axis] - 1, "padding that reflects more than the axis has", "reflect")
        if mode == "edge" and around != (const(0), const(0)):
            yield from require_at_least(dims[axis], 1, "no edge to pad with", "'edge' mode")


def depth_to_space(view: NodeView) -> Iterator[Precondition]:
    """Channels are a multiple of the block's square, or height and width of the block."""
    dims, size = view.dims(), view.attr("blocksize", 1)
    if len(dims) != 4:
        return
    depth = view.node.op_type == "DepthToSpace"
    for dim in dims[1:2] if depth else dims[2:]:
        if is_known(dim) and dim.constant is None:
            yield Multiple(dim, size * size if depth else size, "a dim", "multiple of")


RULES: Mapping[str, PreconditionRule] = {
    "Reshape": require_reshape,
    "Expand": require_expand,
    "Tile": require_tile,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Concat": require_concat,
    "GatherElements": gather_elements,
    "ScatterElements": gather_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Split": require_split,
    "Squeeze": require_squeeze,
    "Slice": slice_,
    "Resize": require_resize,
    "Pad": require_pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": depth_to_space,
}
