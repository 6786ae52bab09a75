"""Expressions as steps that every language can write, with one step for each common subexpression."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.shapes.bounds import is_nonzero
from graphkit.shapes.expr import Call, Expr, Monomial
from graphkit.shapes.symbols import Symbol
from graphkit.shapes.tensor import Ratio

__all__ = ["Operand", "Step", "Steps", "used"]


class Step:
    """An operation on operands.

    Attributes:
        op: `+`, `*`, `//`, `%`, `min`, `max`; `float32` and `float64` of a dividend and a divisor: the quotient, each
            of the two and the result rounded.
        args: Its operands; a number is the first of a product, and the last of a sum.
        uses: How often it is an operand of another step, or of a list.
        divides_by_zero: Whether its divisor, which is not a number, may be 0.
        can_fail: Whether it may have no result, for that reason or for that of an operand.
    """

    __slots__ = ("args", "can_fail", "divides_by_zero", "op", "uses")

    def __init__(self, op: str, args: tuple[Operand, ...], divides_by_zero: bool) -> None:
        self.op, self.args, self.divides_by_zero, self.uses = op, args, divides_by_zero, 0
        self.can_fail: bool = divides_by_zero or any(isinstance(arg, Step) and arg.can_fail for arg in args)

    def __repr__(self) -> str:
        return f"({self.op} {' '.join(map(repr, self.args))})"

    @property
    def has_name(self) -> bool:
        """Whether it is worth a variable: a call, used more than once, or without result at times."""
        return self.can_fail or self.uses > 1 or self.op in ("//", "%", "min", "max")


Operand = int | float | str | Step | None  # a number, a symbol, a result, or what is not known


class Steps:
    """The steps that some expressions in known symbols need, in an order in which each needs only those before it."""

    def __init__(self, symbols: frozenset[str]) -> None:
        self.symbols = symbols
        self._steps: dict[tuple[str, tuple[Operand, ...], bool], Step] = {}
        self._operands: dict[Expr, Operand] = {}

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def of(self, expr: Expr | None) -> Operand:
        """Return an expression's value; None where it is not known."""
        if expr is None or not expr.symbols <= self.symbols:
            return None
        if expr not in self._operands:
            self._operands[expr] = self._sum(expr)
        return self._operands[expr]

    def element(self, element: Expr | Ratio | float | None, dtype: str) -> Operand:
        """Return an element of a tensor, rounded to its dtype; None where it is not known."""
        if element is None or isinstance(element, float):
            return element
        if not dtype.startswith("float"):
            return None if isinstance(element, Ratio) else self.of(element)
        ratio = element if isinstance(element, Ratio) else Ratio(element, 1)
        number = ratio.dividend.constant
        if number is not None and ratio.divisor == 1 and abs(number) < 2048:  # exact in float16 too
            return float(number)
        dividend = self.of(ratio.dividend)
        if dividend is None or dtype not in ("float32", "float64"):  # no rule follows symbols in float16
            return None
        return self._step(dtype, (dividend, ratio.divisor))

    def _sum(self, expr: Expr) -> Operand:
        if expr.constant is not None:
            return expr.constant
        terms = sorted(expr.terms, key=lambda term: (not term[0], term[1] < 0))  # begin with something positive
        operands = tuple(self._term(monomial, factor) for monomial, factor in terms)
        return operands[0] if len(operands) == 1 else self._step("+", operands)

    def _term(self, monomial: Monomial, factor: int) -> Operand:
        if not monomial:
            return factor
        atoms = tuple(self._atom(atom) for atom in monomial)
        product = atoms[0] if len(atoms) == 1 else self._step("*", atoms)
        return product if factor == 1 else self._step("*", (factor, product))

    def _atom(self, atom: Symbol | Call) -> Operand:
        if isinstance(atom, Symbol):
            return atom.name
        args = tuple(self.of(arg) for arg in atom.args)
        divides_by_zero = atom.op in ("//", "%") and not is_nonzero(atom.args[1])
        return self._step(atom.op, args, divides_by_zero)

    def _step(self, op: str, args: tuple[Operand, ...], divides_by_zero: bool = False) -> Step:
        key = (op, args, divides_by_zero)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = Step(op, args, divides_by_zero)
            for arg in args:
                used(arg)
            if divides_by_zero:
                used(args[1])  # it is compared with 0 too
        return step


def used(operand: Operand) -> Operand:
    """Count a use of an operand, and return it."""
    if isinstance(operand, Step):
        operand.uses += 1
    return operand
