"""Conditions on dims that hold wherever a body runs: the condition of an If, the iterations of a Loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.view import Node, Scope, Value, unwrap_value
from graphkit.ops.preconditions import FINE, Bools, Ints, Precondition, Violation
from graphkit.shapes import Expr, Tensor, const, is_known

__all__ = ["Guard", "Guarded", "guard_of"]

COMPARING: Mapping[str, Callable[[Ints, Ints], Bools]] = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}
OPPOSITES = (("Less", "GreaterOrEqual"), ("Greater", "LessOrEqual"), ("Equal", "NotEqual"))
OPPOSITE = dict((*OPPOSITES, *(pair[::-1] for pair in OPPOSITES)))
TensorOf = Callable[[Value], Tensor]


@dataclass(frozen=True)
class Guard:
    """A comparison of two expressions, or several guards of which all or one must hold ("And", "Or")."""

    op: str
    sides: tuple[Expr, ...] = ()
    parts: tuple[Guard, ...] = ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The expressions in it, in the order in which `holds` takes their values."""
        return self.sides or tuple(expr for part in self.parts for expr in part.exprs)

    def holds(self, values: Iterator[Ints]) -> Bools:
        """Return at which assignments it holds."""
        if self.sides:
            return COMPARING[self.op](next(values), next(values))
        outcomes = [part.holds(values) for part in self.parts]
        return np.asarray((np.logical_and if self.op == "And" else np.logical_or).reduce(outcomes))


@dataclass(frozen=True)
class Guarded(Precondition):
    """A precondition of a node in a body, which counts where the body runs."""

    inner: Precondition
    guard: Guard

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.inner.exprs, *self.guard.exprs)

    @property
    def told(self) -> tuple[Expr, ...]:
        return self.inner.told

    @property
    def is_guess(self) -> bool:
        return self.inner.is_guess

    def outcome(self, values: Sequence[Ints]) -> Ints:
        own = len(self.inner.exprs)
        return np.where(self.guard.holds(iter(values[own:])), self.inner.outcome(values[:own]), FINE)

    def violation(self, values: Sequence[int]) -> Violation:
        return self.inner.violation(values[: len(self.inner.exprs)])


def guard_of(scope: Scope, tensor_of: TensorOf) -> Guard | None:
    """Return what is known to hold wherever a body runs, None where nothing is."""
    guards = []
    while (node := scope.owner) is not None:
        guard = _of_body(node, scope, tensor_of)
        guards += [guard] if guard is not None else []
        scope = node.scope
    return _join_guards("And", guards)


def _of_body(node: Node, body: Scope, tensor_of: TensorOf) -> Guard | None:
    first = node.input(0)
    if first is None:
        return None
    if node.is_op("If"):
        return _guard_when(first, body is node.bodies.get("then_branch"), tensor_of)
    times = _scalar_of(first, tensor_of) if node.is_op("Loop") else None
    return Guard("Greater", (times, const(0))) if times is not None else None


def _guard_when(value: Value, is_true: bool, tensor_of: TensorOf) -> Guard | None:
    """Return what holds where a condition is true, or false; a part that is not known is left out where it may be."""
    value = unwrap_value(value, ("Identity", *RESHAPING))
    node = value.producer
    operands = node.inputs if node is not None else ()
    if node is None or not operands or None in operands:
        return None
    known = [operand for operand in operands if operand is not None]
    if node.is_op("Not"):
        return _guard_when(known[0], not is_true, tensor_of)
    if node.is_op("And", "Or"):
        parts = [_guard_when(operand, is_true, tensor_of) for operand in known]
        needs_all = node.is_op("And") is is_true
        kept = [part for part in parts if part is not None]
        return _join_guards("And" if needs_all else "Or", kept) if needs_all or len(kept) == len(parts) else None
    if node.is_op("Cast"):
        number = _scalar_of(known[0], tensor_of)
        return Guard("NotEqual" if is_true else "Equal", (number, const(0))) if number is not None else None
    if not node.is_op(*COMPARING):
        return None
    sides = [_scalar_of(operand, tensor_of) for operand in known]
    numbers = tuple(side for side in sides if side is not None)
    return Guard(node.op_type if is_true else OPPOSITE[node.op_type], numbers) if len(numbers) == 2 else None


def _join_guards(op: str, guards: Sequence[Guard]) -> Guard | None:
    return Guard(op, parts=tuple(guards)) if len(guards) > 1 else next(iter(guards), None)


def _scalar_of(value: Value, tensor_of: TensorOf) -> Expr | None:
    """Return the integer that a tensor of one element holds, None where it is not known."""
    elements = tensor_of(value).elements or ()
    number = elements[0] if len(elements) == 1 else None
    return number if isinstance(number, Expr) and is_known(number) else None
