"""The context of a shape rule: its node, the known facts of the inputs, and the notes of the pass.

`NodeView` reads only; constraints use it too. `InferenceContext` also notes what must hold for the node to run: each
condition once, for inference, hazards and legal sizes alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import permutations, product
from typing import Any, Protocol

import numpy as np
import onnx
from msgspec import Struct, field
from onnx import AttributeProto

from graphkit.dtypes import integer_range
from graphkit.graph.operator_traits import has_attributes_only
from graphkit.graph.view import Node, Scope, T, Value, attribute_value
from graphkit.model import Model
from graphkit.ops.preconditions import BROADCAST, FAILS, Broadcast, Condition, Precondition, Related, has_rest, is_zero
from graphkit.ops.tensor import Array, Dims, Element, Tensor, dims_product, element_number, exact_range, is_known
from graphkit.symbolic.algebra import (
    Relation,
    Requirement,
    divide_exactly,
    lower,
    maximum,
    upper,
    without_common_factor,
)
from graphkit.symbolic.expr import INF, Bound, Call, Expr, TooComplexError, const, symbol


class UnknownError(Exception):
    """The reason why a rule cannot know something; the engine catches it."""


class NodeView:
    """A node, its attributes, and the known facts of its inputs."""

    def __init__(self, node: Node, inputs: Sequence[Tensor | None], attributes: Mapping[str, AttributeProto]) -> None:
        self.node, self.inputs, self.attributes = node, inputs, attributes

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
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise UnknownError(f"input {index} is missing")
        return tensor

    def name(self, index: int) -> str:
        """Return the name of an input."""
        value = self.node.input(index)
        return f"'{value.name}'" if isinstance(value, Value) else f"input {index}"

    def dims(self, index: int = 0) -> Dims:
        """Return the dims of an input, whose rank must be known."""
        tensor = self.tensor(index)
        if tensor.dims is None:
            raise UnknownError(tensor.reason or f"the rank of {self.name(index)} is unknown")
        return tensor.dims

    def data(self, index: int) -> Array | None:
        """Return the elements of an input, None if it is left out or they are not known."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        return None if tensor is None else tensor.data

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
        numbers = [element_number(element) for element in self.values(index)]
        if None in numbers:
            raise UnknownError(f"the value of {self.name(index)} is not a constant")
        return [n for n in numbers if n is not None]

    def exprs(self, index: int) -> list[Expr]:
        """Return the elements of an integer input as expressions."""
        return [self.as_expr(element) for element in self.values(index)]

    @staticmethod
    def as_expr(element: Element) -> Expr:
        """Return an integer element as an expression; ValueError if it is a float or a fraction."""
        return Expr.of(element)  # type: ignore[arg-type]

    def scalar(self, index: int) -> Element:
        """Return the only element of an input."""
        values = self.values(index)
        if len(values) != 1:
            raise UnknownError(f"{self.name(index)} is not a single number")
        return values[0]

    def like(self, dims: Iterable[Expr | int], index: int = 0) -> Tensor:
        """Return a tensor of these dims and the dtype of an input."""
        return Tensor(self.tensor(index).dtype, dims)

    # Attributes

    def attr(self, name: str, default: T | type[T]) -> T:
        """Return the value of an attribute, which must be known, as `attribute_value` does."""
        attribute = self.attributes.get(name)
        value = attribute_value(attribute, default)
        if value is None:
            raise UnknownError(f"its attribute '{name}' is {'missing' if attribute is None else 'of another kind'}")
        return value

    def axes(self) -> Sequence[int] | None:
        """Return axes, None if they are not given: the second input, an attribute in older versions."""
        if not self.node.domain and not has_attributes_only(self.node):
            return self.numbers(1) if self.has(1) else None
        return self.attr("axes", ()) if "axes" in self.attributes else None

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= value < rank:
            raise UnknownError(f"axis {value} is out of range")
        return value % rank


