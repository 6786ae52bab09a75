"""Sizes to try for each symbol, and the preconditions of a model tested at many assignments of them at once."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from graphkit.graph.view import Scope
from graphkit.ops.preconditions import FINE, Bools, Ints, Precondition
from graphkit.shapes import Expr, Relation
from graphkit.shapes.constraints.collect_preconditions import SharedPrecondition
from graphkit.shapes.constraints.evaluate_constraints import Assignment, Constraint, Values
from graphkit.shapes.constraints.legal_sizes import Variable, search_nearest_sizes
from graphkit.symbolic.expr import Call, Symbol

__all__ = ["Grid", "broken_sizes", "candidate_sizes", "free_symbols", "size_pools", "ties_of", "with_ties"]

SMALL = (0, 1, 2, 3, 4, 5, 7)  # above the least
USUAL = (8, 16, 32, 64, 128, 224, 256, 384, 512)  # sizes of images and windows
MAX_SIZE = 1 << 20
MAX_NUMBERS = 24  # taken from expressions
MAX_CANDIDATES = 4096
PAIRED = 8  # sizes of each symbol that are tried together with those of another one


def free_symbols(exprs: Iterable[Expr]) -> dict[str, Symbol]:
    """Return the symbols of the inputs' dims by name."""
    return {symbol.name: symbol for expr in exprs for symbol in expr.walk_symbols()}


def ties_of(preconditions: Iterable[Precondition], symbols: Mapping[str, Symbol]) -> dict[str, Expr]:
    """Return the symbols that follow from others if every node is to run: `total` is `past + sequence`."""
    ties: dict[str, Expr] = {}
    for precondition in preconditions:
        for left, right in precondition.equalities():
            for name, solution in _solved_symbols(left, right):
                expr = solution.substitute(ties)
                if name in symbols and name not in ties and name not in expr.symbols and _is_plain(expr):
                    ties = {tied_name: known.substitute({name: expr}) for tied_name, known in ties.items()}
                    ties[name] = expr
                    break
    return ties


def _is_plain(expr: Expr) -> bool:
    """Whether an expression is not a number, and has a value at all sizes."""
    atoms = [atom for monomial, _ in expr.terms for atom in monomial]
    return bool(atoms) and all(isinstance(atom, Symbol) for atom in atoms)


def _solved_symbols(left: Expr, right: Expr) -> Iterator[tuple[str, Expr]]:
    for side, opposite in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Symbol):
            yield atom.name, opposite
        elif isinstance(atom, Call) and atom.op == "max" and opposite in atom.args:
            for arg in atom.args:
                if arg != opposite:
                    yield from _solved_symbols(arg, opposite)


def with_ties(assignment: Assignment, ties: Mapping[str, Expr]) -> dict[str, int]:
    """Return an assignment with the symbols that follow from it."""
    result = dict(assignment)
    if ties:
        result.update({name: expr.evaluate(result) for name, expr in ties.items()})
    return result


def size_pools(
    preconditions: Iterable[Precondition], symbols: Mapping[str, Symbol], ties: Mapping[str, Expr]
) -> dict[str, list[int]]:
    """Return the sizes to try for each symbol: small ones, usual ones, and those next to numbers in expressions.

    A symbol that is in no precondition has none: its size makes no difference.
    """
    numbers: dict[str, set[int]] = {name: set() for name in symbols}
    named = {*ties, *(inner for tie in ties.values() for inner in tie.symbols)}
    for precondition in preconditions:
        constants = {n for expr in precondition.exprs for n in _numbers_in(expr) if 1 < n <= MAX_SIZE}
        names = precondition.symbols
        named |= names
        for name in names | {inner for tie in names & ties.keys() for inner in ties[tie].symbols}:
            if name in numbers:
                numbers[name] |= constants
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


def _numbers_in(expr: Expr) -> Iterator[int]:
    for monomial, factor in expr.terms:
        yield abs(factor)
        for atom in monomial:
            if isinstance(atom, Call):
                for arg in atom.args:
                    yield from _numbers_in(arg)


