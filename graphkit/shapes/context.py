"""The context of a shape rule: the known facts of its node, and the place to report findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import onnx
from onnx import AttributeProto

from graphkit.graph.view import Node, Scope
from graphkit.model import Model
from graphkit.shapes.algebra import divide_exactly, maximum, without_common_factor
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Call, Expr, const
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.node_view import NodeView, UnknownError
from graphkit.shapes.notes import Finding, Notes
from graphkit.shapes.relations import Requirement
from graphkit.shapes.tensor import Dims, Tensor, is_known

__all__ = ["Engine", "InferenceContext", "Rule"]


class Engine(Protocol):
    """The part of the engine that rules use.

    Attributes:
        body: The innermost body around the current node that may not run.
    """

    model: Model
    notes: Notes
    body: Scope | None

    def run_body(self, body: Scope, inputs: Sequence[Tensor], *, is_certain: bool = True) -> list[Tensor]:
        """Infer a body, which runs whenever its node does or may not run, and return its outputs."""

    def load(self, tensor: onnx.TensorProto) -> Tensor:
        """Return the known facts of a constant."""


class InferenceContext(NodeView):
    """A node with the known facts of its inputs, and the place where its rule reports findings."""

    def __init__(
        self, node: Node, inputs: Sequence[Tensor | None], attributes: Mapping[str, AttributeProto], engine: Engine
    ) -> None:
        super().__init__(node, inputs, attributes)
        self.engine, self.notes = engine, engine.notes

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front; an axis out of range is a finding."""
        if not -rank <= value < rank:
            self.finding(f"axis {value} of a tensor of rank {rank}")
        return super().axis(value, rank)

    def new_symbol(self, reason: str, low: float = 0) -> Expr:
        """Return a symbol for something unknown."""
        return self.notes.new_symbol(self.node.label, reason, low)

    def size(self, index: int) -> Expr:
        """Return the only element of an integer input, a symbol where it is not known."""
        return self.unknown_value(index) if self.data(index) is None else Expr.of(self.scalar(index))  # type: ignore[arg-type]

    def unknown_value(self, index: int, low: float = 0) -> Expr:
        """Return a symbol for an element of an input that is not known."""
        return self.new_symbol(f"the value of {self.name(index)} is unknown", low)

    def finding(self, message: str) -> None:
        """Note a contradiction."""
        self.notes.findings.append(Finding(self.node.path, message, self.engine.body))

    def impossible(self, message: str, reason: str) -> UnknownError:
        """Note a contradiction that leaves the outputs unknown, and return the error to raise."""
        self.finding(message)
        return UnknownError(reason)

    def same(self, left: Expr, right: Expr, what: str) -> Expr:
        """Return the simpler of two expressions that must be equal for the node to run."""
        if left is right or left == right:
            return left
        difference = left - right
        if lower(difference) > 0 or upper(difference) < 0:
            self.finding(f"{what}: {left} is not {right}")
            return left
        self._must_equal(*without_common_factor(left, right, is_certain=False))
        return min(left, right, key=_plainness)

    def _must_equal(self, left: Expr, right: Expr) -> None:
        self.notes.equalities.append(Requirement(left, "==", right, self.node))

    def at_least(self, expr: Expr, least: int, what: str) -> None:
        """Note that an expression must be at least a number for the node to run."""
        if lower(expr) >= least:
            return
        if upper(expr) < least:
            self.finding(f"{what}: {expr} is less than {least}")
        else:
            self.notes.inequalities.append(Requirement(expr, ">=", const(least), self.node))

    def broadcast(self, *shapes: Dims) -> Dims:
        """Return the dims that some dims broadcast to."""
        rank = max(map(len, shapes))
        result = [const(1)] * (rank - len(shapes[0])) + list(shapes[0])
        for shape in shapes[1:]:
            offset = rank - len(shape)
            for position, dim in enumerate(shape, offset):
                if dim is not result[position]:
                    result[position] = self._broadcast_dim(result[position], dim)
        return tuple(result)

    def _broadcast_dim(self, left: Expr, right: Expr) -> Expr:
        if left == right or right == 1:
            return left
        if left == 1:
            return right
        low, other_low = lower(left), lower(right)
        if low >= 2 and other_low >= 2:
            return self.same(left, right, "dims that broadcast")
        self.notes.broadcasts.append(Requirement(left, "==", right, self.node))
        if low >= 2 or other_low >= 2:
            larger, smaller = (left, right) if low >= 2 else (right, left)
            if upper(smaller) <= 0:
                self.finding(f"dims that broadcast: {left} and {right}")
            return larger  # the other is 1 or equal, or the node does not run
        if left == 0 or right == 0:
            return const(0)
        for cut, whole in ((left, right), (right, left)):
            if _is_cut_of(cut, whole):
                self._must_equal(cut, whole)
                return whole
        if low >= 1 and other_low >= 1:
            with suppress(TooComplexError):
                return maximum(left, right)  # one is 1, or they are equal
            return self.new_symbol("too many dims broadcast, each of which may be 1", 1)
        return self.new_symbol(f"{left} and {right} broadcast, and either may be 1 or 0")

    def quotient(self, dividend: Expr, divisor: Expr, what: str) -> Expr:
        """Return the quotient of a division that must leave no rest for the node to run."""
        if divisor == 0:
            raise UnknownError(f"{what} is divided by 0")
        size, total = divisor.constant, dividend.constant
        if size is not None and total is not None and total % size:
            self.finding(f"{what}: {total} is not a multiple of {size}")
        return divide_exactly(dividend, divisor)


Rule = Callable[[InferenceContext], "Tensor | list[Tensor]"]


def _is_cut_of(cut: Expr, whole: Expr) -> bool:
    """Whether one dim is `min(whole, something >= 2)`: where that is 1, so is the whole; so they broadcast if equal."""
    atom = cut.atom
    if not isinstance(atom, Call) or atom.op != "min" or whole not in atom.args or lower(whole) < 1:
        return False
    return all(lower(arg) >= 2 for arg in atom.args if arg != whole)


def _plainness(expr: Expr) -> tuple[bool, bool, int]:
    return not is_known(expr), expr.constant is None, len(str(expr))
