"""A rule's view of the node that it works on: inputs, attributes, and where to put what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import onnx
from onnx import AttributeProto

from graphkit.graph.view import Node, Scope, Value
from graphkit.shapes.algebra import divide_exactly, maximum, without_common_factor
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Call, Expr, TooComplexError, const
from graphkit.shapes.tensor import Array, Dims, Element, Tensor, is_known, number

__all__ = ["Engine", "Finding", "Rule", "Site", "UnknownError"]


class UnknownError(Exception):
    """A rule's "unknown, because ...", caught in one place by the engine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that cannot hold at any legal dims.

    Attributes:
        node: Path of the node.
        message: What contradicts what.
        body: The innermost body around the node that may not run, such as a branch that is chosen at run time: then it
            is this body that cannot run, not the model. None where the node runs whenever the model does.
    """

    node: str
    message: str
    body: Scope | None = None


class Engine(Protocol):
    """What control flow and functions need of the engine, and what rules note there."""

    def fresh(self, label: str, reason: str, low: float) -> Expr:
        """Return a new symbol for something unknown."""

    def note_finding(self, node: Node, message: str) -> None:
        """Note a contradiction."""

    def note_equal(self, node: Node, left: Expr, right: Expr) -> None:
        """Note that two expressions are equal whenever a node runs."""

    def note_joined(self, node: Node, left: Expr, right: Expr) -> None:
        """Note that two expressions broadcast: they are equal whenever a node runs, or one of them is 1."""

    def note_least(self, node: Node, expr: Expr, least: int) -> None:
        """Note that an expression is at least a number whenever a node runs."""

    def run_body(self, body: Scope, inputs: Sequence[Tensor], *, is_certain: bool = True) -> list[Tensor]:
        """Infer a body, which runs whenever its node does or may not run, and return its outputs."""

    def contradiction(self, body: Scope) -> str:
        """Return why a body that may not run cannot run, "" for no reason."""

    def load(self, tensor: onnx.TensorProto) -> Tensor:
        """Return what is known of a constant."""

    def mark(self) -> tuple[int, ...]:
        """Return where the notes stand."""

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Forget the notes after a mark."""


