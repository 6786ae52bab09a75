"""The constraints of a graph on the symbols of its inputs: equal ones, and sizes that follow from others.

Only linear equalities that hold wherever the model runs count. Two dims that broadcast may differ, for one of them may
be 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import Expr, Relation
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.lengths import Row, reduced
from graphkit.shapes.symbols import Symbol

__all__ = ["equal_symbols", "forced_sizes"]


def equal_symbols(model: Model) -> dict[str, tuple[str, ...]]:
    """Return, for each symbol of the inputs, those that it always equals, itself included, in the order of inputs."""
    names, rows = _facts(model)
    solved = reduced(rows, names[::-1])
    classes: dict[frozenset[tuple[str, Fraction]], list[str]] = {}
    for name in names:
        row = solved.get(name, {})
        meaning = {other: -factor for other, factor in row.items() if other != name} if row else {name: Fraction(1)}
        classes.setdefault(frozenset(meaning.items()), []).append(name)
    return {name: tuple(members) for members in classes.values() for name in members}


def forced_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, Fraction]:
    """Return the sizes of the other symbols that follow from some; a fraction or a negative one is impossible.

    Raises:
        UsageError: The sizes contradict what the graph needs.
    """
    names, rows = _facts(model)
    given: list[Row] = [{name: Fraction(1), "": Fraction(-size)} for name, size in sizes.items()]
    solved = reduced([*given, *rows], names)
    if "" in solved:
        raise _contradiction(model, sizes, given, rows)
    fixed = {name: -row.get("", Fraction(0)) for name, row in solved.items() if row.keys() <= {name, ""}}
    return {name: size for name, size in fixed.items() if name and name not in sizes}


def _contradiction(model: Model, sizes: Mapping[str, int], given: Sequence[Row], rows: Sequence[Row]) -> UsageError:
    """Return the error for sizes that do not go together, with the first equality that they break."""
    names = [*sizes, *{name: None for row in rows for name in row if name}]
    broken = next(row for at, row in enumerate(rows, 1) if "" in reduced([*given, *rows[:at]], names))
    text = ", ".join(f"{name}={size}" for name, size in sizes.items())
    needed = " = ".join((_side(broken, 1), _side(broken, -1)))
    return UsageError(f"{model.label}: it cannot run with {text}: the graph needs {needed} - give other sizes")


def _side(row: Row, sign: int) -> str:
    """Return the terms of an equation that have a sign, in words of an expression."""
    terms = [(name, abs(factor)) for name, factor in row.items() if factor * sign > 0]
    return (
        " + ".join(f"{factor}*{name}" if name and factor != 1 else name or str(factor) for name, factor in terms) or "0"
    )


def _facts(model: Model) -> tuple[Sequence[str], list[Row]]:
    """Return the symbols in the order of the inputs, and the relations that hold between them."""
    legal = legal_sizes(model)
    names = dict.fromkeys(
        name for dims in legal.inputs.values() for dim in dims or () for name in (s.name for s in dim.walk_symbols())
    )
    return list(names), list(_rows(legal.relations))


def _rows(relations: Iterable[Relation]) -> Iterator[Row]:
    """Yield the linear equations among relations."""
    for relation in relations:
        try:
            difference = relation.left - relation.right
        except TooComplexError:
            continue
        row = _row(difference) if relation.relation == "==" else None
        if row:
            yield row


def _row(total: Expr) -> Row | None:
    row: dict[str, Fraction] = {}
    for monomial, factor in total.terms:
        if len(monomial) > 1 or not all(isinstance(atom, Symbol) for atom in monomial):
            return None
        row[repr(monomial[0]) if monomial else ""] = Fraction(factor)
    return row
