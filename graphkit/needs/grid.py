"""The needs of a model, asked at many dims at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from graphkit.graph.view import Scope
from graphkit.needs.collect import Needed
from graphkit.needs.dims import Assignment, Values, candidates, columns_of, pools, tied, ties_of
from graphkit.needs.need import FINE, Ints
from graphkit.shapes.symbols import Symbol

__all__ = ["Bools", "Grid"]

Bools = npt.NDArray[np.bool_]
MAX_ROUNDS = 6  # in the search for dims at which all is well
NAMED = (("batch", 2), ("channel", 3), ("height", 32), ("width", 32))  # what to begin with, else a little


class Grid:
    """Needs by dims.

    Attributes:
        needed: The needs in the order in which they are asked.
        symbols: Of the inputs' dims.
        least: Sizes to begin with, at least.
        ties: Symbols that follow from others where all is to run.
        sizes: What to try of each symbol.
    """

    def __init__(
        self, needed: Sequence[Needed], symbols: Mapping[str, Symbol], least: Mapping[str, int] | None = None
    ) -> None:
        self.least = least or {}
        needs = [one.need for one in needed]
        self.needed, self.symbols = needed, symbols
        self.ties = ties_of(needs, symbols)
        self.sizes = pools(needs, symbols, self.ties)

    def outcomes(self, assignments: Sequence[Mapping[str, int]]) -> Ints:
        """Return the outcome of each need at each assignment."""
        values = Values(columns_of(assignments))
        return np.stack([values.outcome(one.need) for one in self.needed])

    def bad(self, assignments: Sequence[Mapping[str, int]]) -> Bools:
        """Return which need is not met at which assignment."""
        result: Bools = self.outcomes(assignments) != FINE
        return result

    def first(self, bad: Bools) -> Bools:
        """Return where each need is the first that is not met: of its scope, and of those around it."""
        result = np.zeros_like(bad)
        before: dict[Scope, Bools] = {}
        nothing = np.zeros(bad.shape[1], np.bool_)
        for index, one in enumerate(self.needed):
            earlier = nothing
            scope: Scope | None = one.scope
            while scope is not None:
                earlier = earlier | before.get(scope, nothing)
                scope = scope.parent
            result[index] = bad[index] & ~earlier
            before[one.scope] = before.get(one.scope, nothing) | bad[index]
        return result

    def base(self) -> Assignment:
        """Return the assignment at which the fewest needs are not met; none, if one was found."""
        best = tied({name: self._guess(name) for name in self.symbols}, self.ties)
        for _ in range(MAX_ROUNDS):
            tried = candidates(best, self.sizes, self.ties, self.symbols) or [best]
            counts = self.bad(tried).sum(axis=0)
            fewest = int(np.argmin(counts))
            best = tried[fewest]
            if not counts[fewest] or counts[fewest] >= counts[0]:
                break
        return best

    def _guess(self, name: str) -> int:
        low, high = int(self.symbols[name].lower), self.symbols[name].upper
        wanted = next((size for part, size in NAMED if part in name), low and low + 2)
        return int(min(max(wanted, low, self.least.get(name, low)), high))