def candidate_sizes(
    base: Assignment, sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr], symbols: Mapping[str, Symbol]
) -> list[dict[str, int]]:
    """Return assignments that differ from a base in one or two symbols, and in the symbols that follow from these."""
    free = [name for name in base if name not in ties and sizes[name]]
    assignments = [dict(base)]
    assignments += [
        with_ties({**base, name: size}, ties) for name in free for size in sizes[name] if size != base[name]
    ]
    for first, second in combinations(free, 2):
        few = [[size for size in _few_sizes(sizes[name]) if size != base[name]] for name in (first, second)]
        assignments += [
            with_ties({**base, first: size, second: other_size}, ties) for size, other_size in product(*few)
        ]
        if len(assignments) > MAX_CANDIDATES:
            break
    return [assignment for assignment in assignments if _is_legal(assignment, symbols)]


def broken_sizes(
    base: Assignment, sizes: Mapping[str, Sequence[int]], ties: Mapping[str, Expr]
) -> list[dict[str, int]]:
    """Return assignments in which one symbol does not follow from the others: mistakes that a caller can make."""
    return [{**base, name: size} for name in ties for size in sizes[name] if size != base[name]]


def _few_sizes(sizes: Sequence[int]) -> list[int]:
    return [*sizes[:PAIRED], *sizes[PAIRED:][-PAIRED:]]


def _is_legal(assignment: Assignment, symbols: Mapping[str, Symbol]) -> bool:
    return all(symbols[name].lower <= size <= symbols[name].upper for name, size in assignment.items())


MAX_VISITS = 4096  # sizes looked at for dims at which all is well
NAMED = (("batch", 2), ("channel", 3), ("height", 32), ("width", 32))  # the sizes to begin with, else small ones


class Grid:
    """The preconditions and symbols of a model.

    Attributes:
        shared: The preconditions, in the order in which their nodes run.
        least: The least sizes to begin with.
        ties: Symbols that follow from others if every node is to run.
    """

    def __init__(
        self,
        shared: Sequence[SharedPrecondition],
        symbols: Mapping[str, Symbol],
        least: Mapping[str, int] | None = None,
    ) -> None:
        self.least = least or {}
        preconditions = [place.precondition for place in shared]
        self.shared, self.symbols = shared, symbols
        self.ties = ties_of(preconditions, symbols)
        self.sizes = size_pools(preconditions, symbols, self.ties)

    def outcomes(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Ints:
        """Return the outcome of each precondition, or of each of those in `shared`, at each assignment."""
        values = Values.of_all(assignments)
        return np.stack([values.outcome(place.precondition) for place in shared or self.shared])

    def bad(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Bools:
        """Return which precondition is not met at which assignment."""
        result: Bools = self.outcomes(assignments, shared) != FINE
        return result

    def first(self, bad: Bools) -> Bools:
        """Return where each precondition is the first violated one of its scope and of the scopes around it."""
        result = np.zeros_like(bad)
        before: dict[Scope, Bools] = {}
        nothing = np.zeros(bad.shape[1], np.bool_)
        for index, place in enumerate(self.shared):
            earlier = nothing
            scope: Scope | None = place.scope
            while scope is not None:
                earlier = earlier | before.get(scope, nothing)
                scope = scope.parent
            result[index] = bad[index] & ~earlier
            before[place.scope] = before.get(place.scope, nothing) | bad[index]
        return result

    def base(self, count: int | None = None) -> dict[str, int] | None:
        """Return usual sizes that meet the first `count` preconditions, None if none are found."""
        free = [name for name in self.symbols if name not in self.ties]
        variables = [self._make_variable(name) for name in (*free, *self.ties)]
        follow = [Relation.equal(Expr.from_atom(self.symbols[name]), expr) for name, expr in self.ties.items()]
        constraints: list[Constraint] = [*follow, *(place.precondition for place in self.shared[:count])]
        wish = {name: self._guess_size(name) for name in self.symbols}
        assignment = next(search_nearest_sizes(variables, constraints, wish, MAX_VISITS), None)
        return None if assignment is None else {name: assignment[name] for name in self.symbols}

    def first_unmet(self) -> SharedPrecondition:
        """Return the first precondition that no assignment meets together with those before it, if there is no base."""
        met = bisect(range(1, len(self.shared)), False, key=lambda count: self.base(count) is None)
        return self.shared[met]

    def _make_variable(self, name: str) -> Variable:
        symbol = self.symbols[name]
        return Variable(name, "other", int(symbol.lower), symbol.upper, tuple(self.sizes[name]))

    def _guess_size(self, name: str) -> int:
        low, high = int(self.symbols[name].lower), self.symbols[name].upper
        usual = next((size for part, size in NAMED if part in name), low and low + 2)
        return int(min(max(usual, low, self.least.get(name, low)), high))
