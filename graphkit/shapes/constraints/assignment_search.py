"""Search for legal sizes: assignments that meet all constraints, nearest to a wish first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.shapes import Relation
from graphkit.shapes.constraints.evaluate import Assignment, Constraint, Values, column
from graphkit.shapes.constraints.precondition import Related
from graphkit.shapes.constraints.symbol_sizes import Role
from graphkit.shapes.expr_limits import TooComplexError

__all__ = ["Variable", "nearest"]

MAX_VISITS = 20_000  # sizes looked at to find a legal assignment
MAX_DOMAIN = 256
CHUNKS = (1, 8)  # how many sizes are evaluated together at first: the wished one is usually legal


@dataclass(frozen=True)
class Variable:
    """A symbol to choose a size for.

    Attributes:
        low, high: Its least and its largest size, perhaps infinite.
        preferred: Sizes to try right after the one wished for.
    """

    name: str
    role: Role
    low: int
    high: float
    preferred: tuple[int, ...] = ()


def nearest(
    variables: Sequence[Variable], constraints: Sequence[Constraint], wish: Assignment, visits: int = MAX_VISITS
) -> Iterator[dict[str, int]]:
    """Return legal assignments: the sizes of each symbol from the wished one outwards, the last symbol varying first.

    Symbols that follow from others come last. Constraints on other symbols are ignored. The search ends after so many
    visits of sizes.
    """
    return _Search(variables, constraints, wish, visits).assignments() if variables else iter([{}])


class _Search:
    def __init__(
        self, variables: Sequence[Variable], constraints: Sequence[Constraint], wish: Assignment, visits: int
    ) -> None:
        self.variables, self.wish, self.visits = variables, wish, visits
        place = {variable.name: index for index, variable in enumerate(variables)}
        self.levels: list[list[Constraint]] = [[] for _ in variables]  # what can be tested once a symbol is chosen
        for constraint in constraints:
            if constraint.symbols and constraint.symbols <= place.keys():
                self.levels[max(map(place.__getitem__, constraint.symbols))].append(constraint)
        self.named = [{name for constraint in level for name in constraint.symbols} for level in self.levels]

    def assignments(self) -> Iterator[dict[str, int]]:
        """Yield assignments depth first; if no size of a symbol will do, the symbols that it depends on change."""
        names = [variable.name for variable in self.variables]
        chosen: dict[str, int] = {}
        open_sizes, guilty = [self._met(0, chosen)], [{*self.named[0]}]  # of each symbol that is being chosen
        while open_sizes:
            name = names[len(open_sizes) - 1]
            size = next(open_sizes[-1], None)
            if size is None:
                self._go_back(open_sizes, guilty, names)
                continue
            chosen[name] = size
            if len(open_sizes) < len(names):
                open_sizes.append(self._met(len(open_sizes), chosen))
                guilty.append({*self.named[len(guilty)]})
                continue
            yield dict(chosen)
            guilty[-1].update(names)

    @staticmethod
    def _go_back(open_sizes: list[Iterator[int]], guilty: list[set[str]], names: Sequence[str]) -> None:
        """Go back to the last symbol whose size may make a difference."""
        open_sizes.pop()
        blamed = guilty.pop() - {names[len(guilty)]}
        while open_sizes and names[len(open_sizes) - 1] not in blamed:
            open_sizes.pop()
            guilty.pop()
        if guilty:
            guilty[-1] |= blamed

    def _met(self, depth: int, chosen: Mapping[str, int]) -> Iterator[int]:
        """Yield the sizes of a symbol at which every constraint of its level is met."""
        variable, constraints = self.variables[depth], self.levels[depth]
        before = {name: chosen[name] for name in self.named[depth] - {variable.name}}
        forced = [_forced(constraint, before) for constraint in constraints]
        only = dict.fromkeys(size for size in forced if size is not None)
        if len(only) == 1:  # the equalities that force it are met
            constraints = [one for one, size in zip(constraints, forced, strict=True) if size is None]
        sizes = iter(only) if only else _domain(variable, self.wish.get(variable.name))
        for count in itertools.chain(CHUNKS, itertools.repeat(MAX_DOMAIN)):
            chunk = list(itertools.islice(sizes, count))
            if not chunk:
                return
            for size, is_met in zip(chunk, _are_met(constraints, before, variable.name, chunk), strict=True):
                self.visits -= 1
                if self.visits < 0:
                    return
                if is_met and variable.low <= size <= variable.high:
                    yield size


def _are_met(constraints: Sequence[Constraint], before: Assignment, name: str, sizes: Sequence[int]) -> list[bool]:
    """Return at which sizes of a symbol all constraints are met, given the sizes of other symbols."""
    if not constraints:
        return [True] * len(sizes)
    values = Values({**{other: column([size]) for other, size in before.items()}, name: column(sizes)})
    met: list[bool] = np.logical_and.reduce([values.is_met(constraint) for constraint in constraints]).tolist()
    return met


def _forced(constraint: Constraint, chosen: Mapping[str, int]) -> int | None:
    relation = constraint.relation if isinstance(constraint, Related) else constraint
    if not isinstance(relation, Relation) or relation.relation != "==":
        return None
    try:
        return relation.substitute(chosen).forced()
    except (TooComplexError, ZeroDivisionError):
        return None


def _domain(variable: Variable, wish: int | None) -> Iterator[int]:
    """Yield sizes by their distance from the wished one; for images, multiples of powers of two come before others.

    A wish that is too small counts from the least size upwards; for images, one that is too large counts downwards.
    """
    low, wished, most, is_free = variable.low, wish or 0, variable.high, variable.role in ("space", "other")
    high = int(min(most, max(2 * low, low + MAX_DOMAIN)))
    if wished < low:
        wished = low + max(wished, 0)
    start = int(most - (wished - most) % (most - low + 1) if is_free and wished > most else min(wished, most))
    ranges = (range(-(-low // step) * step, high + 1, step) for step in ((32, 16, 8, 1) if is_free else (1,)))
    around = (size for sizes in ranges for size in sorted(sizes, key=lambda size: abs(size - start)))
    seen = set[int]()
    for size in itertools.chain((start,), variable.preferred, around):
        if size not in seen:
            seen.add(size)
            yield size
