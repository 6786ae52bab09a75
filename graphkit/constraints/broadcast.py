"""Preconditions on several inputs of a node: that they broadcast, that they can be concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.constraints.precondition import Ints, Precondition, Violation, failing, listed, pair
from graphkit.shapes import Expr

__all__ = ["Broadcast", "Concatenated"]

SAYS = "Non concat axis dimensions must match"


@dataclass(frozen=True)
class Broadcast(Precondition):
    """Dims of one axis broadcast: all that are not 1 are equal."""

    exprs_: tuple[Expr, ...]
    says: str

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.exprs_

    def outcome(self, values: Sequence[Ints]) -> Ints:
        largest = np.where(values[0] == 1, values[-1], values[0])
        for value in values:
            largest = np.where(value != 1, value, largest)
        clash = np.zeros(largest.shape, np.bool_)
        for value in values:
            clash |= (value != 1) & (value != largest)
        return failing(clash)

    def violation(self, values: Sequence[int]) -> Violation:
        return Violation(f"dims that do not broadcast: {pair(self.exprs, values)}", self.says)

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return tuple((self.exprs_[0], other) for other in self.exprs_[1:])


@dataclass(frozen=True)
class Concatenated(Precondition):
    """The inputs of a Concat that have elements have equal dims, except along the axis."""

    shapes: tuple[tuple[Expr, ...], ...]
    axis: int

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return tuple(dim for dims in self.shapes for dim in dims)

    def outcome(self, values: Sequence[Ints]) -> Ints:
        rank = len(self.shapes[0])
        rows = [values[start : start + rank] for start in range(0, len(values), rank)]
        clash = np.zeros(values[0].shape, np.bool_)
        for index in range(rank):
            if index == self.axis:
                continue
            common = np.full(values[0].shape, -1, np.int64)
            for row in rows:
                full = np.all(np.stack([*row]) != 0, axis=0)
                clash |= full & (common >= 0) & (row[index] != common)
                common = np.where(full, row[index], common)
        return failing(clash)

    def violation(self, values: Sequence[int]) -> Violation:
        rank = len(self.shapes[0])
        rows = [list(values[start : start + rank]) for start in range(0, len(values), rank)]
        return Violation(
            f"shapes that cannot be joined at axis {self.axis}: {listed([str(row) for row in rows])}", SAYS
        )

    @property
    def told(self) -> tuple[Expr, ...]:
        return tuple(dim for pair in self.equalities() for dim in pair if pair[0] != pair[1])

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        first, *others = self.shapes
        return tuple((first[i], dims[i]) for dims in others for i in range(len(first)) if i != self.axis)
