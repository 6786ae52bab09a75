"""Legal dims to try: a symbol's range, the numbers near which something changes, and what must go together.

An assignment gives every symbol of the inputs a number. Many are kept as columns, one array a symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from graphkit.needs.need import Ints, Need
from graphkit.shapes import Expr
from graphkit.shapes.expr import Call
from graphkit.shapes.symbols import Symbol

__all__ = [
    "Assignment",
    "Columns",
    "Values",
    "broken",
    "candidates",
    "columns_of",
    "free_symbols",
    "pools",
    "tied",
    "ties_of",
]

Columns = dict[str, Ints]
Assignment = dict[str, int]
SMALL = (0, 1, 2, 3, 4, 5, 7)  # above the least
USUAL = (8, 16, 32, 64, 128, 224, 256, 384, 512)  # sizes of images and windows
MAX_SIZE = 1 << 20
MAX_NUMBERS = 24  # taken from expressions
MAX_CANDIDATES = 4096
PAIRED = 8  # sizes of each symbol that are tried together with those of another one


class Values:
    """Expressions evaluated at many assignments, each once."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.count = len(next(iter(columns.values()))) if columns else 1
        self.found: dict[Expr, Ints] = {}

    def of(self, expr: Expr) -> Ints:
        """Return an expression's values; a division by 0 gives 0, and stands behind a node that fails."""
        if expr not in self.found:
            total = np.zeros(self.count, np.int64)
            for monomial, factor in expr.terms:
                term = np.full(self.count, factor, np.int64)
                for atom in monomial:
                    term = term * self._atom(atom)
                total = total + term
            self.found[expr] = total
        return self.found[expr]

    def _atom(self, atom: Symbol | Call) -> Ints:
        if isinstance(atom, Symbol):
            return self.columns[atom.name]
        args = [self.of(arg) for arg in atom.args]
        if atom.op in ("min", "max"):
            function = np.minimum if atom.op == "min" else np.maximum
            result = args[0]
            for arg in args[1:]:
                result = function(result, arg)
            return result
        divisor = np.where(args[1] == 0, 1, args[1])
        result = np.floor_divide(args[0], divisor) if atom.op == "//" else np.mod(args[0], divisor)
        return np.where(args[1] == 0, 0, result)

    def outcome(self, need: Need) -> Ints:
        """Return a need's outcome at each assignment."""
        return need.outcome([self.of(expr) for expr in need.exprs])


def columns_of(assignments: Sequence[Mapping[str, int]]) -> Columns:
    """Return assignments as columns."""
    return {name: np.array([one[name] for one in assignments], np.int64) for name in assignments[0]}


def free_symbols(exprs: Iterable[Expr]) -> dict[str, Symbol]:
    """Return the symbols of the inputs' dims by name."""
    return {found.name: found for expr in exprs for found in expr.walk_symbols()}


def ties_of(needs: Iterable[Need], symbols: Mapping[str, Symbol]) -> dict[str, Expr]:
    """Return symbols that follow from others where all is to run: `total` is `past + sequence`."""
    ties: dict[str, Expr] = {}
    for need in needs:
        for left, right in need.equalities():
            for name, given in _solved(left, right):
                expr = given.substitute(ties)
                if name in symbols and name not in ties and name not in expr.symbols and _is_plain(expr):
                    ties = {other: known.substitute({name: expr}) for other, known in ties.items()}
                    ties[name] = expr
                    break
    return ties


def _is_plain(expr: Expr) -> bool:
    """Whether an expression is no number, and can be calculated at all dims."""
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


def tied(assignment: Mapping[str, int], ties: Mapping[str, Expr]) -> Assignment:
    """Return an assignment with what follows from it."""
    result = dict(assignment)
    if ties:
        result.update({name: expr.evaluate(result) for name, expr in ties.items()})
    return result


def pools(needs: Iterable[Need], symbols: Mapping[str, Symbol], ties: Mapping[str, Expr]) -> dict[str, list[int]]:
    """Return the sizes to try of each symbol: small ones, usual ones, and those beside numbers in expressions.

    None are for a symbol that no need speaks of: its size makes no difference.
    """
    numbers: dict[str, set[int]] = {name: set() for name in symbols}
    spoken_of = {*ties, *(inner for tie in ties.values() for inner in tie.symbols)}
    for need in needs:
        found = {n for expr in need.exprs for n in _numbers(expr) if 1 < n <= MAX_SIZE}
        names = set().union(*(expr.symbols for expr in need.exprs))
        spoken_of |= names
        for name in names | {inner for tie in names & ties.keys() for inner in ties[tie].symbols}:
            if name in numbers:
                numbers[name] |= found
    result: dict[str, list[int]] = {name: [] for name in symbols}
    for name, symbol in symbols.items():
        if name not in spoken_of:
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
    base: Mapping[str, int], sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr], symbols: Mapping[str, Symbol]
) -> list[Assignment]:
    """Return assignments that differ from a base in one or two symbols, what follows from them changed with them."""
    free = [name for name in base if name not in ties and sizes[name]]
    found = [dict(base)]
    found += [tied({**base, name: size}, ties) for name in free for size in sizes[name] if size != base[name]]
    for first, second in combinations(free, 2):
        few = [[size for size in _few(sizes[one]) if size != base[one]] for one in (first, second)]
        found += [tied({**base, first: size, second: other}, ties) for size, other in product(*few)]
        if len(found) > MAX_CANDIDATES:
            break
    return [one for one in found if _is_legal(one, symbols)]


def broken(base: Mapping[str, int], sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr]) -> list[Assignment]:
    """Return assignments in which one symbol is not what follows from the others: what a caller can do wrong."""
    return [{**base, name: size} for name in ties for size in sizes[name] if size != base[name]]


def _few(sizes: Sequence[int]) -> list[int]:
    return [*sizes[:PAIRED], *sizes[PAIRED:][-PAIRED:]]


def _is_legal(assignment: Mapping[str, int], symbols: Mapping[str, Symbol]) -> bool:
    return all(symbols[name].lower <= size <= symbols[name].upper for name, size in assignment.items())
