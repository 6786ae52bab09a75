"""The lengths in a decoder's inputs (new tokens, past, encoder positions, masks), and solving equalities for them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from graphkit.graph.roles import Role, rank
from graphkit.model import Model
from graphkit.shapes.expr import Call, Expr, const
from graphkit.shapes.inputs import input_dims
from graphkit.shapes.symbols import Symbol

__all__ = ["FOLLOWING", "Length", "Row", "lengths", "linear", "reduced", "solved"]

Kind = Literal["tokens", "past", "encoder", "mask", "encoder mask", "positions"]
KINDS: Mapping[Role, Kind] = {  # of the second axis
    "tokens": "tokens",
    "embeddings": "tokens",
    "mask": "mask",
    "encoder mask": "encoder mask",
    "positions": "positions",
    "token types": "positions",
    "encoder tokens": "encoder",
    "encoder state": "encoder",
}
ORDER: Sequence[Kind] = ("tokens", "encoder", "past", "positions", "mask", "encoder mask")
FOLLOWING = ("mask", "encoder mask", "positions")  # lengths that follow from others
Row = Mapping[str, Fraction]  # coefficients by symbol, the number under ""; their sum is 0


@dataclass(frozen=True)
class Length:
    """A length that one input declares as a dim, or several declare alike.

    Attributes:
        places: The inputs, with the axis of each.
        name: Its own symbol: the declared one unless another length has it.
    """

    kind: Kind
    places: tuple[tuple[str, int], ...]
    declared: Expr
    name: str


def lengths(model: Model) -> tuple[Length, ...]:
    """Return the lengths of a decoder's inputs that are not numbers, tokens first."""
    found: dict[tuple[Kind, str], list[tuple[str, int]]] = {}
    dims = {value.name: input_dims(value) or () for value in model.graph.inputs if value.tensor is None}
    for kind, name, axis in sorted(_places(model), key=lambda place: ORDER.index(place[0])):
        if dims[name][axis].constant is None:
            alone = name if kind in FOLLOWING else ""
            found.setdefault((kind, f"{alone}{dims[name][axis]}"), []).append((name, axis))
    others = {(name, axis): dim for name, known in dims.items() for axis, dim in enumerate(known)}
    for place in itertools.chain(*found.values()):
        del others[place]
    taken = {name for dim in others.values() for name in dim.symbols}
    result: list[Length] = []
    for (kind, _), places in found.items():
        (input_name, axis), *_ = places
        declared = dims[input_name][axis]
        own = _own_name(kind, declared, taken) or _usual_name(kind, result, taken) or f"{input_name}.{axis}"
        taken.add(own)
        result.append(Length(kind, tuple(places), declared, own))
    return tuple(result)


def _own_name(kind: Kind, declared: Expr, taken: Collection[str]) -> str | None:
    """Return a symbol of the declared dim that nothing else has, preferably that of the past."""
    if kind in FOLLOWING and not isinstance(declared.atom, Symbol):
        return None
    names = sorted(declared.symbols, key=lambda name: ("past" not in name, name))
    return next((name for name in names if name not in taken), None)


def _usual_name(kind: Kind, before: Sequence[Length], taken: Collection[str]) -> str | None:
    """Return the usual name of such a length. All lengths of the encoder share one name."""
    if kind == "encoder" and (name := next((length.name for length in before if length.kind == kind), None)):
        return name
    tokens = next((length.name for length in before if length.kind == "tokens"), "sequence_length")
    name = {"past": f"past_{tokens}", "encoder": "encoder_sequence_length"}.get(kind)
    return name if name not in taken else None


def _places(model: Model) -> Iterator[tuple[Kind, str, int]]:
    """Yield the lengths of all inputs: kind, input, axis."""
    for past, entry in model.roles.pasts.items():
        if entry.axis is not None:
            yield "encoder" if model.roles.is_cross(entry) else "past", past.name, entry.axis
    for value, role in model.roles.inputs.items() if model.roles.cache else ():
        kind, count = KINDS.get(role), rank(value)
        if kind is not None and (count == 2 or (count == 3 and role in ("embeddings", "encoder state"))):
            yield kind, value.name, 1


def linear(left: Expr, right: Expr) -> Iterator[Row]:
    """Yield the linear equations that an equality implies; `min(a, b) == b` implies that a mask is as long as its cut.

    If one of these is a number, it is a limit and implies nothing.
    """
    for one, other in ((left, right), (right, left)):
        atom = one.atom
        if isinstance(atom, Call) and atom.op in ("min", "max") and other in atom.args:
            for arg in atom.args:
                if arg != other and arg.constant is None and other.constant is None:
                    yield from linear(arg, other)
            return
    row: dict[str, Fraction] = {}
    for monomial, factor in (left - right).terms:
        if len(monomial) > 1 or not all(isinstance(atom, Symbol) for atom in monomial):
            return
        row[repr(monomial[0]) if monomial else ""] = Fraction(factor)
    yield row


def reduced(rows: Iterable[Row], order: Sequence[str]) -> dict[str, Row]:
    """Return rows solved for the first symbols of an order, each for a symbol that no other row has.

    A contradiction (0 equals another number) is solved for the symbol "".
    """
    found: dict[str, dict[str, Fraction]] = {}
    for row in rows:
        rest = dict(row)
        for name in [name for name in rest if name in found]:
            rest = _plus(rest, found[name], -rest[name])
        pivot = next((name for name in order if rest.get(name)), "" if rest.get("") else None)
        if pivot is None:
            continue
        rest = {name: factor / rest[pivot] for name, factor in rest.items()}
        for name, other in found.items():
            if other.get(pivot):
                found[name] = _plus(other, rest, -other[pivot])
        found[pivot] = rest
    return dict(found)


def _plus(row: Mapping[str, Fraction], other: Mapping[str, Fraction], factor: Fraction) -> dict[str, Fraction]:
    total = {name: row.get(name, Fraction(0)) + factor * other.get(name, Fraction(0)) for name in {**row, **other}}
    return {name: number for name, number in total.items() if number}


def solved(name: str, rows: Mapping[str, Row], symbols: Mapping[str, Expr]) -> Expr | None:
    """Return a symbol solved by reduced rows, None if the result is not an integer expression in these symbols."""
    row = rows.get(name)
    if row is None or any(number.denominator != 1 for number in row.values()):
        return None
    total = const(0)
    for other, number in row.items():
        if other not in (name, "") and other not in symbols:
            return None
        if other != name:
            total = total + (symbols[other] if other else const(1)) * -int(number)
    return total
