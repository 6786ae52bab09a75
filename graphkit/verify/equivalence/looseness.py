"""How terms may be loose: up to the sign of zeros, to rounding, or to masks of scores, beside the exact ones."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.continuity import OF_OVERFLOWS, is_continuous, is_indifferent, obstacle
from graphkit.verify.equivalence.equivalence_result import GRADES, Exactness
from graphkit.verify.equivalence.finite import ASSUMPTIONS, FINITE_AXIOMS
from graphkit.verify.equivalence.finite import is_blind as is_softmax
from graphkit.verify.equivalence.finite import is_faithful as keeps_masked
from graphkit.verify.equivalence.rounding import ROUNDING_AXIOMS
from graphkit.verify.equivalence.zeros import CHOICES, EXTREMES, ZERO_AXIOMS, is_blind, is_faithful

__all__ = ["FINITE", "NO_OVERFLOW", "ROUNDING", "ZEROS", "Looseness", "loose_equalities"]

NO_OVERFLOW = "no overflow"  # where what overflows in one model, but not in the other, would tell them apart


@dataclass(frozen=True)
class Looseness:
    """How loose terms may differ, and which nodes may read them.

    Attributes:
        axioms: Equalities of loose terms.
        is_blind: Whether an operator gives the same bits for a loose input.
        is_faithful: Whether it gives a loose output for a loose input; any other one reads exact terms.
        assumptions: Equalities of exact terms, which hold as exactly as those of loose ones.
        is_output: Whether an output of the model may be loose.
        obstacle: Why an operator reads an exact term.
        overflowing: Operators among the blind ones that tell where something overflows, which loose terms leave out.
    """

    exactness: Exactness
    axioms: tuple[Axiom, ...]
    is_blind: Callable[[Application, int], bool]
    is_faithful: Callable[[Application, int], bool]
    assumptions: tuple[Axiom, ...] = ()
    is_output: bool = True
    obstacle: Callable[[Application, int], str] = lambda *_: ""
    overflowing: frozenset[str] = frozenset()

    def grade(self, axioms: Set[str]) -> Exactness:
        """Return how exactly two outputs are equal that have the same exact terms, by these axioms."""
        assumed = {NO_OVERFLOW} if self.is_output else {each.name for each in (*self.axioms, *self.assumptions)}
        return "bit for bit" if axioms.isdisjoint(assumed) else self.exactness


ZEROS = Looseness("up to the sign of zeros", ZERO_AXIOMS, is_blind, is_faithful)
ROUNDING = Looseness(
    "up to rounding",
    (*ROUNDING_AXIOMS, EXTREMES, CHOICES),
    is_indifferent,
    is_continuous,
    obstacle=obstacle,
    overflowing=OF_OVERFLOWS,
)
FINITE = Looseness(
    "assuming finite values", FINITE_AXIOMS, is_softmax, keeps_masked, assumptions=ASSUMPTIONS, is_output=False
)


def loose_equalities(exactness: str) -> frozenset[str]:
    """Return the names of the equalities that are not bit for bit, and no looser than that."""
    allowed = GRADES[: GRADES.index(exactness) + 1]
    return frozenset(
        axiom.name
        for looseness in (ZEROS, ROUNDING, FINITE)
        if looseness.exactness in allowed
        for axiom in (*looseness.axioms, *looseness.assumptions)
    )
