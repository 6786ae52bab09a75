"""Preconditions: conditions on the dims that a node reads, tested at many assignments at once.

They describe the CPU kernels of onnxruntime 1.32; tests run each kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from graphkit.graph.names import join_words
from graphkit.ops.tensor import is_known
from graphkit.symbolic.algebra import Relation
from graphkit.symbolic.expr import Expr

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
FINE, FAILS, WRONG = 0, 1, 2  # outcomes: it runs as meant; it fails; it runs and gives another shape
COMPARISONS: Mapping[str, Callable[[Ints, Ints], Bools]] = {"==": np.equal, ">=": np.greater_equal, "<=": np.less_equal}


class Violation(Struct, frozen=True):
    """The effect on a node whose precondition is not met."""

    problem: str  # a description with the numbers
    says: str = ""  # part of onnxruntime's message, "" if none is known
    shape: tuple[int, ...] | None = None  # the shape that the node gives if it does not fail


class Precondition(ABC):
    """A condition on the dims that a node reads; each kind is a dataclass."""

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        """The expressions that the outcome depends on, in the order of the fields."""
        return tuple(_exprs_in(self))

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names in them."""
        return frozenset().union(*(expr.symbols for expr in self.exprs))

    @property
    def is_known(self) -> bool:
        """Whether all of them are expressions in the model's input dims."""
        return all(map(is_known, self.exprs))

    def with_exprs(self, rewrite: Callable[[Expr], Expr]) -> Precondition:
        """Return the same of other expressions; itself if there is nothing unknown in it."""
        return self if self.is_known else cast(Precondition, _rewrite_exprs(self, rewrite))

    @abstractmethod
    def outcome(self, values: Sequence[Ints]) -> Ints:
        """Return FINE, FAILS or WRONG for each assignment, from the values of the expressions."""

    @abstractmethod
    def violation(self, values: Sequence[int]) -> Violation:
        """Return the effect of operands whose outcome is not FINE."""

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        """Return the pairs of expressions that are meant to be equal."""
        return ()

    @property
    def told(self) -> tuple[Expr, ...]:
        """The expressions that matter to a reader."""
        return self.exprs

    @property
    def is_guess(self) -> bool:
        """Whether it only counts if it is met at sizes at which all others are."""
        return False


def _exprs_in(part: Any) -> Iterator[Expr]:
    if isinstance(part, Expr):
        yield part
    elif isinstance(part, Relation):
        yield from (part.left, part.right)
    elif isinstance(part, (tuple, Precondition)):
        inner = part if isinstance(part, tuple) else (getattr(part, each.name) for each in fields(cast(Any, part)))
        for each in inner:
            yield from _exprs_in(each)


def _rewrite_exprs(part: Any, rewrite: Callable[[Expr], Expr]) -> Any:
    if isinstance(part, Expr):
        return rewrite(part)
    if isinstance(part, tuple):
        return tuple(_rewrite_exprs(each, rewrite) for each in part)
    if isinstance(part, Relation):
        return structs.replace(part, left=rewrite(part.left), right=rewrite(part.right))
    if isinstance(part, Precondition):
        whole: Any = part
        return replace(whole, **{x.name: _rewrite_exprs(getattr(part, x.name), rewrite) for x in fields(whole)})
    return part


def name_value(expr: Expr, value: int) -> str:
    """Return an expression with its value."""
    return str(value) if expr.constant is not None else f"{expr} is {value}"


def _limit_text(expr: Expr, value: int) -> str:
    return str(value) if expr.constant is not None else f"{value} ({expr})"


def pair_text(exprs: Sequence[Expr], values: Sequence[int]) -> str:
    """Return expressions with their values as a list in a sentence, numbers last."""
    pairs = sorted(zip(exprs, values, strict=True), key=lambda pair: pair[0].constant is not None)
    return join_words([name_value(expr, value) for expr, value in pairs])


