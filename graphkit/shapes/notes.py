"""The findings of one pass over a model's nodes, besides the shapes themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphkit.graph.view import Scope
from graphkit.shapes.expr import Expr, symbol
from graphkit.shapes.relations import Requirement

__all__ = ["Finding", "Notes"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that cannot hold at any legal dims.

    Attributes:
        body: The innermost body around the node that may not run, such as a branch chosen at run time: this body cannot
            run, though the model may. None if the node runs whenever the model does.
    """

    node: str
    message: str
    body: Scope | None = None


@dataclass(frozen=True)
class Notes:
    """The notes of a pass.

    Attributes:
        reasons: What each unknown symbol stands for.
        broadcasts: What broadcasts whenever a node runs: both are equal, or one of them is 1.
        inequalities: What is at least a number whenever a node runs.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    equalities: list[Requirement] = field(default_factory=list)
    broadcasts: list[Requirement] = field(default_factory=list)
    inequalities: list[Requirement] = field(default_factory=list)

    def new_symbol(self, label: str, reason: str, low: float) -> Expr:
        """Return a new symbol for something unknown."""
        name = f"?{len(self.reasons)}.{label}"
        self.reasons[name] = reason
        return symbol(name, low)

    def mark(self) -> tuple[int, ...]:
        """Return the current position in the notes."""
        return len(self.findings), len(self.equalities), len(self.broadcasts), len(self.inequalities)

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Forget the notes made after a mark; symbols stay."""
        for notes, length in zip(
            (self.findings, self.equalities, self.broadcasts, self.inequalities), mark, strict=True
        ):
            del notes[length:]  # type: ignore[attr-defined]
