"""In what terms may be loose: equal up to the sign of zeros, or up to rounding, beside the exact ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.axioms import Axiom, Exactness
from graphkit.verify.equivalence.continuity import is_continuous, is_indifferent
from graphkit.verify.equivalence.rounding import ROUNDING_AXIOMS
from graphkit.verify.equivalence.zeros import ZERO_AXIOMS, is_blind, is_faithful

__all__ = ["ROUNDING", "ZEROS", "Looseness"]


@dataclass(frozen=True)
class Looseness:
    """How loose terms may differ, and what reads them.

    Attributes:
        axioms: Equalities of loose terms.
        is_blind: Whether an operator gives the same bits for a loose input.
        is_faithful: Whether it gives a loose output for a loose input; any other one reads exact terms.
    """

    exactness: Exactness
    axioms: tuple[Axiom, ...]
    is_blind: Callable[[Application, int], bool]
    is_faithful: Callable[[Application, int], bool]


ZEROS = Looseness("up to the sign of zeros", ZERO_AXIOMS, is_blind, is_faithful)
ROUNDING = Looseness("up to rounding", ROUNDING_AXIOMS, is_indifferent, is_continuous)
