"""What the nodes of a model need to run, in the order in which they do, and its value at many sizes at once.

What a node in a body needs counts where the body runs: the condition of an If, the iterations of a Loop. An assignment
gives every symbol of the inputs a size. Many assignments are columns: one array for each symbol. Numbers are exact:
Python's integers compute numbers that may not fit into 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from msgspec import Struct, field

from graphkit.graph.dataflow import in_order
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import GATHERING, RESHAPING
from graphkit.graph.view import Node, Scope, Value, unwrap_value
from graphkit.ops.indexing import indices_inside
from graphkit.ops.preconditions import COMPARISONS, FINE, Bools, Ints, Precondition, Violation
from graphkit.ops.rule_context import NodeView, UnknownError
from graphkit.ops.tensor import scalar_integer, unknown_tensor
from graphkit.ops.value_ranges import ValueRangeAnalysis
from graphkit.shapes import Expr, Relation, Shapes, Tensor, const, is_known
from graphkit.symbolic.expr import Call, Symbol

COMPARING: Mapping[str, Callable[[Ints, Ints], Bools]] = {
    "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal, "NotEqual": np.not_equal,
}  # fmt: skip
OPPOSITES = (("Less", "GreaterOrEqual"), ("Greater", "LessOrEqual"), ("Equal", "NotEqual"))
OPPOSITE = dict((*OPPOSITES, *(pair[::-1] for pair in OPPOSITES)))
TensorOf = Callable[[Value], Tensor]


class Guard(Struct, frozen=True):
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
        first, guard = node.input(0), None
        if first is not None and node.is_op("If"):
            guard = _guard_when(first, scope is node.bodies.get("then_branch"), tensor_of)
        elif first is not None and node.is_op("Loop") and (times := _scalar_of(first, tensor_of)) is not None:
            guard = Guard("Greater", (times, const(0)))
        guards += [guard] if guard is not None else []
        scope = node.scope
    return _join_guards("And", guards)


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
    number = scalar_integer(tensor_of(value))
    return number if number is not None and is_known(number) else None


class SharedPrecondition(Struct, eq=False):
    """A precondition and the nodes of one scope that share it, in the order in which they run."""

    scope: Scope
    precondition: Precondition
    nodes: list[Node] = field(default_factory=list)


class _Collector:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.tensors: dict[Value, Tensor] = {}
        self.ranges = ValueRangeAnalysis(shapes.model, self.tensor, typical=True)
        self.found: dict[tuple[Scope, str, Precondition], SharedPrecondition] = {}
        groups = (group_pairs(noted) for noted in shapes.preconditions)
        self.passes = [{node: dict.fromkeys(noted) for node, noted in group.items()} for group in groups]
        self.noted = set(chain(*self.passes))

    def scope(self, scope: Scope) -> None:
        guard = guard_of(scope, self.tensor)
        for node in in_order(scope) if scope.problems else scope.nodes:
            for body in node.bodies.values() if node.bodies else ():
                self.scope(body)
            for required in self.of(node) if node in self.noted or node.operator in GATHERING else ():
                precondition = required if guard is None else Guarded(required, guard)
                key = scope, node.operator, precondition
                self.found.setdefault(key, SharedPrecondition(scope, precondition)).nodes.append(node)

    def of(self, node: Node) -> Iterator[Precondition]:
        """Yield the preconditions of a node at all sizes at which the nodes before it run.

        The first pass of an inference assumes nothing that only later nodes need. Later passes stand in where it does
        not know all.
        """
        noted: Iterable[Precondition] = ()
        for by_node in self.passes:
            noted = by_node.get(node, ())
            if all(precondition.is_known for precondition in noted):
                break
        required = [precondition for precondition in noted if precondition.is_known]
        if node.operator in GATHERING and (view := self.view(node)) is not None:
            with suppress(UnknownError, ArithmeticError, LookupError, ValueError):  # not known, or no valid node
                required += indices_inside(view, self.ranges)
        for precondition in required:
            pairs = precondition.equalities()
            if precondition.symbols and not (pairs and all(left == right for left, right in pairs)):
                yield precondition

    def tensor(self, value: Value) -> Tensor:
        """Return the known facts of a value at all sizes at which the nodes before its own run."""
        if value not in self.tensors:
            first = self.shapes.first.get(value)
            if first is None or not first.is_known or (first.may_have_data and not _is_known_data(first)):
                first = self.shapes.table.get(value) or first or unknown_tensor("nothing leads to it")
            self.tensors[value] = first
        return self.tensors[value]

    def view(self, node: Node) -> NodeView | None:
        """Return a view of a node for its rule; None if an attribute comes from a function's call."""
        if any(attribute.ref_attr_name for attribute in node.attributes.values()):
            return None
        inputs = [None if value is None else self.tensor(value) for value in node.inputs]
        return NodeView(node, inputs, node.attributes)


def _is_known_data(tensor: Tensor) -> bool:
    data = tensor.data if tensor.is_shape_like else None
    return data is None or all(is_known(element) for element in data.ravel().tolist() if isinstance(element, Expr))


@lru_cache(maxsize=4)  # a report asks twice
def collect_preconditions(shapes: Shapes) -> Sequence[SharedPrecondition]:
    """Return the preconditions of all nodes; in a function, those that hold for all its calls."""
    collector = _Collector(shapes)
    for scope in shapes.model.scopes:
        collector.scope(scope)
    return tuple(collector.found.values())


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
        if expr in self.found:
            return self.found[expr]
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
        self.found[expr] = total
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
