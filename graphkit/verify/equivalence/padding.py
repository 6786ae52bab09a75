"""A Pad on as few axes as it needs: those that it leaves as they are become one between two that it does not."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.shapes import Expr
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.movement import Movement, product
from graphkit.verify.equivalence.terms import Term, unreshaped

__all__ = ["ends_by_axis", "pad", "padded"]

Ends = tuple[Expr, Expr]  # how many elements come before an axis and behind it


def pad(app: Application) -> Result:
    """Know a Pad by its mode, what it adds along each axis, and what it fills in; one by nothing gives its input."""
    source, around = app.arg(0), app.elements(1)
    if source is None or around is None:
        return "by how much it pads is not known"
    if all(each == 0 for each in around):
        return source
    if source.dims is None or app.dims is None:
        return "some dims are not known"
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


def padded(move: Movement, term: Term) -> tuple[Term, list[tuple[int, int]]] | None:
    """Return what a Pad sets zeros around, and how many before and behind each axis; None for another term."""
    made = unreshaped(term)
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
        before = product(made.dims[:at])
        axes = (axis for axis, dim in enumerate(term.dims) if dim == made.dims[at])
        axis = next((axis for axis in axes if product(term.dims[:axis]) == before), None)
        numbers = [end.constant for end in each]
        if axis is None or any(number is None or number < 0 for number in numbers):
            return None
        dims[axis], found[axis] = source.dims[at], (numbers[0] or 0, numbers[1] or 0)
    return move.reshape(source, tuple(dims)), found
