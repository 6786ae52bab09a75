"""Writing operands in a language: the part that languages share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from graphkit.shapes.code.plan import Operands
from graphkit.shapes.code.steps import Operand, Step
from graphkit.shapes.symbols import Bound

if TYPE_CHECKING:
    from graphkit.shapes.sources import Source

__all__ = ["Words", "range_words"]


class Words(ABC):
    """How a language writes operands.

    Args:
        names: Variable of each symbol and of each step that has one.
    """

    unknown: str  # what stands for None
    is_unknown: str  # an expression in `{}`
    is_zero: str

    def __init__(self, names: Mapping[str | Step, str]) -> None:
        self.names = names

    @abstractmethod
    def number(self, value: float) -> str:
        """Return a number, an integer where it is an int."""

    @abstractmethod
    def operation(self, step: Step) -> str:
        """Return an operation on its operands."""

    @abstractmethod
    def choice(self, conditions: Sequence[str], otherwise: str) -> str:
        """Return what is unknown where one of some conditions holds, and something else otherwise."""

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

    def right_side(self, step: Step) -> str:
        """Return what a step's variable is: unknown where its computation would divide by 0."""
        failing = [arg for arg in step.args if isinstance(arg, Step) and arg.can_fail]
        conditions = [self.is_unknown.format(self.operand(arg)) for arg in failing]
        if step.divides_by_zero:
            conditions.append(self.is_zero.format(self.operand(step.args[1])))
        text = self.operation(step)
        return self.choice(conditions, text) if conditions else text

    def bound(self, bound: Bound) -> str:
        """Return a bound, what stands for None where that is open."""
        return self.number(bound) if math.isfinite(bound) else self.unknown

    def items(self, operands: Operands) -> str:
        """Return a list of operands."""
        return self.sequence([self.operand(operand) for operand in operands])


def range_words(source: Source) -> tuple[str, str]:
    """Return the words for a symbol and for its range: `1 or more`, `3`, `2 to 8`, `at most 8`."""
    return f"{source.symbol}, which axis {source.axis} of input '{source.input}' gives,", _range(source)


def _range(source: Source) -> str:
    least, most = source.least, source.most
    if least == most:
        return str(least)
    if math.isinf(most):
        return f"{least} or more" if math.isfinite(least) else "an integer"
    return f"{least} to {most}" if math.isfinite(least) else f"at most {most}"
