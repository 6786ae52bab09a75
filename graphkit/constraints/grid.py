"""The preconditions of a model, tested at many assignments at once."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.constraints.candidates import pools, ties_of
from graphkit.constraints.collect import SharedPrecondition
from graphkit.constraints.evaluate import Assignment, Constraint, Values
from graphkit.constraints.precondition import FINE, Bools, Ints
from graphkit.constraints.search import Variable, nearest
from graphkit.graph.view import Scope
from graphkit.shapes import Expr, Relation
from graphkit.shapes.symbols import Symbol

__all__ = ["Grid"]

MAX_VISITS = 4096  # sizes looked at for dims at which all is well
NAMED = (("batch", 2), ("channel", 3), ("height", 32), ("width", 32))  # what to begin with, else a little


class Grid:
    """The preconditions and symbols of a model.

    Attributes:
        shared: The preconditions, in the order in which their nodes run.
        least: The least sizes to begin with.
        ties: Symbols that follow from others if every node is to run.
    """

    def __init__(
        self,
        shared: Sequence[SharedPrecondition],
        symbols: Mapping[str, Symbol],
        least: Mapping[str, int] | None = None,
    ) -> None:
        self.least = least or {}
        preconditions = [one.precondition for one in shared]
        self.shared, self.symbols = shared, symbols
        self.ties = ties_of(preconditions, symbols)
        self.sizes = pools(preconditions, symbols, self.ties)

    def outcomes(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Ints:
        """Return the outcome of each precondition, or of each of those in `shared`, at each assignment."""
        values = Values.of_all(assignments)
        return np.stack([values.outcome(one.precondition) for one in shared or self.shared])

    def bad(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Bools:
        """Return which precondition is not met at which assignment."""
        result: Bools = self.outcomes(assignments, shared) != FINE
        return result

    def first(self, bad: Bools) -> Bools:
        """Return where each precondition is the first violated one of its scope and of the scopes around it."""
        result = np.zeros_like(bad)
        before: dict[Scope, Bools] = {}
        nothing = np.zeros(bad.shape[1], np.bool_)
        for index, one in enumerate(self.shared):
            earlier = nothing
            scope: Scope | None = one.scope
            while scope is not None:
                earlier = earlier | before.get(scope, nothing)
                scope = scope.parent
            result[index] = bad[index] & ~earlier
            before[one.scope] = before.get(one.scope, nothing) | bad[index]
        return result

    def base(self, count: int | None = None) -> dict[str, int] | None:
        """Return usual sizes that meet the first `count` preconditions, None if none are found."""
        free = [name for name in self.symbols if name not in self.ties]
        variables = [self._variable(name) for name in (*free, *self.ties)]
        follow = [Relation.equal(Expr.from_atom(self.symbols[name]), expr) for name, expr in self.ties.items()]
        constraints: list[Constraint] = [*follow, *(one.precondition for one in self.shared[:count])]
        wish = {name: self._guess(name) for name in self.symbols}
        found = next(nearest(variables, constraints, wish, MAX_VISITS), None)
        return None if found is None else {name: found[name] for name in self.symbols}

    def first_unmet(self) -> SharedPrecondition:
        """Return the first precondition that no assignment meets together with those before it, if there is no base."""
        met = bisect(range(1, len(self.shared)), False, key=lambda count: self.base(count) is None)
        return self.shared[met]

    def _variable(self, name: str) -> Variable:
        symbol = self.symbols[name]
        return Variable(name, "other", int(symbol.lower), symbol.upper, tuple(self.sizes[name]))

    def _guess(self, name: str) -> int:
        low, high = int(self.symbols[name].lower), self.symbols[name].upper
        wanted = next((size for part, size in NAMED if part in name), low and low + 2)
        return int(min(max(wanted, low, self.least.get(name, low)), high))
