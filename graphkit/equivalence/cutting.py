"""Axioms of operators that cut, pad and write: Slice, Split, SequenceAt, Gather, Pad, Range, ScatterND."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.equivalence.application import Application, Result
from graphkit.equivalence.movement import Movement, is_within
from graphkit.equivalence.terms import Term, without_reshape
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import dims_product
from graphkit.shapes import Expr, const, lower, upper
from graphkit.symbolic.algebra import maximum, minimum

ZERO, ONE = const(0), const(1)
Ends = tuple[Expr, Expr]  # how many elements come before an axis and behind it

# Cuts


def cut_axes(app: Application) -> Result:
    """Know a cut by steps of 1 by its first element and its length."""
    term, dims, bounds = app.operand(0), app.operand(0).shape, _slice_bounds(app)
    if any(step != 1 for _, _, step in bounds):
        return "it has steps other than 1"
    for axis, start, _ in bounds:
        dim, length = dims[axis], app.shape[axis]
        first = ZERO if length == dim else _count_from_front(start, dim)
        if first is None or not is_within(first, length, dim):
            return f"whether it starts in {dim} depends on sizes"
        term = app.tools.movement.slice(term, axis, first, length)
    return term


def cut_strides(app: Application) -> Result:
    """Know a cut by steps above 0 by its first element, its length and its step, axis by axis."""
    term, dims, move = app.operand(0), app.operand(0).shape, app.tools.movement
    for axis, start, step in sorted(_slice_bounds(app), key=lambda each: each[0]):
        dim, length = dims[axis], app.shape[axis]
        first = start if lower(start) >= 0 else _count_from_front(start, dim)
        if first is None or step < 1:
            return "it goes back, or where it starts depends on sizes"
        if step > 1:
            term = move.cut_axis(term, axis, "Strided", (first, length, step))
        elif is_within(first, length, dim):
            term = move.slice(term, axis, first, length)
        else:
            return f"whether it starts in {dim} depends on sizes"
    return term


def _slice_bounds(app: Application) -> list[tuple[int, Expr, int]]:
    """Return the axes of a Slice, each once, with its start and step."""
    starts, _ = app.elements(1), app.elements(2)
    axes = range(len(starts)) if app.arg(3) is None else app.numbers(3)
    steps = [1] * len(starts) if app.arg(4) is None else app.numbers(4)
    if not len(starts) == len(axes) == len(steps):
        raise UnknownError("it has other starts or steps than axes")
    return list(zip(app.front_axes(axes, len(app.operand(0).shape)), starts, steps, strict=True))


def _count_from_front(start: Expr, dim: Expr) -> Expr | None:
    """Return an index counted from the front, None if its sign is not known; one before the first is the first."""
    if lower(start) >= 0:
        return start if upper(start - dim) <= 0 else dim if lower(start - dim) >= 0 else None
    if upper(start) >= 0:
        return None
    counted = dim + start
    return counted if lower(counted) >= 0 else ZERO if upper(counted) <= 0 else None


def cut_part(app: Application) -> Result:
    """A part of a Split is a Slice, where its parts are known."""
    source, count = app.operand(0), len(app.node.outputs)
    axis = app.axis(app.attr("axis", 0), len(source.shape))
    listed, size = app.listed_numbers("split"), source.shape[axis].constant
    if listed is None and (size is None or size % count):
        return "its parts are not known"
    listed = [(size or 0) // count] * count if listed is None else listed
    start = const(sum(listed[: app.index]))
    if app.index >= len(listed) or not is_within(start, const(listed[app.index]), source.shape[axis]):
        return "its parts may not lie in the axis"
    return app.tools.movement.slice(source, axis, start, const(listed[app.index]))


def gather_one(app: Application) -> Result:
    """One index takes a slice; numbers that count up, in whatever shape, do too."""
    source, indices = app.operand(0), app.operand(1)
    axis = app.axis(app.attr("axis", 0), len(source.shape))
    dim, found = source.shape[axis], app.elements_of(indices)
    start, length = None, ONE
    if found and all(each == found[0] + at for at, each in enumerate(found)):
        start, length = _count_from_front(found[0], dim), const(len(found))
    elif (first := first_of_count(indices)) is not None and lower(first) >= 0:
        start, length = first, there_of(dim, first, indices.shape[0])
    if start is None or not is_within(start, length, dim) or lower(dim - start) < 1:
        return None
    return app.tools.movement.reshape(app.tools.movement.slice(source, axis, start, length), app.shape)


def there_of(dim: Expr, start: Expr, length: Expr) -> Expr:
    """Return how many elements an axis has from one on, up to a number: what looks that many up runs where all are."""
    return maximum(ZERO, minimum(start + length, dim) - start)


def take_element(app: Application) -> Result:
    """An element of a SplitToSequence is a Slice."""
    sequence = app.operand(0)
    if sequence.op != "SplitToSequence" or not sequence.args or (source := sequence.args[0]) is None:
        return None
    known: Sequence[tuple[Any, ...]] = sequence.attributes[:-1]  # type: ignore[assignment]
    if any(len(each) < 3 or each[0] not in ("", "axis", "keepdims") for each in known):
        return None
    axis = app.axis({each[0]: each[2] for each in known}.get("axis", 0), len(source.shape))
    split = sequence.args[1] if len(sequence.args) > 1 else None
    sizes = (ONE,) if split is None else app.elements_of(split)
    index, *more = app.numbers(1) or [-1]
    if sizes is None or index < 0 or more:
        return "its parts are not known"
    if split is None or split.dims == ():
        start, length = sizes[0] * index, sizes[0]
    elif index < len(sizes):
        start, length = sum(sizes[:index], ZERO), sizes[index]
    else:
        return "it has fewer parts"
    if not is_within(start, length, source.shape[axis]) or lower(length) < 1:
        return "its parts may not lie in the axis"
    return app.tools.movement.reshape(app.tools.movement.slice(source, axis, start, length), app.shape)


# Pads


def pad_axes(app: Application) -> Result:
    """Know a Pad by its mode, what it adds along each axis, and what it fills in; one by nothing gives its input."""
    source, around = app.operand(0), app.elements(1)
    if all(each == 0 for each in around):
        return source
    dims, inner, sides = list[Expr](), list[Expr](), list[Ends | None]()
    for dim, whole, each in zip(source.shape, app.shape, ends_by_axis(app), strict=True):
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
    return move.reshape(app.tools.terms.make("Pad", key, args, app.dtype, tuple(dims)), app.shape)


def ends_by_axis(app: Application) -> list[Ends | None]:
    """Return what a Pad adds along each axis, None for nothing."""
    around, rank = app.elements(1), len(app.operand(0).shape)
    axes = app.front_axes(range(rank) if app.arg(3) is None else app.numbers(3), rank)
    if len(around) != 2 * len(axes) or any(term and len(term.shape) != 1 for term in (app.arg(1), app.arg(3))):
        raise UnknownError("which axes it pads is not known")
    found: list[Ends | None] = [None] * rank
    for axis, *ends in zip(axes, around[: len(axes)], around[len(axes) :], strict=True):
        found[axis] = (ends[0], ends[1]) if any(end != 0 for end in ends) else None
    return found


def find_padding(move: Movement, term: Term) -> tuple[Term, list[tuple[int, int]]] | None:
    """Return what a Pad sets zeros around, and how many before and behind each axis; None for another term."""
    made = without_reshape(term)
    if made is None or made.op != "Pad" or any(made.args[1:]) or made.attributes[0] != "constant":
        return None
    source, sides = made.args[0], made.attributes[1]
    assert source is not None
    assert isinstance(sides, tuple)
    dims, found = list(term.shape), [(0, 0)] * len(term.shape)
    for at, each in enumerate(sides):
        if each is None:
            continue
        before = dims_product(made.shape[:at])
        axes = (axis for axis, dim in enumerate(term.shape) if dim == made.shape[at])
        axis = next((axis for axis in axes if dims_product(term.shape[:axis]) == before), None)
        numbers = [end.constant for end in each]
        if axis is None or any(number is None or number < 0 for number in numbers):
            return None
        dims[axis], found[axis] = source.shape[at], (numbers[0] or 0, numbers[1] or 0)
    return move.reshape(source, tuple(dims)), found


# Counts, and what is written in place: the result is past, new and rest, joined. This is all that is needed of a state
# in slots: behind the slots in use come the new ones, and then what nobody reads.


def count_up(app: Application) -> Result:
    """Know a Range by steps of 1 by its first element and its length."""
    start, *more = (each for index in range(3) for each in app.elements(index))
    if len(app.shape) != 1 or len(more) != 2 or more[1] != 1:
        return "it has steps other than 1"
    return app.tools.terms.make("Count", (app.dtype, start, app.shape[0]), (), app.dtype, app.shape)


def shift_count(app: Application) -> Result:
    """Add a number to a Range that counts up from another one, in whatever shape it is."""
    for term, other in ((app.operand(0), app.operand(1)), (app.operand(1), app.operand(0))):
        line, number = without_reshape(term), app.elements_of(other)
        if line is None or other.dtype != term.dtype or number is None or len(number) != 1:
            continue
        if (start := first_of_count(line)) is not None:
            key = (app.dtype, start + number[0], line.shape[0])
            return app.tools.movement.reshape(app.tools.terms.make("Count", key, (), app.dtype, line.shape), app.shape)
    return None


def first_of_count(term: Term) -> Expr | None:
    """Return where a list starts that counts up by 1, None for any other term."""
    if term.op != "Count":
        return None
    start = term.attributes[1]
    assert isinstance(start, Expr)
    return start


def write_box(app: Application) -> Result:
    """Write a box: along each axis that is indexed, the indices count up from where the first element goes."""
    data, indices, updates = (app.operand(index) for index in range(3))
    if app.attr("reduction", "none") != "none":
        return "it reduces"
    if not data.shape or not indices.shape or not updates.shape:
        return None
    grid, count = indices.shape[:-1], indices.shape[-1].constant
    if count is None or count != len(grid) or updates.dims != (*grid, *data.shape[count:]):
        return "it writes no box"
    if (parts := _index_parts(app, indices, count)) is None:
        return "its indices are not joined of one for each axis"
    box = list[tuple[Expr, Expr]]()
    for axis, (part, length) in enumerate(zip(parts, grid, strict=True)):
        if (start := _start_along(app, part, axis)) is None:
            return f"its indices along axis {axis} do not count up"
        box.append((start + data.shape[axis] if upper(start + length) <= 0 else start, length))
    return _write_into(app, data, updates, box)


def read_box(app: Application) -> Result:
    """Read a box as cuts that end where its data does: it runs where these are all of the box, or this is empty."""
    if isinstance(found := find_read(app), str):
        return found
    term, move = app.operand(0), app.tools.movement
    for axis, (start, there, length) in enumerate(found):
        part = move.slice(term, axis, start, there)
        term = move.reshape(part, (*term.shape[:axis], length, *term.shape[axis + 1 :]))
    return move.reshape(term, app.shape)


def find_read(app: Application) -> list[tuple[Expr, Expr, Expr]] | str:
    """Return where a GatherND of a box starts along each axis, how much is there and how much it reads, or why not."""
    data, indices = app.operand(0), app.operand(1)
    if not indices.shape or (count := indices.shape[-1].constant) is None or app.attr("batch_dims", 0):
        return "how many axes its indices are for is not known"
    grid, parts, last = indices.shape[:-1], _index_parts(app, indices, count), -1
    if parts is None:
        return "its indices are not joined of one for each axis"
    box = list[tuple[Expr, Expr, Expr]]()
    for axis, (part, dim) in enumerate(zip(parts, data.shape, strict=False)):
        source = app.tools.movement.without_expand(part)
        long = [at for at, size in enumerate(source.shape) if size != 1]
        own = long[0] if len(long) == 1 else last
        start = _start_along(app, part, own) if long else next(iter(app.elements_of(source) or ()), None)
        length = grid[own] if long else ONE
        if start is None or len(long) > 1 or (long and own <= last):
            return f"its indices along axis {axis} do not count up"
        start, last = start + dim if upper(start + length) <= 0 and lower(length) > 0 else start, own
        if lower(start) < 0 or not is_within(start, there := there_of(dim, start, length), dim):
            return f"whether it starts in {dim} depends on sizes"
        box.append((start, there, length))
    if dims_product([length for *_, length in box]) != dims_product(grid):
        return "its indices name an element more than once"
    return box


def write_range(app: Application) -> Result:
    """Write a box of elements, whose indices count up along the axis and are the same along all others."""
    data, indices, updates = (app.operand(index) for index in range(3))
    axis = app.axis(app.attr("axis", 0), len(data.shape))
    if app.attr("reduction", "none") != "none":
        return "it reduces"
    if not indices.shape or indices.dims != updates.dims or len(indices.shape) != len(data.shape):
        return "its indices are not those of all it writes"
    line, constants = indices, app.tools.constants
    if (array := constants.array(indices) if indices.is_constant else None) is not None and array.size:
        first = array[tuple(slice(None) if each == axis else slice(1) for each in range(array.ndim))]
        line = constants.of_array(first.copy(), indices.dtype) if (array == first).all() else indices
    if (start := _start_along(app, line, axis)) is None:
        return f"its indices along axis {axis} do not count up"
    start += data.shape[axis] if upper(start + indices.shape[axis]) <= 0 else 0
    box = [(start if each == axis else ZERO, length) for each, length in enumerate(indices.shape)]
    return _write_into(app, data, updates, box)


def _index_parts(app: Application, indices: Term, count: int) -> list[Term] | None:
    move, constants, grid = app.tools.movement, app.tools.constants, indices.shape[:-1]
    if count == 1:
        return [move.reshape(indices, grid)]
    if indices.is_constant:
        if (array := constants.array(indices)) is None:
            return None
        return [constants.of_array(np.ascontiguousarray(array[..., axis]), indices.dtype) for axis in range(count)]
    joined = move.joined_parts(indices)
    if joined is None or [part.dims for part in joined[1]] != [(*grid, ONE)] * count:
        return None
    return [move.reshape(part, grid) for part in joined[1]]


def _start_along(app: Application, term: Term, axis: int) -> Expr | None:
    """Return where a tensor starts that counts up by 1 along an axis, and is the same along all others."""
    source = app.tools.movement.without_expand(term)
    if any(dim != (term.shape[axis] if each == axis else 1) for each, dim in enumerate(source.shape)):
        return None
    line = app.tools.movement.reshape(source, (term.shape[axis],))
    if (elements := app.elements_of(line)) is None:
        return first_of_count(line)
    counts = bool(elements) and all(each == elements[0] + at for at, each in enumerate(elements))
    return elements[0] if counts else None


def write_slots(app: Application) -> Result:
    """Write along an axis, in all rows from the same place on."""
    data, updates = app.operand(0), app.operand(1)
    axis = app.axis(app.attr("axis", -2), len(data.shape))
    if not axis or app.attr("mode", "linear") != "linear":
        return "it writes in a circle"
    starts = (ZERO,) if app.arg(2) is None else app.elements_of(app.tools.movement.without_expand(app.operand(2)))
    if not starts or any(start != starts[0] for start in starts):
        return "where it writes is not the same in all rows"
    if len({(*dims[:axis], *dims[axis + 1 :]) for dims in (data.shape, updates.shape)}) > 1:
        return "its dims are not those written"
    whole = [(ZERO, dim) for dim in data.shape[:axis]]
    return _write_into(app, data, updates, [*whole, (starts[0], updates.shape[axis])])


WRITES = {"ScatterElements": write_range, "ScatterND": write_box, "TensorScatter": write_slots}


def _write_into(app: Application, data: Term, updates: Term, box: Sequence[tuple[Expr, Expr]]) -> Result:
    """Return data with a box in it, given where it starts and how long it is along each of the first axes."""
    if any(not is_within(start, length, dim) for (start, length), dim in zip(box, data.shape, strict=False)):
        return "whether it writes within depends on sizes"
    parts = [(axis, start, length) for axis, (start, length) in enumerate(box) if length != data.shape[axis]]
    return _parts_around(app.tools.movement, data, updates, parts)


def _parts_around(move: Movement, data: Term, updates: Term, parts: Sequence[tuple[int, Expr, Expr]]) -> Term:
    """Return the parts before the box, the box and those behind it, joined axis by axis, the first outermost."""
    if not parts:
        return updates
    (axis, start, length), *rest = parts
    end, dim = start + length, data.shape[axis]
    inner = _parts_around(move, move.slice(data, axis, start, length), updates, rest)
    before, behind = move.slice(data, axis, ZERO, start), move.slice(data, axis, end, dim - end)
    return move.concat([before, inner, behind], axis, data.shape)
