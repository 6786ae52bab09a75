"""What must hold for the main graph to run, and so for what was inferred of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Expr, TooComplexError, const
from graphkit.shapes.results import Shapes
from graphkit.shapes.tensor import is_known

__all__ = ["Condition", "conditions"]


@dataclass(frozen=True)
class Condition:
    """What must hold for the main graph to run; the program relies on it.

    Attributes:
        left: An expression.
        relation: `==` or `>=`.
        right: The other one.
    """

    left: Expr
    relation: str
    right: Expr

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


def conditions(shapes: Shapes) -> tuple[Condition, ...]:
    """Return the conditions of the main graph that the ranges of the symbols leave open."""
    dims = [dim for value in shapes.model.graph.inputs for dim in shapes[value].dims or () if is_known(dim)]
    symbols = {symbol.name: Expr.from_atom(symbol) for dim in dims for symbol in dim.walk_symbols()}
    noted = dict.fromkeys(_narrowed(condition, symbols) for condition in _noted(shapes))
    return tuple(condition for condition in noted if _is_open(condition, symbols.keys()))


def _narrowed(condition: Condition, symbols: Mapping[str, Expr]) -> Condition:
    """Return a condition, noted before all ranges were known, in the symbols that have them."""
    try:
        left, right = condition.left.substitute(symbols), condition.right.substitute(symbols)
    except TooComplexError:
        return condition
    return Condition(left, condition.relation, right)


def _is_open(condition: Condition, symbols: Collection[str]) -> bool:
    """Whether a condition can be told from the symbols, and not without them."""
    left, right = condition.left, condition.right
    if not all(name in symbols for name in left.symbols | right.symbols):
        return False
    try:
        difference = left - right
    except TooComplexError:
        return True
    return lower(difference) < 0 or (condition.relation == "==" and upper(difference) > 0)


def _noted(shapes: Shapes) -> Iterator[Condition]:
    main = shapes.model.graph
    for equality in shapes.equalities:
        if equality.scope is main:
            yield Condition(equality.left, "==", equality.right)
    for requirement in shapes.requirements:
        if requirement.scope is main:
            yield Condition(requirement.expr, ">=", const(requirement.least))
