"""Relations of expressions that must hold for a node to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from graphkit.graph.view import Node, Scope
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.symbols import Symbol

__all__ = ["Relation", "Requirement"]


@dataclass(frozen=True)
class Relation:
    """An equality or inequality of two expressions."""

    left: Expr
    relation: Literal["==", ">=", "<="]
    right: Expr

    @classmethod
    def equal(cls, left: Expr, right: Expr | int) -> Relation:
        """Return the relation that two expressions are equal."""
        return Relation(left, "==", Expr.of(right))

    @classmethod
    def at_least(cls, expr: Expr, least: Expr | int) -> Relation:
        """Return the relation that an expression is at least another one."""
        return Relation(expr, ">=", Expr.of(least))

    @classmethod
    def at_most(cls, expr: Expr, most: Expr | int) -> Relation:
        """Return the relation that an expression is at most another one."""
        return Relation(expr, "<=", Expr.of(most))

    @property
    def symbols(self) -> frozenset[str]:
        """The names in it."""
        return self.left.symbols | self.right.symbols

    def substitute(self, assignment: Mapping[str, Expr | int]) -> Relation:
        """Return it with symbols replaced; TooComplexError if an expression becomes too large."""
        return Relation(self.left.substitute(assignment), self.relation, self.right.substitute(assignment))

    def against_zero(self) -> Relation:
        """Return it with 0 on the right, or unchanged if the difference is too complex."""
        try:
            return Relation(self.left - self.right, self.relation, const(0))
        except TooComplexError:
            return self

    def forced(self) -> int | None:
        """Return the size that an equality forces on its only symbol, None if it does not tell."""
        terms = self.against_zero().left.terms
        if self.relation != "==" or not terms or len(terms) > 2:
            return None
        (monomial, factor), *others = terms
        if len(monomial) != 1 or not isinstance(monomial[0], Symbol) or any(atoms for atoms, _ in others):
            return None
        number = -others[0][1] if others else 0
        return number // factor if number % factor == 0 else None

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True)
class Requirement(Relation):
    """A relation that holds whenever a node runs."""

    node: Node

    @property
    def scope(self) -> Scope:
        """The scope of the node."""
        return self.node.scope
