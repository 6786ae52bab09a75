"""Expressions and constraints evaluated at many assignments at once.

An assignment gives every symbol of the inputs a size. Many assignments are columns: one array for each symbol. Numbers
are exact: Python's integers compute numbers that may not fit into 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from graphkit.ops.preconditions import COMPARISONS, FINE, Bools, Ints, Precondition
from graphkit.shapes import Expr, Relation
from graphkit.symbolic.expr import Call, Symbol

Assignment = Mapping[str, int]
Columns = dict[str, Ints]
Constraint = Relation | Precondition
LARGEST = (1 << 63) - 1
FUNCTIONS: Mapping[str, Callable[[Ints, Ints], Ints]] = {
    "min": np.minimum, "max": np.maximum, "//": np.floor_divide, "%": np.mod,
}  # fmt: skip


def size_column(sizes: Sequence[int]) -> Ints:
    """Return sizes as an array, of Python's integers if they do not fit into 64 bits."""
    return np.array(sizes, np.int64 if max(map(abs, sizes), default=0) <= LARGEST else object)


class Values:
    """Values of expressions at many assignments, each computed once. A division by 0 gives 0."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns  # of one length, or of one size
        self.count = max(map(len, columns.values()), default=1)
        self.found: dict[Expr, Ints] = {}
        self.sizes: dict[Expr | Symbol | Call, int] = {}

    @classmethod
    def of_all(cls, assignments: Sequence[Assignment]) -> Values:
        """Return the values at one or more assignments of the same symbols."""
        return cls({name: size_column([assignment[name] for assignment in assignments]) for name in assignments[0]})

    @classmethod
    def at(cls, assignment: Assignment) -> Values:
        """Return the values at one assignment."""
        return cls.of_all([assignment])

    def of(self, expr: Expr) -> Ints:
        """Return an expression's values."""
        if expr not in self.found:
            self.found[expr] = self._evaluate_sum(expr)
        return self.found[expr]

    def _evaluate_sum(self, expr: Expr) -> Ints:
        is_small = self._size(expr) <= LARGEST
        total = np.full(self.count, expr.constant or 0, np.int64 if is_small else object)
        for monomial, factor in expr.terms:
            if monomial:
                product = self._evaluate_atom(monomial[0])
                product = product if is_small else product.astype(object)
                for atom in monomial[1:]:
                    product = product * self._evaluate_atom(atom)
                total = total + (product if factor == 1 else product * factor)
            elif len(expr.terms) > 1:
                total = total + factor
        return total

    def _evaluate_atom(self, atom: Symbol | Call) -> Ints:
        if isinstance(atom, Symbol):
            return self.columns[atom.name]
        function, (result, *operands) = FUNCTIONS[atom.op], [self.of(arg) for arg in atom.args]
        for operand in operands:
            if atom.op in ("min", "max"):
                result = function(result, operand)
            else:
                result = np.where(operand == 0, 0, function(result, np.where(operand == 0, 1, operand)))
        return result

    def _size(self, part: Expr | Symbol | Call) -> int:
        """Return an upper bound of the absolute values of a part and of everything in it."""
        if part not in self.sizes:
            if isinstance(part, Expr):
                products = [abs(factor) * math.prod(map(self._size, atoms)) for atoms, factor in part.terms]
                self.sizes[part] = sum(products)
            elif isinstance(part, Call):
                self.sizes[part] = max(map(self._size, part.args))
            else:
                self.sizes[part] = int(np.abs(self.columns[part.name]).max(initial=1))
        return self.sizes[part]

    def outcome(self, precondition: Precondition) -> Ints:
        """Return a precondition's outcome at each assignment, FINE where a divisor is 0: an earlier node fails."""
        outcome = precondition.outcome([self.of(expr) for expr in precondition.exprs])
        for divisor in _divisors_of(precondition.exprs):
            outcome = np.where(self.of(divisor) == 0, FINE, outcome)
        return outcome

    def is_met(self, constraint: Constraint) -> Bools:
        """Return at which assignments a constraint is met. It counts as met where a divisor is 0."""
        if isinstance(constraint, Precondition):
            return np.asarray(self.outcome(constraint) == FINE)
        sides = constraint.left, constraint.right
        met = COMPARISONS[constraint.relation](*map(self.of, sides))
        for divisor in _divisors_of(sides):
            met = met | (self.of(divisor) == 0)
        return met


def _divisors_of(exprs: Sequence[Expr]) -> dict[Expr, None]:
    return dict.fromkeys(divisor for expr in exprs for divisor in _find_divisors(expr))


@lru_cache(maxsize=1 << 14)
def _find_divisors(expr: Expr) -> tuple[Expr, ...]:
    calls = [atom for monomial, _ in expr.terms for atom in monomial if isinstance(atom, Call)]
    direct = [call.args[1] for call in calls if call.op in ("//", "%") and call.args[1].constant is None]
    return (*direct, *(divisor for call in calls for arg in call.args for divisor in _find_divisors(arg)))
