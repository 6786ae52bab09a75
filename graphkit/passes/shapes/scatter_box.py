"""Find the box that a ScatterND or ScatterElements writes: one range along each axis of its data."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.types import shape_text
from graphkit.graph.view import Node, Value
from graphkit.shapes import Expr, Shapes, const, lower, upper
from graphkit.shapes.tensor import Dims
from graphkit.shapes.value_range import Affine
from graphkit.shapes.value_range_analysis import ValueRangeAnalysis

__all__ = ["Box", "NoBoxError", "find_box"]


class NoBoxError(Exception):
    """Why a node writes no box, or one that is not known."""


@dataclass(frozen=True)
class Box:
    """Where a Scatter writes, once each place, in the order of its updates.

    Attributes:
        starts: First place, by axis of the data; never negative where the model runs.
        sizes: How many places, by axis of the data; equal to the dims of the updates but for dims of 1.
    """

    dims: Dims
    starts: Dims
    sizes: Dims

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes along which it is not certainly all of the data."""
        return tuple(
            axis for axis, dim in enumerate(self.dims) if (self.starts[axis], self.sizes[axis]) != (const(0), dim)
        )

    def may_be_empty(self, but: int = -1) -> bool:
        """Whether it may have no places, for another axis than one."""
        return any(lower(size) < 1 for axis, size in enumerate(self.sizes) if axis != but)


def find_box(shapes: Shapes, ranges: ValueRangeAnalysis, node: Node) -> Box:
    """Return where a Scatter without reduction writes.

    Raises:
        NoBoxError: Not a box, or something is not known.
    """
    data, indices, updates = (node.input(index) for index in range(3))
    if data is None or indices is None or updates is None:
        raise NoBoxError("an input is missing")
    reduction = node.attr("reduction", "none")
    if reduction not in ("", "none"):
        raise NoBoxError(f"its reduction is '{reduction}'")
    dims = _dims(shapes, data)
    parts = _parts_of_elements(ranges, node, len(dims)) if node.is_op("ScatterElements") else ranges.components(indices)
    if not parts or len(parts) > len(dims):
        raise NoBoxError("its indices are not known to be consecutive")
    grid, rest = parts[0].dims, dims[len(parts) :]
    if _dims(shapes, updates) != grid + rest:
        raise NoBoxError(f"its updates are {shapes[updates]}, its indices are for {shape_text(grid + rest)}")
    axes = _coordinates(parts, grid)
    sizes = tuple(const(1) if axis is None else grid[axis] for axis in axes) + rest
    starts = tuple(part.start for part in parts) + (const(0),) * len(rest)
    return _counted_from_zero(Box(dims, starts, sizes))


def _dims(shapes: Shapes, value: Value) -> Dims:
    dims = shapes[value].dims
    if dims is None:
        raise NoBoxError(f"the rank of '{value.name}' is not known: {shapes.reason(value)}")
    return dims


def _parts_of_elements(ranges: ValueRangeAnalysis, node: Node, rank: int) -> tuple[Affine, ...] | None:
    """Return the index along the axis of a ScatterElements, along the others the coordinate of the update itself."""
    along = ranges.affine(node.input(1))
    axis = node.attr("axis", 0)
    if along is None or axis is None or len(along.dims) != rank or not -rank <= axis < rank:
        return None
    units = [[const(int(one == other)) for other in range(rank)] for one in range(rank)]
    own = [Affine.of(along.dims, const(0), unit) for unit in units]
    own[axis] = along
    return tuple(own)


def _coordinates(parts: tuple[Affine, ...], grid: Dims) -> list[int | None]:
    """Return along which axis of the updates each index goes up by one, None where it stays the same."""
    found: list[int | None] = []
    for part in parts:
        moving = [axis for axis, stride in enumerate(part.strides) if stride != 0]
        if len(moving) > 1 or any(part.strides[axis] != 1 for axis in moving):
            raise NoBoxError("its indices do not go up by one along one axis")
        found += moving or [None]
    used = [axis for axis in found if axis is not None]
    if used != sorted(set(used)):
        raise NoBoxError("its indices are in another order than its updates")
    if any(dim != 1 and axis not in used for axis, dim in enumerate(grid)):
        raise NoBoxError("it may write an element more than once")
    return found


def _counted_from_zero(box: Box) -> Box:
    """Return the box with negative indices, which count from the end, made positive."""
    starts: list[Expr] = []
    for start, size, dim in zip(box.starts, box.sizes, box.dims, strict=True):
        if lower(start) < 0:
            if upper(start + size) > 0 or box.may_be_empty():  # an empty box is legal wherever it is
                raise NoBoxError("its indices may be negative")
            start = start + dim
        starts.append(start)
    return Box(box.dims, tuple(starts), box.sizes)
