"""Axioms of operators that write into a tensor: the result is past, new and rest, joined.

This is all that is needed of a state in slots: behind the slots in use come the new ones, and then what nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ops.tensor import Dims
from graphkit.shapes import Expr, const, upper
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.movement import Movement, is_within
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = ["count_up", "is_count", "shift_count", "write_box", "write_slots"]

ZERO, ONE = const(0), const(1)


def count_up(app: Application) -> Result:
    """Know a Range by steps of 1 by its first element and its length."""
    found = [None if arg is None else app.elements_of(arg) for arg in app.args]
    if app.dims is None or len(app.dims) != 1 or any(each is None or len(each) != 1 for each in found):
        return "where it starts or ends is not known"
    start, _, step = (each[0] for each in found if each is not None)
    if step != 1:
        return "it has steps other than 1"
    return app.tools.terms.make("Count", (app.dtype, start, app.dims[0]), (), app.dtype, app.dims)


def shift_count(app: Application) -> Result:
    """Add a number to a Range that counts up from another one, in whatever shape it is."""
    for term, other in ((app.arg(0), app.arg(1)), (app.arg(1), app.arg(0))):
        if term is None or other is None or term.dims is None or app.dims is None or other.dtype != term.dtype:
            continue
        line = without_reshape(term)
        if line is None or line.dims is None or (start := is_count(line)) is None:
            continue
        if (number := app.elements_of(other)) is None or len(number) != 1:
            continue
        made = app.tools.terms.make("Count", (app.dtype, start + number[0], line.dims[0]), (), app.dtype, line.dims)
        return app.tools.movement.reshape(made, app.dims)
    return None


def is_count(term: Term) -> Expr | None:
    """Return where a list starts that counts up by 1, None for any other term; a single number is such a list."""
    if term.op != "Count" or term.dims is None or len(term.dims) != 1:
        return None
    start = term.attributes[1]
    assert isinstance(start, Expr)
    return start


def write_box(app: Application) -> Result:
    """Write a box: along each axis that is indexed, the indices count up from where the first element goes."""
    data, indices, updates = app.arg(0), app.arg(1), app.arg(2)
    if data is None or indices is None or updates is None or not data.dims or not indices.dims or not updates.dims:
        return "some dims are not known"
    if app.attr("reduction", "none") != "none":
        return "it reduces"
    grid, count = indices.dims[:-1], indices.dims[-1].constant
    if count is None or count != len(grid) or updates.dims != (*grid, *data.dims[count:]):
        return "it writes no box"
    parts = _index_parts(app, indices, grid)
    if parts is None:
        return "its indices are not joined of one for each axis"
    starts = list[Expr]()
    for axis, part in enumerate(parts):
        start = _start_along(app, part, axis)
        if start is None:
            return f"its indices along axis {axis} do not count up"
        starts.append(start + data.dims[axis] if upper(start + grid[axis]) <= 0 else start)
    return _write_box(app, data, updates, list(zip(starts, grid, strict=True)))


def _index_parts(app: Application, indices: Term, grid: Dims) -> list[Term] | None:
    """Return the indices along each axis."""
    move, constants = app.tools.movement, app.tools.constants
    if len(grid) == 1:
        return [move.reshape(indices, grid)]
    if indices.is_constant:
        array = constants.array(indices)
        if array is None:
            return None
        return [constants.of_array(np.ascontiguousarray(array[..., axis]), indices.dtype) for axis in range(len(grid))]
    joined = move.joined(indices)
    if joined is None or [part.dims for part in joined[1]] != [(*grid, ONE)] * len(grid):
        return None
    return [move.reshape(part, grid) for part in joined[1]]


def _start_along(app: Application, term: Term, axis: int) -> Expr | None:
    """Return where a tensor starts that counts up by 1 along an axis, and is the same along all others."""
    assert term.dims is not None
    source = app.tools.movement.unexpanded(term)
    dims = source.dims
    if dims is None or any(dim != (term.dims[axis] if each == axis else 1) for each, dim in enumerate(dims)):
        return None
    return _line_start(app, app.tools.movement.reshape(source, (term.dims[axis],)))


def _line_start(app: Application, line: Term) -> Expr | None:
    """Return where a list of indices starts that counts up by 1."""
    elements = app.elements_of(line)
    if elements is None:
        return is_count(line)
    counts = bool(elements) and all(each == elements[0] + at for at, each in enumerate(elements))
    return elements[0] if counts else None


def write_slots(app: Application) -> Result:
    """Write along an axis, in all rows from the same place on."""
    data, updates = app.arg(0), app.arg(1)
    if data is None or updates is None or data.dims is None or updates.dims is None:
        return "some dims are not known"
    axis = app.axis(app.attr("axis", -2), len(data.dims))
    if axis is None or not axis or app.attr("mode", "linear") != "linear":
        return "it writes in a circle"
    starts = (ZERO,) if app.arg(2) is None else _repeated_dims(app)
    if starts is None or any(start != starts[0] for start in starts):
        return "where it writes is not the same in all rows"
    others = [(*each[:axis], *each[axis + 1 :]) for each in (data.dims, updates.dims)]
    return (
        _write_along_axis(app, data, updates, axis, starts[0])
        if others[0] == others[1]
        else "its dims are not those written"
    )


def _repeated_dims(app: Application) -> tuple[Expr, ...] | None:
    term = app.arg(2)
    assert term is not None
    return app.elements_of(app.tools.movement.unexpanded(term))


def _write_along_axis(app: Application, data: Term, updates: Term, axis: int, start: Expr) -> Result:
    assert data.dims is not None
    assert updates.dims is not None
    whole = [(ZERO, dim) for dim in data.dims[:axis]]
    return _write_box(app, data, updates, [*whole, (start, updates.dims[axis])])


def _write_box(app: Application, data: Term, updates: Term, box: Sequence[tuple[Expr, Expr]]) -> Result:
    """Return data with a box in it, given where it starts and how long it is along each of the first axes."""
    assert data.dims is not None
    if any(not is_within(start, length, dim) for (start, length), dim in zip(box, data.dims, strict=False)):
        return "whether it writes within depends on sizes"
    parts = [(axis, start, length) for axis, (start, length) in enumerate(box) if length != data.dims[axis]]
    return _parts_around(app.tools.movement, data, updates, parts)


def _parts_around(move: Movement, data: Term, updates: Term, parts: Sequence[tuple[int, Expr, Expr]]) -> Term:
    """Return the parts before the box, the box and those behind it, joined axis by axis, the first outermost."""
    if not parts:
        return updates
    (axis, start, length), *rest = parts
    assert data.dims is not None
    end, dim = start + length, data.dims[axis]
    inner = _parts_around(move, move.slice(data, axis, start, length), updates, rest)
    before, behind = move.slice(data, axis, ZERO, start), move.slice(data, axis, end, dim - end)
    return move.concat([before, inner, behind], axis, data.dims)
