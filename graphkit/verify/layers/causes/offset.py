"""A constant offset: the same difference in every row, such as a bias that was lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.graph.view import Value
from graphkit.verify.layers.causes.case import Case, Cause, Part

__all__ = ["offset"]


def offset(case: Case) -> Iterator[Cause]:
    """Yield the constant offset that explains a difference, with the initializer that has these values."""
    if case.x.shape != case.y.shape or not case.x.size:
        return
    mean = float(case.difference.mean())
    if (case.is_integer or case.x.size > 1) and case.explains(case.difference - mean):
        yield _even(case, mean)
        return
    for axis in reversed(range(case.x.ndim)):
        column = case.difference.mean(axis=tuple(other for other in range(case.x.ndim) if other != axis), keepdims=True)
        if not case.explains(case.difference - column):
            continue
        named = _named(case, column.ravel())
        if named is not None:
            yield named
            return
        if column.size < case.x.size:
            text = f"constant offset: along axis {axis}, B differs from A by the same numbers everywhere"
            yield Cause("offset", f"{text}, up to {case.largest:.4g}; no initializer of either has them.")
            return


def _even(case: Case, mean: float) -> Cause:
    if case.is_integer:
        more = f"{abs(mean):g} {'less' if mean > 0 else 'more'}"
        close = "; positions, or a length, are off by one" if abs(mean) == 1 else ""
        return Cause("offset", f"constant offset: B has {more} than A in every element{close}.")
    named = _named(case, np.array([mean]))
    if named is not None:
        return named
    more = f"{abs(mean):.4g} {'less' if mean > 0 else 'more'}"
    return Cause(
        "offset", f"constant offset: B has {more} than A in every element; no initializer of either has this value."
    )


def _named(case: Case, column: np.ndarray) -> Cause | None:
    """Return the cause where a constant of one of the models has these values."""
    for part, sign, name in ((case.a, 1.0, "A"), (case.b, -1.0, "B"), (case.b, 1.0, "B"), (case.a, -1.0, "A")):
        found = None if part is None else _equal(part, sign * column, case)
        if found is not None:
            return Cause("offset", f"constant offset: {_told(case, found, column, sign, name)}.", found.name)
    return None


def _equal(part: Part, column: np.ndarray, case: Case) -> Value | None:
    return next((value for value, array in part.floats(column.size) if case.explains(array.ravel() - column)), None)


def _told(case: Case, found: Value, column: np.ndarray, sign: float, owner: str) -> str:
    more, less = (("A", case.a), ("B", case.b)) if sign > 0 else (("B", case.b), ("A", case.a))
    if owner != more[0]:  # it is known only where it is missing
        return f"{more[0]} has the initializer '{found.name}' of {owner} once more than {owner}"
    same = None if less[1] is None else _equal(less[1], sign * column, case)  # of the same name may be other numbers
    if same is not None and same.name == found.name:
        return f"{more[0]} adds the initializer '{found.name}' twice, {less[0]} once"
    return f"{more[0]} adds its initializer '{found.name}', and {less[0]} does not"
