"""The result of a check for equivalence: of each output whether it is proven, and by which axioms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from graphkit.shapes import Expr

__all__ = ["GRADES", "Equivalence", "Exactness", "ExprPair", "OutputProof"]

Exactness = Literal["bit for bit", "up to the sign of zeros", "up to rounding", "assuming finite values"]
GRADES: tuple[str, ...] = get_args(Exactness)  # the most exact first

ExprPair = tuple[Expr, Expr]  # of the original and of the rewritten model


@dataclass(frozen=True)
class OutputProof:
    """The result for one output.

    Attributes:
        exactness: How exactly it is equal, "" where that is unknown.
        axioms: The axioms that either normal form took.
        reason: Why it is unknown, "" where it is proven.
        differing: Dims and integers of the first terms that differ, where these are other expressions.
    """

    name: str
    verdict: Literal["proven", "unknown"]
    exactness: Exactness | Literal[""] = ""
    axioms: tuple[str, ...] = ()
    reason: str = ""
    differing: tuple[ExprPair, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: proven {self.exactness}" if self.verdict == "proven" else f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Equivalence:
    """Whether a rewritten model gives the outputs of an original, wherever that runs.

    Attributes:
        outputs: One entry for each output of the rewritten model.
        used: How often each axiom was used, in both models together.
        conditions: The sizes that the proof is about, such as `batch >= 1`.
        terms: How many distinct terms both models have.
        shared_dims: Which dims of the inputs it takes for one size, in clauses.
    """

    outputs: tuple[OutputProof, ...]
    used: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    terms: int = 0
    shared_dims: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether all outputs are proven."""
        return bool(self.outputs) and all(output.verdict == "proven" for output in self.outputs)

    @property
    def proven(self) -> tuple[OutputProof, ...]:
        """The outputs that are proven."""
        return tuple(output for output in self.outputs if output.verdict == "proven")

    @property
    def strength(self) -> tuple[int, int]:
        """How much is proven: of how many outputs, and how exactly."""
        return len(self.proven), -max((GRADES.index(output.exactness) for output in self.proven), default=0)

    @property
    def differing(self) -> tuple[ExprPair, ...]:
        """The dims and integers that differ first, of all outputs, each pair once."""
        return tuple(dict.fromkeys(pair for output in self.outputs for pair in output.differing))

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs))
