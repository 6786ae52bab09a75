"""Ways to draw the elements of a run's inputs: usual ones, or those at the edges of their dtypes and roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["BY_ROW", "NAMES", "USUAL", "Draw", "Kind", "Padding"]

Kind = Literal["usual", "edges", "extremes", "not finite"]
Padding = Literal["full", "right", "left", "holes", "empty"]
BY_ROW: tuple[Padding, ...] = ("left", "right", "holes", "full")


@dataclass(frozen=True)
class Draw:
    """How the elements of a run are drawn.

    Attributes:
        kind: Usual elements; small ones where operators change their behaviour, and ties; the largest and the smallest
            of a dtype; NaN and infinities.
        padding: Of the rows of masks, of which the last one counts for all rows that follow.
        number: Of the draw: which special tokens stand where, and which edges come first.
        overridden: Whether inputs with a default are fed something else.
        only: The one input that gets edges, "" for all that may.
        divides: Whether integers among the edges may be 0 and -1, which end a process that divides by them.
    """

    kind: Kind = "usual"
    padding: tuple[Padding, ...] = ("full", "right")
    number: int = 0
    overridden: bool = False
    only: str = ""
    divides: bool = True

    @classmethod
    def usual(cls, number: int) -> Draw:
        """Return usual elements, with masks whose padding differs from run to run; the first prompt has none."""
        start = number % len(BY_ROW)
        return cls(padding=("full", *BY_ROW) if not number else (*BY_ROW[start:], *BY_ROW[:start]), number=number)

    def milder(self, inputs: Sequence[str]) -> Iterator[Draw]:
        """Yield milder draws for a model that fails: no divisors of 0, then edges of one input after the other."""
        yield self
        if self.kind == "usual":
            return
        yield replace(self, divides=False)
        if len(inputs) > 1:
            yield from (replace(self, divides=False, only=name) for name in inputs)

    def row(self, index: int) -> Padding:
        """Return the padding of a row of a mask."""
        return self.padding[min(index, len(self.padding) - 1)]


NAMES: Mapping[Kind, str] = {"edges": "edge values", "extremes": "extreme values", "not finite": "NaN and infinities"}
USUAL = Draw()
