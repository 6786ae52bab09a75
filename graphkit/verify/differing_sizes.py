"""Sizes at which terms that normal forms leave open have other dims or integers: a fault would show there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphkit.shapes import Expr
from graphkit.shapes.constraints.evaluate_constraints import Assignment, Values, size_column
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable

__all__ = ["differing_sizes"]

LARGEST = 4096  # up to which all sizes are tried
POWERS = range(13, 27)  # of 2, beside which sizes are tried too
MAX_PAIRS = 8
MAX_BASES = 2


def differing_sizes(
    pairs: Sequence[tuple[Expr, Expr]], legal: LegalSizes, usual: Sequence[Mapping[str, int]]
) -> Iterator[dict[str, int]]:
    """Yield legal sizes at which a pair of expressions differs that is equal at all usual sizes.

    One dim at a time is another than at a usual size: the least at which the pair differs.
    """
    names = {variable.name for variable in legal.variables} | legal.fixed.keys()
    for left, right in [pair for pair in pairs if pair[0].symbols | pair[1].symbols <= names][:MAX_PAIRS]:
        if any(_differing_sizes(left, right, {**legal.fixed, **dims}).any() for dims in usual):
            continue
        for dims in usual[:MAX_BASES]:
            for variable in legal.variables:
                if variable.name in left.symbols | right.symbols:
                    yield from _least_sizes(left, right, legal, dims, variable)


def _least_sizes(
    left: Expr, right: Expr, legal: LegalSizes, dims: Mapping[str, int], variable: Variable
) -> Iterator[dict[str, int]]:
    """Yield legal sizes with the least size of a dim at which two expressions differ, if there is one."""
    near = [(1 << power) + step for power in POWERS for step in (-1, 0, 1)]
    sizes = np.array([*range(variable.low, LARGEST + 1), *(size for size in near if size >= variable.low)])
    fixed = {**legal.fixed, **dims}
    places = np.flatnonzero(_differing_sizes(left, right, fixed, {variable.name: sizes}))
    if not places.size:
        return
    same, odd = (int(sizes[max(place, 0)]) for place in (places[0] - 1, places[0]))
    while odd - same > 1:  # between those that were tried
        middle = (same + odd) // 2
        is_odd = _differing_sizes(left, right, {**fixed, variable.name: middle}).any()
        same, odd = (same, middle) if is_odd else (middle, odd)
    sizes_near = next(iter(legal.near({**dims, variable.name: odd})), None)
    if sizes_near is not None and _differing_sizes(left, right, {**legal.fixed, **sizes_near}).any():
        yield sizes_near


def _differing_sizes(left: Expr, right: Expr, dims: Assignment, varied: Mapping[str, np.ndarray] = {}) -> np.ndarray:
    """Return at which sizes two expressions differ."""
    values = Values({**{name: size_column([size]) for name, size in dims.items()}, **varied})
    return np.asarray(values.of(left) != values.of(right))
