"""Preconditions of operators that move, cut, join or make elements: Reshape, Expand, Concat, Slice and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphkit.constraints.broadcast import Concatenated
from graphkit.constraints.precondition import Multiple, NotZero, Precondition
from graphkit.constraints.reshape import Reshaped
from graphkit.constraints.rules.common import PreconditionRule, broadcast, integers, least, most, same
from graphkit.constraints.slice import Sliced
from graphkit.shapes import const, is_known, lower, upper
from graphkit.shapes.algebra import divide_exactly
from graphkit.shapes.node_view import NodeView
from graphkit.shapes.rules.common import product
from graphkit.shapes.tensor import Dims

__all__ = ["RULES"]

NEGATIVE = "Tensor shape.Size() must be >= 0"
MAX_RANK = 8  # of tensors that are compared dim by dim


def reshape(view: NodeView) -> Iterator[Precondition]:
    """The target's elements are read as they were written, and it has as many elements as the input."""
    if view.opset < 5:
        return
    source, target = view.dims(), tuple(integers(view, 1))
    if not all(map(is_known, (*source, *target))) or _always_reshapes(source, target):
        return
    yield Reshaped(source, target, bool(view.attr("allowzero", 0)))


def _always_reshapes(source: Dims, target: Dims) -> bool:
    """Whether a target fits at all legal dims."""
    wanted = []
    for index, element in enumerate(target):
        if element == 0 and index < len(source):
            element = source[index]
        if element != -1 and lower(element) < 1:
            return False
        wanted.append(element)
    present, total = product([element for element in wanted if element != -1]), product(source)
    if -1 not in wanted:
        return present == total
    return wanted.count(const(-1)) == 1 and divide_exactly(total, present) * present == total


def expand(view: NodeView) -> Iterator[Precondition]:
    """Dims and target broadcast; the target is not below 0."""
    target = tuple(integers(view, 1))
    for element in target:
        yield from least(element, 0, "a target dim below 0", "")
    yield from broadcast([view.dims(), target], "invalid expand shape")


def tile(view: NodeView) -> Iterator[Precondition]:
    """Repeats are not below 0."""
    for element in integers(view, 1):
        yield from least(element, 0, "repeats below 0", "must be non-negative")


def constant_of_shape(view: NodeView) -> Iterator[Precondition]:
    """Dims are not below 0."""
    for element in integers(view, 0):
        yield from least(element, 0, "a dim below 0", NEGATIVE)


def range_(view: NodeView) -> Iterator[Precondition]:
    """The step is not 0."""
    if view.tensor(2).may_have_data:
        for element in integers(view, 2):
            if is_known(element) and element.constant is None:
                yield NotZero(element, const(1), "a step of 0", "can not be zero")


def concat(view: NodeView) -> Iterator[Precondition]:
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
            yield from most(dim, largest, "indices of a larger dim than the data", says)


def scatter_nd(view: NodeView) -> Iterator[Precondition]:
    """Updates have the indices' dims less the last, then the data's that it does not index."""
    dims, indices, updates = view.dims(0), view.dims(1), view.dims(2)
    depth = indices[-1].constant if indices else None
    if depth is None:
        return
    for left, right in zip(updates, (*indices[:-1], *dims[depth:]), strict=False):
        yield from same(left, right, "the dims of updates and of what they replace", "updates tensor should have shape")


def top_k(view: NodeView) -> Iterator[Precondition]:
    """K is not below 0, and not above the dim."""
    dims = view.dims()
    if view.opset < 10:
        count = const(view.attr("k", 1))
    else:
        (count,) = integers(view, 1)
    dim = dims[view.axis(view.attr("axis", -1), len(dims))]
    yield from least(count, 0, "k below 0", "must not be negative")
    yield from most(count, dim, "k is larger than the axis", "k argument")


def split(view: NodeView) -> Iterator[Precondition]:
    """The parts are as long as the whole."""
    dims, count = view.dims(), len(view.node.outputs)
    dim = dims[view.axis(view.attr("axis", 0), len(dims))]
    if not is_known(dim):
        return
    sizes = view.attr("split", ()) if view.opset < 13 else None
    if view.opset >= 13 and view.has(1):
        given = integers(view, 1)
    elif sizes:
        given = [const(size) for size in sizes]
    elif view.opset < 18:
        if dim.constant is None:
            yield Multiple(dim, count, "a dim to be split evenly", "cannot be split evenly")
        return
    else:
        parts = view.attr("num_outputs", count)
        yield from least(dim, parts, f"a dim to be split in {parts}", "Invalid num_outputs value")
        return
    yield from same(sum(given, const(0)), dim, "the sum of the parts and the whole", "split")


def squeeze(view: NodeView) -> Iterator[Precondition]:
    """Dims that are squeezed are 1."""
    dims = view.dims()
    for axis in view.axes(1, 13) or []:
        yield from same(dims[view.axis(axis, len(dims))], const(1), "a dim that is squeezed and 1", "must be 1 instead")


def slice_(view: NodeView) -> Iterator[Precondition]:
    """A bound that is meant to count from the front does not count from the end."""
    if view.opset < 10 or not view.tensor(1).may_have_data or not view.tensor(2).may_have_data:
        return
    dims, starts, ends = view.dims(), integers(view, 1), integers(view, 2)
    axes = view.numbers(3) if view.has(3) else list(range(len(starts)))
    steps = view.numbers(4) if view.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        may_turn = any(bound.constant is None and lower(bound) < 0 <= upper(bound) for bound in (start, end))
        if may_turn and step == 1 and all(map(is_known, (start, end, *dims))):
            yield Sliced(dims, view.axis(axis, len(dims)), start, end)


def resize(view: NodeView) -> Iterator[Precondition]:
    """A dim is resized to 0 if and only if it is 0."""
    if view.opset < 11 or not view.has(3) or view.tensor(3).dims == (const(0),):
        return
    dims = view.dims()
    axes = [view.axis(axis, len(dims)) for axis in view.attr("axes", ()) or range(len(dims))]
    for axis, size in zip(axes, integers(view, 3), strict=False):
        if is_known(size) and is_known(dims[axis]) and size != dims[axis]:
            if lower(size) < 1:
                yield NotZero(size, dims[axis], "a dim is resized to 0", "should be greater than 0")
            if lower(dims[axis]) < 1:
                yield NotZero(dims[axis], size, "nothing is resized", "Cannot scale 0")


def pad(view: NodeView) -> Iterator[Precondition]:
    """No dim is cut below 0, and there are enough elements to reflect."""
    if view.opset < 11:
        return
    dims, pads, mode = view.dims(), integers(view, 1), view.attr("mode", "constant")
    axes = list(range(len(dims)))
    if view.opset >= 18 and view.has(3):
        axes = [view.axis(axis, len(dims)) for axis in view.numbers(3)]
    for position, axis in enumerate(axes):
        around = pads[position], pads[position + len(axes)]
        yield from least(dims[axis] + around[0] + around[1], 0, "a dim that is cut", "must be >= 0")
        for width in around if mode == "reflect" else ():
            yield from most(width, dims[axis] - 1, "padding that reflects more than the axis has", "reflect")
        if mode == "edge" and around != (const(0), const(0)):
            yield from least(dims[axis], 1, "no edge to pad with", "'edge' mode")


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
    "Reshape": reshape,
    "Expand": expand,
    "Tile": tile,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Concat": concat,
    "GatherElements": gather_elements,
    "ScatterElements": gather_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Split": split,
    "Squeeze": squeeze,
    "Slice": slice_,
    "Resize": resize,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": depth_to_space,
}
