"""Typical sizes of the symbols in a model's input dims, at which costs are told where nobody gives sizes.

A sequence of 128 tokens, or one token after a past of 128; images of 224 by 224; a second of audio; graphs of 128
nodes and 512 edges; a batch of 1. Where the model has relations between its dims, or bounds of them, or tables that
end, the nearest sizes at which it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphkit.analysis.costs.told_sizes import told_sizes
from graphkit.model import Model
from graphkit.shapes import DimSpec, Relation, Shapes, symbol
from graphkit.shapes.constraints.collect_preconditions import collect
from graphkit.shapes.constraints.evaluate_constraints import Constraint
from graphkit.shapes.constraints.legal_sizes import LegalSizes, legal_sizes, nearest
from graphkit.shapes.constraints.symbol_sizes import Role

__all__ = ["TYPICAL", "TypicalSizes"]

TYPICAL: Mapping[Role, int] = {
    "batch": 1,
    "sequence": 128,
    "past": 128,
    "encoder": 128,
    "channels": 3,
    "space": 224,
    "other": 128,
}


class TypicalSizes:
    """Sizes for the symbols that a spec leaves open; `wish` says others than the typical ones, by role.

    Attributes:
        sizes: A size for each.
        over: The first symbol that the spec gives both bounds of, None if there is none.
    """

    def __init__(self, model: Model, spec: DimSpec, shapes: Shapes, wish: Mapping[Role, int] = {}) -> None:
        told = told_sizes(shapes)
        self.legal = _preferring_powers(legal_sizes(model, spec, shapes=shapes), told)
        self.wish = _wish(self.legal, wish, told)
        self.sizes = _runnable(self.legal, shapes, self.wish) or next(self.legal.near(self.wish), self.wish)
        ends = {name: (low, high) for name, (low, high) in spec.bounds.items() if low is not None and high is not None}
        self.over = next((name for name in ends if name in self.sizes), None)
        self.ends = ends.get(self.over or "", (0, 0))

    def curve(self, most: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield sizes of the symbol, both bounds and the powers of two between, with those of the others there."""
        low, high = self.ends
        powers = [1 << exponent for exponent in range(most) if low < 1 << exponent < high]
        for size in sorted({low, *powers, high}) if self.over is not None else ():
            yield size, self._at(self.over or "", size)

    def _at(self, name: str, size: int) -> dict[str, int]:
        """Return legal sizes near the typical ones with one symbol fixed."""
        variables = tuple(
            replace(variable, low=size, high=size) if variable.name == name else variable
            for variable in self.legal.variables
        )
        wish = {**self.sizes, name: size}
        return next(replace(self.legal, variables=variables).near(wish), wish)


def _preferring_powers(legal: LegalSizes, told: Mapping[str, int]) -> LegalSizes:
    """Return legal sizes where symbols try the next power of two after their own size: strides divide it."""
    powers = {name: 1 << (size - 1).bit_length() for name, size in told.items()}
    variables = (
        replace(variable, preferred=(powers[variable.name],)) if variable.name in powers else variable
        for variable in legal.variables
    )
    return replace(legal, variables=tuple(variables))


def _runnable(legal: LegalSizes, shapes: Shapes, wish: Mapping[str, int]) -> dict[str, int] | None:
    """Return the nearest legal sizes at which every node runs, None where none are found; images are square if may be.

    Bodies may not run at all, so that at last only nodes of the main graph are looked at.
    """
    shared = [place for place in collect(shapes) if not place.precondition.is_guess]
    every = [place.precondition for place in shared]
    main = [place.precondition for place in shared if place.scope is shapes.model.graph]
    space = [symbol(variable.name) for variable in legal.variables if variable.role == "space"]
    square = [Relation.equal(space[0], other) for other in space[1:]]
    spanning = [
        Relation.equal(total, legal.past + legal.tokens) for total in legal.totals if legal.past and legal.tokens
    ]
    for more in ((*square, *spanning, *every), every, main):
        constraints: list[Constraint] = [*legal.relations, *more]
        if found := next(nearest(legal.variables, constraints, wish), None):
            return found
    return None


def _wish(legal: LegalSizes, wish: Mapping[Role, int], told: Mapping[str, int]) -> dict[str, int]:
    sequence = TYPICAL["sequence"] if legal.past is None or wish.get("past") == 0 else 1
    by_role = {**TYPICAL, "sequence": sequence, **wish}
    by_role["total"] = by_role["sequence"] + (0 if legal.past is None else by_role["past"])
    sizes = {
        variable.name: by_role[variable.role]
        if variable.role in wish
        else told.get(variable.name, by_role[variable.role])
        for variable in legal.variables
    }
    return {
        variable.name: int(min(max(sizes[variable.name], variable.low), variable.high)) for variable in legal.variables
    }
