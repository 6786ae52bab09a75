"""Preconditions on several inputs of a node, that they broadcast or can be concatenated, and helpers of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.shapes import Expr, Relation, is_known, lower
from graphkit.shapes.constraints.precondition import Ints, Precondition, Related, Violation, failing, listed, pair
from graphkit.shapes.node_view import NodeView
from graphkit.shapes.tensor import Dims

__all__ = ["Broadcast", "Concatenated", "PreconditionRule", "broadcast", "integers", "least", "most", "same"]

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


PreconditionRule = Callable[[NodeView], Iterator[Precondition]]
BROADCAST = "broadcast"


def least(expr: Expr, number: int, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that an expression is at least a number, unless it always is."""
    if is_known(expr) and lower(expr) < number and expr.constant is None:
        yield Related(Relation.at_least(expr, number), what, says)


def same(left: Expr, right: Expr, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that two dims are equal, unless they always are."""
    if left != right and is_known(left) and is_known(right):
        yield Related(Relation.equal(left, right), what, says)


def most(expr: Expr, limit: Expr, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that an expression is at most another one, unless it always is."""
    if is_known(expr) and is_known(limit) and lower(limit - expr) < 0:
        yield Related(Relation.at_most(expr, limit), what, says)


def integers(view: NodeView, index: int) -> list[Expr]:
    """Return the elements of an integer input.

    Raises:
        UnknownError: The elements are not known.
    """
    return [Expr.of(element) for element in view.values(index) if isinstance(element, (int, Expr))]


def broadcast(shapes: Sequence[Dims], says: str = BROADCAST) -> Iterator[Precondition]:
    """Yield the preconditions that dims broadcast."""
    if all(dims == shapes[0] for dims in shapes[1:]):
        return
    for place in range(1, max(map(len, shapes), default=0) + 1):
        found = dict.fromkeys(dims[-place] for dims in shapes if len(dims) >= place)
        sizes = tuple(dim for dim in found if dim != 1)
        if len(sizes) > 1 and all(map(is_known, sizes)):
            yield Broadcast(sizes, says)