class NodeFacts(NodeView):
    """A node with the known facts of its inputs and outputs."""

    def __init__(self, node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> None:
        super().__init__(node, inputs, node.attributes)
        self.outputs = outputs

    def output(self, index: int = 0) -> Dims:
        """Return the dims of an output."""
        tensor = self.outputs[index] if index < len(self.outputs) else None
        if tensor is None or tensor.dims is None:
            raise UnknownError(f"its output {index} is left out" if tensor is None else tensor.reason)
        return tensor.dims

    def dims_of_rank(self, index: int, *ranks: int) -> Dims:
        """Return the dims of an input that must have one of these ranks."""
        dims = self.dims(index)
        if len(dims) not in ranks:
            raise UnknownError(f"its input {index} has rank {len(dims)}")
        return dims


class Finding(Struct, frozen=True):
    """Something that cannot hold at any legal dims."""

    node: str
    message: str
    # the innermost body around the node that may not run, such as a branch chosen at run time: this body cannot run,
    # though the model may; None if the node runs whenever the model does
    body: Scope | None = None


class Notes(Struct, frozen=True):
    """The notes of a pass."""

    reasons: dict[str, str] = field(default_factory=dict)  # the meaning of each unknown symbol
    findings: list[Finding] = field(default_factory=list)
    equalities: list[Requirement] = field(default_factory=list)
    # pairs that broadcast whenever a node runs: both are equal, or one of them is 1
    broadcasts: list[Requirement] = field(default_factory=list)
    # expressions that are at least a number whenever a node runs
    inequalities: list[Requirement] = field(default_factory=list)
    # expressions that must be at most a number, as the runtime rounds larger ones
    limits: list[Requirement] = field(default_factory=list)
    # expressions that are not followed, as the runtime makes other numbers of those above one
    wraps: list[Requirement] = field(default_factory=list)
    # what each node needs to run as meant, as it is known when its rule runs
    preconditions: list[tuple[Node, Precondition]] = field(default_factory=list)

    @property
    def lists(self) -> tuple[list[Any], ...]:
        """All but the symbols."""
        noted = self.equalities, self.broadcasts, self.inequalities, self.limits, self.wraps
        return self.findings, *noted, self.preconditions

    def new_symbol(self, label: str, reason: str, low: Bound, high: Bound = INF) -> Expr:
        """Return a new symbol for something unknown; one with an upper bound is an element, no dim."""
        name = f"?{len(self.reasons)}.{label}"
        self.reasons[name] = reason
        return symbol(name, low, high)

    def mark(self) -> tuple[int, ...]:
        """Return the current position in the notes."""
        return tuple(map(len, self.lists))

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Forget the notes made after a mark; symbols stay."""
        for notes, length in zip(self.lists, mark, strict=True):
            del notes[length:]


class Engine(Protocol):
    """The part of the engine that rules use."""

    model: Model
    notes: Notes
    body: Scope | None  # the innermost body around the current node that may not run

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
            self.note_fault(f"axis {value} of a tensor of rank {rank}")
        return super().axis(value, rank)

    def new_symbol(self, reason: str, low: Bound = 0) -> Expr:
        """Return a symbol for something unknown."""
        return self.notes.new_symbol(self.node.label, reason, low)

    def new_element(self, reason: str, dtype: int) -> Expr:
        """Return a symbol for an element that is not known: any number of its dtype."""
        return self.notes.new_symbol(self.node.label, reason, *integer_range(dtype))

    def size(self, index: int) -> Expr:
        """Return the only element of an integer input, a symbol where it is not known."""
        return self.unknown_value(index) if self.data(index) is None else self.as_expr(self.scalar(index))

    def unknown_value(self, index: int, low: Bound = 0) -> Expr:
        """Return a symbol for an element of an input that is not known."""
        return self.new_symbol(f"the value of {self.name(index)} is unknown", low)

    def note_fault(self, message: str) -> None:
        """Note a contradiction, the first of a node."""
        if not self.notes.findings or self.notes.findings[-1].node != self.node.path:
            self.notes.findings.append(Finding(self.node.path, message, self.engine.body))

    def note_violations(self, since: int) -> None:
        """Note as a fault what the node has required from a position on, where numbers alone decide that it fails."""
        for node, precondition in self.notes.preconditions[since:]:
            if node is self.node and not precondition.symbols and not precondition.is_guess:
                values = [expr.constant or 0 for expr in precondition.exprs]
                if precondition.outcome([np.array([value]) for value in values]).item() == FAILS:
                    self.note_fault(precondition.violation(values).problem)

    def impossible(self, message: str, reason: str) -> UnknownError:
        """Note a contradiction that leaves the outputs unknown, and return the error to raise."""
        self.note_fault(message)
        return UnknownError(reason)

    def require(self, precondition: Precondition) -> None:
        """Note what must hold for the node to run as meant."""
        self.notes.preconditions.append((self.node, precondition))

    def require_at_least(self, expr: Expr, least: int, what: str, says: str = "") -> None:
        """Note that an expression must be at least a number for the node to run, unless it always is."""
        if lower(expr) < least:
            self.require(Related(Relation.at_least(expr, least), what, says))

    def require_at_most(self, expr: Expr, most: Expr, what: str, says: str = "") -> None:
        """Note that an expression must be at most another one for the node to run, unless it always is."""
        with suppress(TooComplexError):
            if lower(most - expr) < 0:
                self.require(Related(Relation.at_most(expr, most), what, says))

    def require_not_zero(self, number: Expr, dims: Sequence[Expr], what: str, says: str = "") -> None:
        """Note that a number must not be 0 for the node to run, unless a dim is: then nothing is computed."""
        if lower(number) <= 0 <= upper(number):
            with suppress(TooComplexError):
                self.require(Condition((number, dims_product(dims)), is_zero, f"{what}: {{0}}", says))

    def same(self, left: Expr, right: Expr, what: str, says: str | None = "") -> Expr:
        """Return the simpler of two expressions that must be equal for the node to run.

        `what` says what they are, for people, and `says` is part of onnxruntime's message where they differ; None where
        a precondition that is noted says more.
        """
        if left is right or left == right:
            return left
        if says is not None:
            self.require(Related(Relation.equal(left, right), what, says))
        difference = left - right
        if lower(difference) > 0 or upper(difference) < 0:
            self.note_fault(f"{what}: {left} is not {right}")
            return left
        self._must_equal(*without_common_factor(left, right, is_certain=False))
        return min(left, right, key=lambda each: (not is_known(each), each.constant is None, len(str(each))))

    def _must_equal(self, left: Expr, right: Expr) -> None:
        self.notes.equalities.append(Requirement(left, "==", right, self.node))

    def at_least(self, expr: Expr, least: int, what: str, says: str | None = "") -> None:
        """Note that an expression must be at least a number for the node to run; see `same` for the arguments."""
        if lower(expr) >= least:
            return
        if says is not None:
            self.require_at_least(expr, least, what, says)
        if upper(expr) < least:
            self.note_fault(f"{what}: {expr} is less than {least}")
        else:
            self.notes.inequalities.append(Requirement(expr, ">=", const(least), self.node))

    def at_most(self, expr: Expr, most: int) -> None:
        """Note up to which number what the rule says of an expression holds: the runtime rounds larger ones."""
        if upper(expr) > most:
            self.notes.limits.append(Requirement(expr, "<=", const(most), self.node))

    def may_leave(self, element: Element, dtype: int) -> None:
        """Note beyond which numbers an element is another one in a dtype, which does not hold all that it may be."""
        least, most = exact_range(dtype)
        for expr, end in ((element, most), (-element, -least)) if isinstance(element, Expr) else ():
            if lower(expr) <= end < upper(expr) and is_known(expr):
                self.notes.wraps.append(Requirement(expr, "<=", const(end), self.node))

    def broadcast(self, *shapes: Dims, says: str = BROADCAST) -> Dims:
        """Return the dims that some dims broadcast to."""
        rank = max(map(len, shapes))
        result = [const(1)] * (rank - len(shapes[0])) + list(shapes[0])
        unlike: set[int] = set()
        for shape in shapes[1:]:
            offset = rank - len(shape)
            for position, dim in enumerate(shape, offset):
                if dim is not (before := result[position]) and dim != before:
                    if dim != 1 and before != 1:
                        unlike.add(position)
                    result[position] = self._broadcast_dim(before, dim)
        for position in sorted(unlike, reverse=True):
            dims = dict.fromkeys(shape[position - rank] for shape in shapes if len(shape) >= rank - position)
            self.require(Broadcast(tuple(dim for dim in dims if dim != 1), says))
        return tuple(result)

    def _broadcast_dim(self, left: Expr, right: Expr) -> Expr:
        if left == right or right == 1:
            return left
        if left == 1:
            return right
        low, other_low = lower(left), lower(right)
        if low >= 2 and other_low >= 2:
            return self.same(left, right, "dims that broadcast", None)
        self.notes.broadcasts.append(Requirement(left, "==", right, self.node))
        if low >= 2 or other_low >= 2:
            larger, smaller = (left, right) if low >= 2 else (right, left)
            if upper(smaller) <= 0:
                self.note_fault(f"dims that broadcast: {left} and {right}")
            return larger  # the other is 1 or equal, or the node does not run
        if left == 0 or right == 0:
            return const(0)
        for cut, whole in ((left, right), (right, left)):
            if _is_cut_of(cut, whole):
                self._must_equal(cut, whole)
                return whole
            if (inside := _end_in_table(cut, whole)) is not None:  # past it less is left, down to nothing
                self.notes.limits.append(Requirement(inside[0], "<=", inside[1], self.node))
                return whole
        if low >= 1 and other_low >= 1:
            with suppress(TooComplexError):
                return maximum(left, right)  # one is 1, or they are equal
            return self.new_symbol("too many dims broadcast, each of which may be 1", 1)
        return self.new_symbol(f"{left} and {right} broadcast, and either may be 1 or 0")

    def quotient(self, dividend: Expr, divisor: Expr, what: str, says: str | None = None) -> Expr:
        """Return the quotient of a division that must leave no rest; see `same` for the arguments."""
        if divisor == 0:
            raise UnknownError(f"{what} is divided by 0")
        size, total = divisor.constant, dividend.constant
        if says is not None and size is not None:
            problem = f"{what}: {{0}}, not a multiple of {size}"
            self.require(Condition((dividend, divisor), has_rest, problem, says))
        if size is not None and total is not None and total % size:
            self.note_fault(f"{what}: {total} is not a multiple of {size}")
        return divide_exactly(dividend, divisor)


Rule = Callable[[InferenceContext], "Tensor | list[Tensor]"]


def _end_in_table(cut: Expr, whole: Expr) -> tuple[Expr, Expr] | None:
    """Return an end and the size of a table, if a dim is what lies in it from a start on, and the whole all of that."""
    atoms = {factor: monomial[0] for monomial, factor in cut.terms if len(monomial) == 1}
    end, start = atoms.get(1), atoms.get(-1)
    if len(cut.terms) != 2 or not (isinstance(end, Call) and isinstance(start, Call) and end.op == start.op == "min"):
        return None
    pairs = product(permutations(end.args, 2), permutations(start.args, 2))
    matches = ((last, size) for (last, size), (first, same) in pairs if size == same and last - first == whole)
    return next((pair for pair in matches if pair[1].constant is not None), None)


def _is_cut_of(cut: Expr, whole: Expr) -> bool:
    """Whether one dim is `min(whole, something >= 2)`: where that is 1, so is the whole; so they broadcast if equal."""
    atom = cut.atom
    if not isinstance(atom, Call) or atom.op != "min" or whole not in atom.args or lower(whole) < 1:
        return False
    return all(lower(arg) >= 2 for arg in atom.args if arg != whole)
