"""Reshapes by their dims: the shape that gives some dims, and the leading dims that are merged into one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.ops.tensor import Dims
from graphkit.shapes import Expr, const, lower
from graphkit.symbolic.expr import TooComplexError

MAX_SIZE = (1 << 63) - 1  # of a dim; what a model computes may be larger, which no tensor holds


def reshape_spec(before: Sequence[Expr], after: Dims) -> tuple[int, ...] | None:
    """Return the constant shape with which a Reshape gives these dims, None where there is none.

    It is right at all legal dims, an empty tensor included, without `allowzero`.
    """
    spec = open_spec(before, after)
    numbers = tuple(size for size in spec if isinstance(size, int))
    return numbers if len(numbers) == len(spec) else None


def open_spec(before: Sequence[Expr], after: Dims) -> tuple[Expr | int, ...]:
    """Return the plainest shape with which a Reshape gives these dims: numbers, 0 to copy, -1, else expressions."""
    spec: list[Expr | int] = []
    for position, dim in enumerate(after):
        size = dim.constant
        if size is not None and 0 < size <= MAX_SIZE:
            spec.append(size)
        else:
            spec.append(0 if position < len(before) and before[position] == dim else dim)
    unclear = [position for position, size in enumerate(spec) if isinstance(size, Expr)]
    unclear.sort(key=lambda position: -len(str(after[position])))
    for position in unclear:
        try:
            others = math.prod(after[:position] + after[position + 1 :], start=const(1))
        except TooComplexError:
            continue
        if lower(others) >= 1:
            spec[position] = -1
            break
    return tuple(spec)


def merged_dims(before: Dims, after: Dims) -> Dims | None:
    """Return the leading dims that a Reshape merges into the first one, None where it does something else."""
    more = len(before) - len(after)
    if not after or more < 1 or before[more + 1 :] != after[1:]:
        return None
    try:
        return before[: more + 1] if math.prod(before[: more + 1], start=const(1)) == after[0] else None
    except TooComplexError:
        return None
