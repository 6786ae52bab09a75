"""The conditions under which the main graph runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Expr, TooComplexError
from graphkit.shapes.relations import Relation, Requirement
from graphkit.shapes.results import Shapes
from graphkit.shapes.tensor import is_known

__all__ = ["conditions"]


def conditions(shapes: Shapes) -> tuple[Relation, ...]:
    """Return the conditions of the main graph that the ranges of the symbols leave open."""
    dims = [dim for value in shapes.model.graph.inputs for dim in shapes[value].dims or () if is_known(dim)]
    symbols = {symbol.name: Expr.from_atom(symbol) for dim in dims for symbol in dim.walk_symbols()}
    narrowed = dict.fromkeys(_narrowed(one, symbols) for one in shapes.required)
    return tuple(condition for condition in narrowed if _is_open(condition, symbols.keys()))


def _narrowed(noted: Requirement, symbols: Mapping[str, Expr]) -> Relation:
    """Return a requirement in the symbols with their final ranges."""
    try:
        return noted.substitute(symbols)
    except TooComplexError:
        return Relation(noted.left, noted.relation, noted.right)


def _is_open(condition: Relation, symbols: Collection[str]) -> bool:
    """Whether a condition depends on these symbols alone and is not always met."""
    left, right = condition.left, condition.right
    if not all(name in symbols for name in left.symbols | right.symbols):
        return False
    try:
        difference = left - right
    except TooComplexError:
        return True
    return lower(difference) < 0 or (condition.relation == "==" and upper(difference) > 0)
