"""Axioms of operators that cut, pad and write: Slice, Split, SequenceAt, Gather, Pad, Range, ScatterND."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.ops.tensor import Dims
from graphkit.shapes import Expr, const, lower, upper
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.movement import Movement, count_elements, is_within
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = [
    "count_up",
    "cut_axes",
    "cut_part",
    "cut_strides",
    "ends_by_axis",
    "find_padding",
    "gather_one",
    "pad_axes",
    "shift_count",
    "take_element",
    "write_box",
    "write_slots",
]

# Axioms of operators that write into a tensor: the result is past, new and rest, joined.
#
# This is all that is needed of a state in slots: behind the slots in use come the new ones, and then what nobody reads.


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


# Axioms of operators that cut and pad: Slice, Split, SequenceAt, a Gather by one index, and Pad.


UNKNOWN = "some dims are not known"
Ends = tuple[Expr, Expr]  # how many elements come before an axis and behind it


def cut_axes(app: Application) -> Result:
    """Know a cut by steps of 1 by its first element and its length."""
    source, bounds = app.arg(0), _slice_bounds(app)
    if isinstance(bounds, str) or source is None or source.dims is None or app.dims is None:
        return bounds if isinstance(bounds, str) else UNKNOWN
    if any(step != 1 for _, _, step in bounds):
        return "it has steps other than 1"
    term = source
    for axis, start, _ in bounds:
        dim, length = source.dims[axis], app.dims[axis]
        first = _count_from_front(start, dim)
        if length == dim:
            first = const(0)
        if first is None or not is_within(first, length, dim):
            return f"whether it starts in {dim} depends on sizes"
        term = app.tools.movement.slice(term, axis, first, length)
    return term


def cut_strides(app: Application) -> Result:
    """Know a cut by steps above 0 by its first element, its length and its step, axis by axis."""
    source, bounds = app.arg(0), _slice_bounds(app)
    if isinstance(bounds, str) or source is None or source.dims is None or app.dims is None:
        return bounds if isinstance(bounds, str) else UNKNOWN
    term, move = source, app.tools.movement
    for axis, start, step in sorted(bounds, key=lambda each: each[0]):
        dim, length = source.dims[axis], app.dims[axis]
        first = start if lower(start) >= 0 else _count_from_front(start, dim)
        if first is None or step < 1:
            return "it goes back, or where it starts depends on sizes"
        if step > 1:
            term = move.strided(term, axis, (first, length, step))
        elif is_within(first, length, dim):
            term = move.slice(term, axis, first, length)
        else:
            return f"whether it starts in {dim} depends on sizes"
    return term


def _slice_bounds(app: Application) -> list[tuple[int, Expr, int]] | str:
    """Return the axes of a Slice, each once, with its start and step, or the reason why they are not known."""
    source = app.arg(0)
    if source is None or source.dims is None:
        return UNKNOWN
    starts, ends, axes, steps = _slice_operands(app)
    if starts is None or ends is None:
        return "where it starts or ends is not known"
    rank = len(source.dims)
    listed = [app.axis(axis, rank) for axis in (range(len(starts)) if axes is None else axes)]
    chosen = [axis for axis in listed if axis is not None]
    if len(chosen) != len(starts) or len(listed) != len(starts) or len(set(chosen)) < len(chosen):
        return "its axes are not known"
    if steps is not None and len(steps) != len(chosen):
        return "it has other steps than axes"
    return list(zip(chosen, starts, steps or [1] * len(chosen), strict=True))


def _slice_operands(
    app: Application,
) -> tuple[Sequence[Expr] | None, Sequence[Expr] | None, list[int] | None, list[int] | None]:
    if app.node.scope.opset() < 10:
        starts, ends, axes = (app.attr(name, tuple) for name in ("starts", "ends", "axes"))
        as_exprs = [None if each is None else [const(number) for number in each] for each in (starts, ends)]
        return as_exprs[0], as_exprs[1], None if axes is None else list(axes), None
    known = [app.numbers(index) for index in (3, 4)]
    if any(app.arg(index) is not None and known[index - 3] is None for index in (3, 4)):
        return None, None, None, None
    return app.elements(1), app.elements(2), known[0], known[1]


def _count_from_front(start: Expr, dim: Expr) -> Expr | None:
    """Return an index counted from the front, None if its sign is not known; one before the first is the first."""
    if lower(start) >= 0:
        return start if upper(start - dim) <= 0 else dim if lower(start - dim) >= 0 else None
    if upper(start) >= 0:
        return None
    counted = dim + start
    return counted if lower(counted) >= 0 else const(0) if upper(counted) <= 0 else None


def cut_part(app: Application) -> Result:
    """A part of a Split is a Slice, where its parts are known."""
    source = app.arg(0)
    if source is None or source.dims is None or app.dims is None:
        return UNKNOWN
    axis = app.axis(app.attr("axis", 0), len(source.dims))
    if axis is None:
        return None
    listed = app.numbers(1) if app.arg(1) is not None else app.attr("split", tuple)
    if listed is None:
        size, count = source.dims[axis].constant, len(app.node.outputs)
        if app.arg(1) is not None or size is None or size % count:
            return "its parts are not known"
        listed = [size // count] * count
    start = const(sum(listed[: app.index]))
    if app.index >= len(listed) or not is_within(start, const(listed[app.index]), source.dims[axis]):
        return "its parts may not lie in the axis"
    return app.tools.movement.slice(source, axis, start, const(listed[app.index]))


def gather_one(app: Application) -> Result:
    """Gather by one index is a Slice; by numbers that count up, in whatever shape, one too."""
    source, indices = app.arg(0), app.arg(1)
    if source is None or indices is None or source.dims is None or app.dims is None:
        return UNKNOWN
    axis = app.axis(app.attr("axis", 0), len(source.dims))
    if axis is None:
        return None
    found = app.elements(1)
    start, length = None, const(1)
    if found is not None and len(found) == 1:
        start = _count_from_front(found[0], source.dims[axis])
    elif found and all(each == found[0] + at for at, each in enumerate(found)):
        start, length = _count_from_front(found[0], source.dims[axis]), const(len(found))
    elif (first := is_count(indices)) is not None:
        start, length = first, indices.dims[0] if indices.dims else length
    if start is None or not is_within(start, length, source.dims[axis]) or lower(source.dims[axis] - start) < 1:
        return None
    return app.tools.movement.reshape(app.tools.movement.slice(source, axis, start, length), app.dims)


def take_element(app: Application) -> Result:
    """An element of a SplitToSequence is a Slice."""
    sequence, index = app.arg(0), app.numbers(1)
    if sequence is None or sequence.op != "SplitToSequence" or not sequence.args:
        return None
    known: Sequence[tuple[Any, ...]] = sequence.attributes[:-1]  # type: ignore[assignment]
    if index is None or len(index) != 1 or app.dims is None or any(len(each) < 3 for each in known):
        return None
    source, attributes = sequence.args[0], {each[0]: each[2] for each in known}
    if source is None or source.dims is None or not attributes.keys() <= {"", "axis", "keepdims"}:
        return UNKNOWN
    axis = app.axis(attributes.get("axis", 0), len(source.dims))
    sizes = (
        app.elements_of(sequence.args[1]) if len(sequence.args) > 1 and sequence.args[1] is not None else (const(1),)
    )
    if axis is None or sizes is None or index[0] < 0:
        return "its parts are not known"
    is_one_size = len(sequence.args) < 2 or sequence.args[1] is None or sequence.args[1].dims == ()
    if not is_one_size and index[0] >= len(sizes):
        return "it has fewer parts"
    start = sizes[0] * index[0] if is_one_size else sum(sizes[: index[0]], const(0))
    length = sizes[0] if is_one_size else sizes[index[0]]
    if not is_within(start, length, source.dims[axis]) or lower(length) < 1:
        return "its parts may not lie in the axis"
    return app.tools.movement.reshape(app.tools.movement.slice(source, axis, start, length), app.dims)


def pad_axes(app: Application) -> Result:
    """Know a Pad by its mode, what it adds along each axis, and what it fills in; one by nothing gives its input."""
    source, around = app.arg(0), app.elements(1)
    if source is None or around is None:
        return "by how much it pads is not known"
    if all(each == 0 for each in around):
        return source
    if source.dims is None or app.dims is None:
        return UNKNOWN
    ends = ends_by_axis(app, around, len(source.dims))
    if ends is None:
        return "which axes it pads is not known"
    dims, inner, sides = list[Expr](), list[Expr](), list[Ends | None]()
    for dim, whole, each in zip(source.dims, app.dims, ends, strict=True):
        if each is None and (dim != whole or dim == 1):
            if dim != whole:
                return "its dims are not those of its input and what it adds"
        elif each is None and sides and sides[-1] is None:
            dims[-1], inner[-1] = dims[-1] * whole, inner[-1] * dim
        else:
            dims.append(whole)
            inner.append(dim)
            sides.append(each)
    move, key = app.tools.movement, (app.attr("mode", "constant"), tuple(sides))
    args = (move.reshape(source, tuple(inner)), *app.args[2:3])
    return move.reshape(app.tools.terms.make("Pad", key, args, app.dtype, tuple(dims)), app.dims)


def ends_by_axis(app: Application, around: Sequence[Expr], rank: int) -> list[Ends | None] | None:
    """Return what is added along each axis, None for nothing; None where the axes are not known."""
    if any(term is not None and len(term.dims or ()) != 1 for term in (app.arg(1), app.arg(3))):
        return None
    axes = list(range(rank)) if app.arg(3) is None else app.numbers(3)
    listed = [app.axis(axis, rank) for axis in axes or ()]
    if axes is None or None in listed or len({*listed}) < len(listed) or len(around) != 2 * len(listed):
        return None
    found: list[Ends | None] = [None] * rank
    for axis, ends in zip(listed, zip(around[: len(listed)], around[len(listed) :], strict=True), strict=True):
        assert axis is not None
        found[axis] = ends if any(end != 0 for end in ends) else None
    return found


def find_padding(move: Movement, term: Term) -> tuple[Term, list[tuple[int, int]]] | None:
    """Return what a Pad sets zeros around, and how many before and behind each axis; None for another term."""
    made = without_reshape(term)
    if made is None or made.op != "Pad" or made.dims is None or term.dims is None or any(made.args[1:]):
        return None
    mode, sides = made.attributes
    source = made.args[0]
    assert isinstance(sides, tuple)
    if mode != "constant" or source is None or source.dims is None:
        return None
    dims, found = list(term.dims), [(0, 0)] * len(term.dims)
    for at, each in enumerate(sides):
        if each is None:
            continue
        before = count_elements(made.dims[:at])
        axes = (axis for axis, dim in enumerate(term.dims) if dim == made.dims[at])
        axis = next((axis for axis in axes if count_elements(term.dims[:axis]) == before), None)
        numbers = [end.constant for end in each]
        if axis is None or any(number is None or number < 0 for number in numbers):
            return None
        dims[axis], found[axis] = source.dims[at], (numbers[0] or 0, numbers[1] or 0)
    return move.reshape(source, tuple(dims)), found
