"""Find the axes of inputs from which the numbers of symbols can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphkit.shapes.expr import Expr, const
from graphkit.shapes.symbols import Bound, Symbol

__all__ = ["Source", "Unread", "find_sources"]

Shaped = Sequence[tuple[str, tuple[Expr | None, ...]]]


@dataclass(frozen=True)
class Source:
    """The axis from which a symbol's number is read: its size is `factor*symbol + rest`.

    Attributes:
        least: Its lower bound, perhaps minus infinity.
        most: Its upper bound, perhaps infinity.
        axis: Counted from the front.
        factor: An integer other than 0, which must divide `size - rest`.
        rest: A polynomial in symbols of earlier sources.
    """

    symbol: str
    least: Bound
    most: Bound
    input: str
    axis: int
    factor: int
    rest: Expr


@dataclass(frozen=True)
class Unread:
    """A symbol whose number no shape of an input gives.

    Attributes:
        reason: The dims that contain it.
    """

    symbol: str
    reason: str


def find_sources(inputs: Shaped) -> tuple[tuple[Source, ...], tuple[Unread, ...]]:
    """Return the sources of the symbols of inputs, plain dims first, and the symbols without one."""
    symbols = {symbol.name: symbol for _, _, dim in _dims(inputs) for symbol in dim.walk_symbols()}
    found: dict[str, Source] = {}
    for name, axis, dim in _dims(inputs):
        if isinstance(dim.atom, Symbol):
            found.setdefault(dim.atom.name, _source(dim.atom, name, axis, 1, const(0)))
    count = -1
    while count != len(found):
        count = len(found)
        for name, axis, dim in _dims(inputs):
            missing = dim.symbols - found.keys()
            if len(missing) == 1 and (line := _line(dim, symbol := symbols[min(missing)])) is not None:
                found[symbol.name] = _source(symbol, name, axis, *line)
    unread = (Unread(name, _reason(name, inputs)) for name in symbols if name not in found)
    return tuple(found.values()), tuple(unread)


def _dims(inputs: Shaped) -> Iterator[tuple[str, int, Expr]]:
    for name, dims in inputs:
        for axis, dim in enumerate(dims):
            if dim is not None:
                yield name, axis, dim


def _source(symbol: Symbol, name: str, axis: int, factor: int, rest: Expr) -> Source:
    return Source(
        symbol=symbol.name, least=symbol.lower, most=symbol.upper, input=name, axis=axis, factor=factor, rest=rest
    )


def _line(dim: Expr, symbol: Symbol) -> tuple[int, Expr] | None:
    """Return factor and rest of a polynomial that is linear in a symbol."""
    if any(not isinstance(atom, Symbol) for monomial, _ in dim.terms for atom in monomial):
        return None
    factor = next((factor for monomial, factor in dim.terms if monomial == (symbol,)), 0)
    rest = dim - Expr.from_atom(symbol) * factor
    return (factor, rest) if factor and symbol.name not in rest.symbols else None


def _reason(name: str, inputs: Shaped) -> str:
    places = [f"'{dim}' of input '{entry}'" for entry, _, dim in _dims(inputs) if name in dim.symbols]
    return f"it stands only in {', '.join(dict.fromkeys(places))}, which cannot be solved for it"
