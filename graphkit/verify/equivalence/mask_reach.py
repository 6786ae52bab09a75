"""What masks scores, and by how much constants change those that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.operator_traits import names
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.terms import Term

__all__ = ["EVERY", "MASKED", "ONE", "SCALING", "counted", "is_scaled", "is_small", "masks"]

MASKED = -1000.0  # exp of it is 0, also in float64, and also where scores that count are some hundreds lower
# Between the largest and the least of such constants, all together: more would make masked scores count.
REACH = -MASKED / 2
DEPTH = 64  # nodes that are looked through for them
EVERY = names("Max Min Concat")
SCALING = names("Mul Div")
ONE = names("Cast Expand Identity Slice Squeeze Unsqueeze Reshape Transpose")  # whose elements are those of one input


class Reach(NamedTuple):
    """By how much constants change scores that count, at most and at least, and the largest number that masks."""

    most: float = 0.0
    least: float = 0.0
    masked: float = -np.inf

    def times(self, factor: float) -> Reach:
        """Return the reach of scores that are multiplied."""
        return Reach(*(each * factor for each in self))


UNKNOWN_REACH = Reach(np.inf, -np.inf, np.inf)


def is_small(app: Application, terms: Sequence[Term | None]) -> bool:
    """Whether constants change the sum of some scores by little beside what masks."""
    reach = _sum(app, terms, {})
    return reach.most - reach.least <= REACH


def is_scaled(app: Application) -> bool:
    """Whether a node multiplies scores by a number, and those that are masked stay so."""
    factor = _factor(app, app.node.operator, app.args)
    return factor is not None and _reach(app, app.args[factor[0]], {}).times(factor[1]).masked <= MASKED


def _factor(app: Application, op: str, terms: Sequence[Term | None]) -> tuple[int, float] | None:
    """Return which term is multiplied by a positive number, and that number."""
    for index, term in enumerate(terms if len(terms) == 2 else ()):
        if term is None or not term.is_constant or (op == "Div" and not index):
            continue
        array = app.tools.constants.array(term)
        if array is not None and array.size == 1 and 0 < (number := array.item()) < np.inf:
            return 1 - index, 1 / number if op == "Div" else number
    return None


def _sum(app: Application, terms: Sequence[Term | None], known: dict[Term, Reach], depth: int = 0) -> Reach:
    """Return the reach of the sum of terms."""
    found = [_reach(app, term, known, depth + 1) for term in terms if term is not None]
    most, least = sum(each.most for each in found), sum(each.least for each in found)
    return Reach(most, least, max((each.masked for each in found), default=-np.inf))


def _reach(app: Application, term: Term | None, known: dict[Term, Reach], depth: int = 0) -> Reach:
    """Return the reach of a term; `known` holds those that were looked at."""
    if depth > DEPTH or term is None:
        return UNKNOWN_REACH
    if term not in known:
        known[term] = UNKNOWN_REACH
        parts = term.args[1:] if term.op == "Where" else term.args[:1] if term.op in ONE else term.args
        if term.is_constant:
            known[term] = _reach_of_constant(app.tools.constants.array(term))
        elif term.op == "Add":
            known[term] = _sum(app, term.args, known, depth)
        elif term.op == "Mul" and (mask := counted(app, term.args)) is not None:
            known[term] = Reach(masked=mask[1])
        elif term.op in SCALING and (factor := _factor(app, term.op, term.args)) is not None:
            known[term] = _reach(app, term.args[factor[0]], known, depth + 1).times(factor[1])
        elif term.op in (*ONE, *EVERY, "Where"):
            found = [_reach(app, part, known, depth + 1) for part in parts]
            most, least, masked = zip(*found, strict=True)
            known[term] = Reach(max(most), min(least), max(masked))
        else:
            known[term] = Reach()
    return known[term]


def _reach_of_constant(array: np.ndarray | None) -> Reach:
    if array is None or np.isnan(array).any():
        return UNKNOWN_REACH
    counts = array[array > MASKED].astype(np.float64)
    masked = array[array <= MASKED].astype(np.float64)
    return Reach(float(counts.max(initial=0.0)), float(counts.min(initial=0.0)), float(masked.max(initial=-np.inf)))


def masks(app: Application, term: Term) -> bool:
    """Whether all elements of a term are one number that masks."""
    while term.op in ("Expand", "Reshape") and term.args[0] is not None:
        term = term.args[0]
    array = app.tools.constants.array(term) if term.is_constant and term.dtype in FLOATS else None
    return array is not None and bool(array.size) and bool((array <= MASKED).all())


def counted(app: Application, terms: Sequence[Term | None]) -> tuple[Term, float] | None:
    """Return what is multiplied by a number that masks, where it is a whole number, and that number."""
    for term, other in (terms, terms[::-1]) if len(terms) == 2 else ():
        if term is None or other is None or not masks(app, other) or not _is_whole(app, term):
            continue
        array = app.tools.constants.array(app.tools.movement.unexpanded(other))
        if array is not None and array.size == 1 and np.isfinite(array).all():  # 0 times infinity is no number
            return term, float(array.item())
    return None


def _is_whole(app: Application, term: Term | None, depth: int = 0) -> bool:
    """Whether all elements of a term are whole numbers."""
    if term is None or depth > DEPTH:
        return False
    if term.dtype in INTEGERS:
        return True
    if term.is_constant:
        array = app.tools.constants.array(term)
        return array is not None and bool(np.isfinite(array).all() and (array == np.rint(array)).all())
    parts = term.args[:1] if term.op in ONE else term.args if term.op in ("Add", "Sub", "Mul") else ()
    return bool(parts) and all(_is_whole(app, part, depth + 1) for part in parts)
