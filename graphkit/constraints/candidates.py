"""Sizes to try for each symbol, and assignments made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

from graphkit.constraints.evaluate import Assignment
from graphkit.constraints.precondition import Precondition
from graphkit.shapes import Expr
from graphkit.shapes.expr import Call
from graphkit.shapes.symbols import Symbol

__all__ = [
    "broken",
    "candidates",
    "free_symbols",
    "pools",
    "tied",
    "ties_of",
]

SMALL = (0, 1, 2, 3, 4, 5, 7)  # above the least
USUAL = (8, 16, 32, 64, 128, 224, 256, 384, 512)  # sizes of images and windows
MAX_SIZE = 1 << 20
MAX_NUMBERS = 24  # taken from expressions
MAX_CANDIDATES = 4096
PAIRED = 8  # sizes of each symbol that are tried together with those of another one


def free_symbols(exprs: Iterable[Expr]) -> dict[str, Symbol]:
    """Return the symbols of the inputs' dims by name."""
    return {found.name: found for expr in exprs for found in expr.walk_symbols()}


def ties_of(preconditions: Iterable[Precondition], symbols: Mapping[str, Symbol]) -> dict[str, Expr]:
    """Return the symbols that follow from others if every node is to run: `total` is `past + sequence`."""
    ties: dict[str, Expr] = {}
    for precondition in preconditions:
        for left, right in precondition.equalities():
            for name, given in _solved(left, right):
                expr = given.substitute(ties)
                if name in symbols and name not in ties and name not in expr.symbols and _is_plain(expr):
                    ties = {other: known.substitute({name: expr}) for other, known in ties.items()}
                    ties[name] = expr
                    break
    return ties


def _is_plain(expr: Expr) -> bool:
    """Whether an expression is not a number, and has a value at all sizes."""
    atoms = [atom for monomial, _ in expr.terms for atom in monomial]
    return bool(atoms) and all(isinstance(atom, Symbol) for atom in atoms)


def _solved(left: Expr, right: Expr) -> Iterator[tuple[str, Expr]]:
    for one, other in ((left, right), (right, left)):
        atom = one.atom
        if isinstance(atom, Symbol):
            yield atom.name, other
        elif isinstance(atom, Call) and atom.op == "max" and other in atom.args:
            for arg in atom.args:
                if arg != other:
                    yield from _solved(arg, other)


def tied(assignment: Assignment, ties: Mapping[str, Expr]) -> dict[str, int]:
    """Return an assignment with the symbols that follow from it."""
    result = dict(assignment)
    if ties:
        result.update({name: expr.evaluate(result) for name, expr in ties.items()})
    return result


def pools(
    preconditions: Iterable[Precondition], symbols: Mapping[str, Symbol], ties: Mapping[str, Expr]
) -> dict[str, list[int]]:
    """Return the sizes to try for each symbol: small ones, usual ones, and those next to numbers in expressions.

    A symbol that is in no precondition has none: its size makes no difference.
    """
    numbers: dict[str, set[int]] = {name: set() for name in symbols}
    named = {*ties, *(inner for tie in ties.values() for inner in tie.symbols)}
    for precondition in preconditions:
        found = {n for expr in precondition.exprs for n in _numbers(expr) if 1 < n <= MAX_SIZE}
        names = precondition.symbols
        named |= names
        for name in names | {inner for tie in names & ties.keys() for inner in ties[tie].symbols}:
            if name in numbers:
                numbers[name] |= found
    result: dict[str, list[int]] = {name: [] for name in symbols}
    for name, symbol in symbols.items():
        if name not in named:
            continue
        low = int(symbol.lower)
        near = [n + step for n in sorted(numbers[name])[-MAX_NUMBERS:] for step in (-1, 0, 1)]
        large = [2 * max(numbers[name], default=512) + 1]
        sizes = [low + step for step in SMALL] + near + list(USUAL) + large
        result[name] = [size for size in dict.fromkeys(sizes) if symbol.lower <= size <= symbol.upper]
    return result


def _numbers(expr: Expr) -> Iterator[int]:
    for monomial, factor in expr.terms:
        yield abs(factor)
        for atom in monomial:
            if isinstance(atom, Call):
                for arg in atom.args:
                    yield from _numbers(arg)


def candidates(
    base: Assignment, sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr], symbols: Mapping[str, Symbol]
) -> list[dict[str, int]]:
    """Return assignments that differ from a base in one or two symbols, and in the symbols that follow from these."""
    free = [name for name in base if name not in ties and sizes[name]]
    found = [dict(base)]
    found += [tied({**base, name: size}, ties) for name in free for size in sizes[name] if size != base[name]]
    for first, second in combinations(free, 2):
        few = [[size for size in _few(sizes[one]) if size != base[one]] for one in (first, second)]
        found += [tied({**base, first: size, second: other}, ties) for size, other in product(*few)]
        if len(found) > MAX_CANDIDATES:
            break
    return [one for one in found if _is_legal(one, symbols)]


def broken(base: Assignment, sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr]) -> list[dict[str, int]]:
    """Return assignments in which one symbol does not follow from the others: mistakes that a caller can make."""
    return [{**base, name: size} for name in ties for size in sizes[name] if size != base[name]]


def _few(sizes: Sequence[int]) -> list[int]:
    return [*sizes[:PAIRED], *sizes[PAIRED:][-PAIRED:]]


def _is_legal(assignment: Assignment, symbols: Mapping[str, Symbol]) -> bool:
    return all(symbols[name].lower <= size <= symbols[name].upper for name, size in assignment.items())