class Site:
    """A node with what is known of its inputs."""

    def __init__(
        self, node: Node, inputs: Sequence[Tensor | None], engine: Engine, attributes: Mapping[str, AttributeProto]
    ) -> None:
        self.node, self.inputs, self.engine, self.attributes = node, inputs, engine, attributes

    # Inputs

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self.node.scope.opset()

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int = 0) -> Tensor:
        """Return an input."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise UnknownError(f"input {index} is missing")
        return found

    def name(self, index: int) -> str:
        """Return the name of an input."""
        value = self.node.input(index)
        return f"'{value.name}'" if isinstance(value, Value) else f"input {index}"

    def dims(self, index: int = 0) -> Dims:
        """Return the dims of an input, whose rank must be known."""
        found = self.tensor(index)
        if found.dims is None:
            raise UnknownError(found.reason or f"the rank of {self.name(index)} is unknown")
        return found.dims

    def data(self, index: int) -> Array | None:
        """Return the elements of an input where it is given and they are known."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return None if found is None else found.data

    def values(self, index: int) -> list[Element]:
        """Return the elements of an input, which must be known."""
        data = self.data(index)
        if data is None:
            reason = self.tensor(index).reason
            raise UnknownError(f"the value of {self.name(index)} is unknown" + (f": {reason}" if reason else ""))
        elements: list[Element] = data.ravel().tolist()
        return elements

    def numbers(self, index: int) -> list[int]:
        """Return the elements of an integer input, which must be numbers."""
        found = [number(element) for element in self.values(index)]
        if None in found:
            raise UnknownError(f"the value of {self.name(index)} is no constant")
        return [n for n in found if n is not None]

    # Attributes

    def _attribute(self, name: str, kind: int) -> AttributeProto | None:
        found = self.attributes.get(name)
        if found is not None and found.type not in (kind, AttributeProto.UNDEFINED):
            raise UnknownError(f"its attribute '{name}' is of another kind")
        return found

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        found = self._attribute(name, AttributeProto.INT)
        return found.i if found is not None else default

    def integers(self, name: str) -> list[int] | None:
        """Return a list attribute, None where it is not given."""
        found = self._attribute(name, AttributeProto.INTS)
        return list(found.ints) if found is not None else None

    def real(self, name: str, default: float) -> float:
        """Return a float attribute."""
        found = self._attribute(name, AttributeProto.FLOAT)
        return found.f if found is not None else default

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        found = self._attribute(name, AttributeProto.STRING)
        return found.s.decode("utf-8", "replace") if found is not None else default

    def axes(self, index: int, since: int) -> list[int] | None:
        """Return axes: an input from an opset on, an attribute before."""
        if self.opset >= since and not self.node.domain:
            return self.numbers(index) if self.has(index) else None
        return self.integers("axes")

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= value < rank:
            self.finding(f"axis {value} of a tensor of rank {rank}")
            raise UnknownError(f"axis {value} is out of range")
        return value % rank

    # What it finds

    def fresh(self, reason: str, low: float = 0) -> Expr:
        """Return a symbol for something unknown."""
        return self.engine.fresh(self.node.label, reason, low)

    def finding(self, message: str) -> None:
        """Note a contradiction."""
        self.engine.note_finding(self.node, message)

    def same(self, left: Expr, right: Expr, what: str) -> Expr:
        """Return the simpler of two expressions that must be equal for the node to run."""
        if left is right or left == right:
            return left
        difference = left - right
        if lower(difference) > 0 or upper(difference) < 0:
            self.finding(f"{what}: {left} is not {right}")
            return left
        self.engine.note_equal(self.node, *without_common_factor(left, right, is_certain=False))
        return min(left, right, key=_plainness)

    def at_least(self, expr: Expr, least: int, what: str) -> None:
        """Note what must not be smaller for the node to run."""
        if lower(expr) >= least:
            return
        if upper(expr) < least:
            self.finding(f"{what}: {expr} is less than {least}")
        else:
            self.engine.note_least(self.node, expr, least)

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
        self.engine.note_joined(self.node, left, right)
        if low >= 2 or other_low >= 2:
            larger, smaller = (left, right) if low >= 2 else (right, left)
            if upper(smaller) <= 0:
                self.finding(f"dims that broadcast: {left} and {right}")
            return larger  # the other is 1 or equal, or the node does not run
        if left == 0 or right == 0:
            return const(0)
        for cut, whole in ((left, right), (right, left)):
            if _is_cut_of(cut, whole):
                self.engine.note_equal(self.node, cut, whole)
                return whole
        if low >= 1 and other_low >= 1:
            with suppress(TooComplexError):
                return maximum(left, right)  # one is 1, or they are equal
            return self.fresh("too many dims broadcast, each of which may be 1", 1)
        return self.fresh(f"{left} and {right} broadcast, and either may be 1 or 0")

    def quotient(self, dividend: Expr, divisor: Expr, what: str) -> Expr:
        """Return the quotient of a division that must leave no rest for the node to run."""
        if divisor == 0:
            raise UnknownError(f"{what} is divided by 0")
        size, total = divisor.constant, dividend.constant
        if size is not None and total is not None and total % size:
            self.finding(f"{what}: {total} is not a multiple of {size}")
        return divide_exactly(dividend, divisor)


Rule = Callable[[Site], "Tensor | list[Tensor]"]


def _is_cut_of(cut: Expr, whole: Expr) -> bool:
    """Whether one dim is `min(whole, something >= 2)`: where that is 1, so is the whole; so they broadcast if equal."""
    atom = cut.atom
    if not isinstance(atom, Call) or atom.op != "min" or whole not in atom.args or lower(whole) < 1:
        return False
    return all(lower(arg) >= 2 for arg in atom.args if arg != whole)


def _plainness(expr: Expr) -> tuple[bool, bool, int]:
    return not is_known(expr), expr.constant is None, len(str(expr))
