"""The precondition of Slice: bounds do not change their sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.constraints.precondition import FINE, WRONG, Ints, Precondition, Violation, named
from graphkit.shapes import Expr

__all__ = ["Sliced"]

MAX_BOUND = 1 << 40  # exporters write INT64_MAX for "to the end"


@dataclass(frozen=True)
class Sliced(Precondition):
    """Bounds along one axis count from the front, as meant. Below 0 they would count from the end."""

    dims: tuple[Expr, ...]
    axis: int
    start: Expr
    end: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.start, self.end, *self.dims

    @property
    def told(self) -> tuple[Expr, ...]:
        return self.start, self.end

    @property
    def is_guess(self) -> bool:
        return True

    def outcome(self, values: Sequence[Ints]) -> Ints:
        start, end, size = values[0], values[1], values[2 + self.axis]
        below = ((self.start.constant is None) & (start < 0)) | ((self.end.constant is None) & (end < 0))
        meant = np.maximum(np.clip(end, 0, size) - np.clip(start, 0, size), 0)
        given = np.maximum(_from_front(end, size) - _from_front(start, size), 0)
        return np.where(below & (meant != given), WRONG, FINE)

    def violation(self, values: Sequence[int]) -> Violation:
        start, end, size = values[0], values[1], values[2 + self.axis]
        one, value = ("start", start) if start < 0 and self.start.constant is None else ("end", end)
        expr = self.start if one == "start" else self.end
        bounds = [int(_from_front(np.int64(bound), np.int64(size))) for bound in (start, end)]
        shape = list(values[2:])
        shape[self.axis] = max(bounds[1] - bounds[0], 0)
        left = f"{shape[self.axis]} of {size} are left"
        return Violation(f"{one} {named(expr, value)}: it counts from the end, {left}", "", tuple(shape))


def _from_front(bound: Ints, size: Ints) -> Ints:
    bound = np.clip(bound, -MAX_BOUND, MAX_BOUND)
    return np.clip(np.where(bound < 0, bound + size, bound), 0, size)
