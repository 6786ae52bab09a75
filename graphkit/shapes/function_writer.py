"""Writing the plan of a function in a language: the part that languages share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphkit.shapes.codegen_plan import Operand, Operands, Plan, Step
from graphkit.shapes.symbols import Bound

if TYPE_CHECKING:
    from graphkit.shapes.program_contents import Source

__all__ = ["Language"]


class Language(ABC):
    """How a language writes a plan.

    Attributes:
        unknown: The word for None.
        is_unknown, is_zero: A comparison of `{}` with None, and with 0.
        equal: The operator that tells whether two numbers are equal.
        statement: A line that does something.
        assignment: A line that gives a variable a value.
        checks: The first line, each entry and the last line of a table of the inputs' dims.
        check_loop: The lines that check the shapes given.
        result: The first line, each entry and the last line of the result.
    """

    unknown: str
    is_unknown: str
    is_zero: str
    equal: str
    statement: str
    assignment: str
    checks: tuple[str, str, str]
    check_loop: str
    result: tuple[str, str, str]

    def __init__(self, plan: Plan) -> None:
        self.plan, self.names = plan, plan.names

    @abstractmethod
    def text(self, text: str) -> str:
        """Return a string in quotes."""

    @abstractmethod
    def difference(self, size: str, rest: Operand) -> str:
        """Return a size less an operand."""

    @abstractmethod
    def quotient(self, size: str, divisor: int) -> str:
        """Return a size divided by a number, rounded down."""

    @abstractmethod
    def not_finite(self, value: float) -> str:
        """Return an infinity, or the number that is none."""

    @abstractmethod
    def operation(self, step: Step) -> str:
        """Return an operation on its operands."""

    @abstractmethod
    def choice(self, conditions: Sequence[str], otherwise: str) -> str:
        """Return an expression that is unknown where one of the conditions holds, and `otherwise` elsewhere."""

    @abstractmethod
    def sequence(self, items: Sequence[str]) -> str:
        """Return a list of some items."""

    def operand(self, operand: Operand) -> str:
        """Return an operand: a variable, a number, or an operation that has no variable."""
        if operand is None:
            return self.unknown
        if isinstance(operand, (int, float)):
            return self.number(operand)
        name = self.names.get(operand)
        if name is None and isinstance(operand, Step):
            return self.operation(operand)
        return name or self.unknown

    def number(self, value: float) -> str:
        """Return a number, an integer where it is an int."""
        return repr(value) if isinstance(value, int) or math.isfinite(value) else self.not_finite(value)

    def right_side(self, step: Step) -> str:
        """Return the expression assigned to a step's variable: unknown where its computation would divide by 0."""
        failing = [arg for arg in step.args if isinstance(arg, Step) and arg.can_fail]
        conditions = [self.is_unknown.format(self.operand(arg)) for arg in failing]
        if step.divides_by_zero:
            conditions.append(self.is_zero.format(self.operand(step.args[1])))
        text = self.operation(step)
        return self.choice(conditions, text) if conditions else text

    def bound(self, bound: Bound) -> str:
        """Return a bound as code, with the language's word for None where it is open."""
        return self.number(bound) if math.isfinite(bound) else self.unknown

    def items(self, operands: Operands) -> str:
        """Return a list of operands."""
        return self.sequence([self.operand(operand) for operand in operands])

    def body(self) -> Iterator[str]:
        """Yield the statements of the function."""
        yield from self._numbers()
        yield from self._checks()
        for claim in self.plan.claims:
            left, right = self.operand(claim.left), self.operand(claim.right)
            relation = self.equal if claim.relation == "==" else claim.relation
            yield self._call("ensure", f"{left} {relation} {right}", self.text(claim.text), left, right)
        for variable, operands in self.plan.lists:
            yield self.assignment.format(variable, self.items(operands))
        begin, entry, end = self.result
        yield begin
        for key, value in self.plan.entries:
            yield entry.format(self.text(key), value if isinstance(value, str) else self.items(value))
        yield end

    def _numbers(self) -> Iterator[str]:
        for variable, name, dims, rank in self.plan.shapes:
            yield self._call("read", self.text(name), self.text(dims), rank, variable=variable)
        for variable, source, shape, remainder in self.plan.sources:
            size = f"{shape}[{source.axis}]"
            size = size if remainder == 0 else self.difference(size, remainder)
            size = size if source.factor == 1 else self.quotient(size, source.factor)
            subject = f"{source.symbol}, which axis {source.axis} of input '{source.input}' gives,"
            least, most = self.bound(source.least), self.bound(source.most)
            yield self._call(
                "inside", size, least, most, self.text(subject), self.text(_range_words(source)), variable=variable
            )
        for variable, step in self.plan.steps:
            yield self.assignment.format(variable, self.right_side(step))

    def _checks(self) -> Iterator[str]:
        begin, entry, end = self.checks
        entries = []
        for number, check in enumerate(self.plan.checks):
            value = self.unknown
            if check.expected is not None:
                value = f"c{number}"
                yield self.assignment.format(value, self.sequence([self.text(check.text), self.items(check.expected)]))
            entries += [entry.format(self.text(name), value) for name in check.names]
        yield from (begin, *entries, end, self.check_loop)

    def _call(self, function: str, *args: object, variable: str = "") -> str:
        text = f"{function}({', '.join(map(str, args))})"
        return self.assignment.format(variable, text) if variable else self.statement.format(text)


def _range_words(source: Source) -> str:
    """Return the words for the range of a symbol: `1 or more`, `3`, `2 to 8`, `at most 8`."""
    least, most = source.least, source.most
    if least == most:
        return str(least)
    if math.isinf(most):
        return f"{least} or more" if math.isfinite(least) else "an integer"
    return f"{least} to {most}" if math.isfinite(least) else f"at most {most}"