def failing_where(where: npt.NDArray[np.bool_]) -> Ints:
    """Return FAILS where a condition holds, FINE elsewhere."""
    result: Ints = np.where(where, FAILS, FINE)
    return result


@dataclass(frozen=True)
class Related(Precondition):
    """A relation of two expressions holds: dims are equal, or a dim is large enough."""

    relation: Relation
    what: str
    says: str

    def outcome(self, values: Sequence[Ints]) -> Ints:
        return failing_where(~COMPARISONS[self.relation.relation](values[0], values[1]))

    def violation(self, values: Sequence[int]) -> Violation:
        left, right = self.relation.left, self.relation.right
        if self.relation.relation != "==":
            compared = "less" if self.relation.relation == ">=" else "more"
            problem = f"{self.what}: {name_value(left, values[0])}, {compared} than {_limit_text(right, values[1])}"
        elif right.constant is not None:
            problem = f"{self.what} differ: {name_value(left, values[0])}, not {values[1]}"
        else:
            problem = f"{self.what} differ: {pair_text((left, right), values)}"
        return Violation(problem, self.says)

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return ((self.relation.left, self.relation.right),) if self.relation.relation == "==" else ()


@dataclass(frozen=True)
class Condition(Precondition):
    """Some numbers fit together."""

    operands: tuple[Expr, ...]  # the numbers
    fails: Callable[..., Bools]  # at which values of them the node fails
    problem: str  # with `{0}` for the first number and its name, `{values[0]}` for it alone
    says: str  # part of onnxruntime's message
    equal: tuple[tuple[Expr, Expr], ...] = ()  # what is meant to be equal

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        return self.operands

    def outcome(self, values: Sequence[Ints]) -> Ints:
        return failing_where(self.fails(*values))

    def violation(self, values: Sequence[int]) -> Violation:
        return Violation(self.problem.format(*map(name_value, self.exprs, values), values=values), self.says)

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return self.equal


def is_zero(number: Ints, amount: Ints) -> Bools:
    """Return where a number is 0 although there are elements to compute (`amount` is not 0)."""
    return np.asarray((number == 0) & (amount != 0))


def has_rest(number: Ints, divisor: Ints) -> Bools:
    """Return where a number is no multiple of another one."""
    return np.asarray(number % divisor != 0)


@dataclass(frozen=True)
class Index(Precondition):
    """Indices from `low` to `high` are inside an axis of `size`, unless there are none (`count` is 0)."""

    low: Expr
    high: Expr
    size: Expr
    count: Expr
    says: str

    def outcome(self, values: Sequence[Ints]) -> Ints:
        low, high, size, count = values
        return failing_where(((low < -size) | (high >= size)) & (count > 0))

    @property
    def told(self) -> tuple[Expr, ...]:
        return self.low, self.high, self.size

    def violation(self, values: Sequence[int]) -> Violation:
        low, high, size, _ = values
        expr, value = (self.high, high) if high >= size else (self.low, low)
        return Violation(f"index {_limit_text(expr, value)} into an axis of {_limit_text(self.size, size)}", self.says)


BROADCAST = "broadcast"


@dataclass(frozen=True)
class Broadcast(Precondition):
    """Dims of one axis broadcast: all that are not 1 are equal."""

    dims: tuple[Expr, ...]
    says: str = BROADCAST

    def outcome(self, values: Sequence[Ints]) -> Ints:
        largest = np.where(values[0] == 1, values[-1], values[0])
        for value in values:
            largest = np.where(value != 1, value, largest)
        clash = np.zeros(largest.shape, np.bool_)
        for value in values:
            clash |= (value != 1) & (value != largest)
        return failing_where(clash)

    def violation(self, values: Sequence[int]) -> Violation:
        return Violation(f"dims that do not broadcast: {pair_text(self.dims, values)}", self.says)

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return tuple((self.dims[0], dim) for dim in self.dims[1:])
