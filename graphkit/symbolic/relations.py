"""Relations of expressions that must hold for a node to run, and linear equations solved for symbols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from msgspec import Struct

from graphkit.graph.view import Node, Scope
from graphkit.symbolic.expr import Call, Expr, Symbol, TooComplexError, const

Row = Mapping[str, Fraction]  # coefficients by symbol, the number under ""; their sum is 0


class Relation(Struct, frozen=True):
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

    def forced_size(self) -> int | None:
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


class Requirement(Relation, frozen=True):
    """A relation that holds whenever a node runs."""

    node: Node

    @property
    def scope(self) -> Scope:
        """The scope of the node."""
        return self.node.scope


def linear_row(total: Expr) -> Row | None:
    """Return the equation that an expression is 0, None if it is not linear in symbols."""
    row: dict[str, Fraction] = {}
    for monomial, factor in total.terms:
        names = [atom.name for atom in monomial if isinstance(atom, Symbol)]
        if len(monomial) > 1 or len(names) < len(monomial):
            return None
        row[names[0] if names else ""] = Fraction(factor)
    return row


def linear_equations(left: Expr, right: Expr) -> Iterator[Row]:
    """Yield the linear equations that an equality implies; `min(a, b) == b` implies that a mask is as long as its cut.

    If either argument is a number, it is a limit and implies nothing.
    """
    for side, limit in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Call) and atom.op in ("min", "max") and limit in atom.args:
            for arg in atom.args:
                if arg != limit and arg.constant is None and limit.constant is None:
                    yield from linear_equations(arg, limit)
            return
    if (row := linear_row(left - right)) is not None:
        yield row


def reduce_rows(rows: Iterable[Row], order: Sequence[str]) -> dict[str, Row]:
    """Return rows solved for the first symbols of an order, each for a symbol that no other row has.

    A contradiction (0 equals another number) is solved for the symbol "".
    """
    solved_rows: dict[str, dict[str, Fraction]] = {}
    for row in rows:
        rest = dict(row)
        for name in [name for name in rest if name in solved_rows]:
            rest = _add_rows(rest, solved_rows[name], -rest[name])
        pivot = next((name for name in order if rest.get(name)), "" if rest.get("") else None)
        if pivot is None:
            continue
        rest = {name: factor / rest[pivot] for name, factor in rest.items()}
        for name, solved_row in solved_rows.items():
            if solved_row.get(pivot):
                solved_rows[name] = _add_rows(solved_row, rest, -solved_row[pivot])
        solved_rows[pivot] = rest
    return dict(solved_rows)


def fixed_sizes(rows: Mapping[str, Row]) -> dict[str, Fraction]:
    """Return the symbols that reduced rows give a number, and that number; "" is a contradiction."""
    return {name: -row.get("", Fraction(0)) for name, row in rows.items() if row.keys() <= {name, ""}}


def _add_rows(row: Mapping[str, Fraction], added: Mapping[str, Fraction], factor: Fraction) -> dict[str, Fraction]:
    total = {name: row.get(name, Fraction(0)) + factor * added.get(name, Fraction(0)) for name in {**row, **added}}
    return {name: number for name, number in total.items() if number}


def solve_symbol(name: str, rows: Mapping[str, Row], symbols: Mapping[str, Expr]) -> Expr | None:
    """Return a symbol solved by reduced rows, None if the result is not an integer expression in these symbols."""
    row = rows.get(name)
    if row is None or any(number.denominator != 1 for number in row.values()):
        return None
    total = const(0)
    for symbol, number in row.items():
        if symbol not in (name, "") and symbol not in symbols:
            return None
        if symbol != name:
            total = total + (symbols[symbol] if symbol else const(1)) * -int(number)
    return total
