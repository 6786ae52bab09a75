"""Writing the plan of a function in a language: the part that languages share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphkit.graph.declared_types import shape_text
from graphkit.ops.tensor import Ratio
from graphkit.shapes.program_contents import ProgramContents, Source
from graphkit.symbolic.algebra import is_nonzero
from graphkit.symbolic.expr import Bound, Call, Expr, Monomial, Symbol

if TYPE_CHECKING:
    from graphkit.shapes.program_contents import Source

__all__ = ["Check", "Claim", "Language", "Operand", "Operands", "Plan", "Step", "Steps", "count_use", "make_plan"]


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


Operand = int | float | str | Step | None  # a number, a symbol, a result; None if unknown


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
            self._operands[expr] = self._plan_sum(expr)
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

    def _plan_sum(self, expr: Expr) -> Operand:
        if expr.constant is not None:
            return expr.constant
        terms = sorted(expr.terms, key=lambda term: (not term[0], term[1] < 0))  # begin with something positive
        operands = tuple(self._plan_term(monomial, factor) for monomial, factor in terms)
        return operands[0] if len(operands) == 1 else self._step("+", operands)

    def _plan_term(self, monomial: Monomial, factor: int) -> Operand:
        if not monomial:
            return factor
        atoms = tuple(self._plan_atom(atom) for atom in monomial)
        product = atoms[0] if len(atoms) == 1 else self._step("*", atoms)
        return product if factor == 1 else self._step("*", (factor, product))

    def _plan_atom(self, atom: Symbol | Call) -> Operand:
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
                count_use(arg)
            if divides_by_zero:
                count_use(args[1])  # it is compared with 0 too
        return step


def count_use(operand: Operand) -> Operand:
    """Count a use of an operand, and return it."""
    if isinstance(operand, Step):
        operand.uses += 1
    return operand


Operands = tuple[Operand, ...]


@dataclass(frozen=True)
class Check:
    """Inputs of one shape.

    Attributes:
        text: The dims as a reader knows them, such as `[batch_size, 3]`.
        expected: Sizes, None for any; None where the inputs have no known rank.
    """

    names: tuple[str, ...]
    text: str
    expected: Operands | None


@dataclass(frozen=True)
class Claim:
    """A condition: two operands, `==` or `>=`, and how a reader knows them."""

    left: Operand
    relation: str
    right: Operand
    text: str


@dataclass(frozen=True)
class Plan:
    """The parts of a generated function, in their order.

    Attributes:
        shapes: Of each input from which symbols are read: variable, name, dims as text, and rank.
        sources: Of each symbol that is read: variable, source, variable of the input's shape, and `Source.rest`.
        steps: Variable and step of each value that is computed once.
        lists: Operands of lists that several keys share, by variable.
        entries: Key of each list of the result, with the variable of a shared one, or its operands.
        names: Variable of each symbol and of each step that has one.
        has_singles: Whether a step rounds to float32.
    """

    shapes: tuple[tuple[str, str, str, int], ...]
    sources: tuple[tuple[str, Source, str, Operand], ...]
    checks: tuple[Check, ...]
    steps: tuple[tuple[str, Step], ...]
    claims: tuple[Claim, ...]
    lists: tuple[tuple[str, Operands], ...]
    entries: tuple[tuple[str, str | Operands], ...]
    names: Mapping[str | Step, str]
    has_singles: bool


def make_plan(program: ProgramContents) -> Plan:
    """Return the plan of a program's function."""
    steps = Steps(frozenset(source.symbol for source in program.sources))
    checks, claims, keyed = (
        _collect_checks(program, steps),
        _collect_claims(program, steps),
        tuple(_read_lists(program, steps)),
    )
    lists, entries = _find_shared_lists(keyed)
    symbols = {source.symbol: f"s{number}" for number, source in enumerate(program.sources)}
    named = tuple((f"t{number}", step) for number, step in enumerate(step for step in steps if step.has_name))
    shapes = tuple(_input_shapes(program))
    places = {name: variable for variable, name, _, _ in shapes}
    sources = tuple(
        (symbols[source.symbol], source, places[source.input], Steps(steps.symbols).of(source.rest))
        for source in program.sources
    )
    names: dict[str | Step, str] = {step: variable for variable, step in named}
    names.update(symbols)
    has_singles = any(step.op == "float32" for step in steps)
    return Plan(
        shapes=shapes,
        sources=sources,
        checks=checks,
        steps=named,
        claims=claims,
        lists=lists,
        entries=entries,
        names=names,
        has_singles=has_singles,
    )


def _input_shapes(program: ProgramContents) -> Iterator[tuple[str, str, str, int]]:
    dims = {entry.name: entry.dims or () for entry in program.inputs}
    for number, name in enumerate(dict.fromkeys(source.input for source in program.sources)):
        yield f"x{number}", name, shape_text(dims[name]), len(dims[name])


def _collect_checks(program: ProgramContents, steps: Steps) -> tuple[Check, ...]:
    groups: dict[tuple[Expr | None, ...] | None, list[str]] = {}
    for entry in program.inputs:
        groups.setdefault(entry.dims, []).append(entry.name)
    checks = []
    for dims, names in groups.items():
        expected = None if dims is None else tuple(count_use(steps.of(dim)) for dim in dims)
        checks.append(Check(tuple(names), "" if dims is None else shape_text(dims), expected))
    return tuple(checks)


def _collect_claims(program: ProgramContents, steps: Steps) -> tuple[Claim, ...]:
    """Return the conditions that can be computed at any dims."""
    claims = []
    for condition in program.conditions:
        sides = steps.of(condition.left), steps.of(condition.right)
        if not any(side is None or (isinstance(side, Step) and side.can_fail) for side in sides):
            left, right = (count_use(count_use(side)) for side in sides)  # compared, and told
            claims.append(Claim(left, condition.relation, right, str(condition)))
    return tuple(claims)


def _read_lists(program: ProgramContents, steps: Steps) -> Iterator[tuple[str, Operands]]:
    for consumer in program.consumers:
        for read in consumer.reads:
            if read.elements is not None:
                yield read.key, tuple(steps.element(element, read.dtype) for element in read.elements)
        for output in consumer.outputs:
            if output.dims is not None:
                yield output.key, tuple(map(steps.of, output.dims))


def _find_shared_lists(
    keyed: Sequence[tuple[str, Operands]],
) -> tuple[tuple[tuple[str, Operands], ...], tuple[tuple[str, str | Operands], ...]]:
    """Return the lists that occur more than once, by variable, and the operands of each key."""
    distinct: dict[object, Operands] = {}
    counts: Counter[object] = Counter()
    for _, operands in keyed:
        identity = _list_key(operands)
        counts[identity] += 1
        if counts[identity] == 1:
            distinct[identity] = tuple(map(count_use, operands))
    several = [identity for identity in distinct if counts[identity] > 1]
    variables = {identity: f"v{number}" for number, identity in enumerate(several)}
    lists = tuple((variable, distinct[identity]) for identity, variable in variables.items())
    return lists, tuple((key, variables.get(_list_key(operands), operands)) for key, operands in keyed)


def _list_key(operands: Operands) -> object:
    """Return a key that tells lists apart: 1 from 1.0, and 0.0 from -0.0, which are equal."""
    return tuple(operand if isinstance(operand, Step) else (type(operand), repr(operand)) for operand in operands)


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
        yield from self._check_lines()
        for claim in self.plan.claims:
            left, right = self.operand(claim.left), self.operand(claim.right)
            relation = self.equal if claim.relation == "==" else claim.relation
            yield self._call_line("ensure", f"{left} {relation} {right}", self.text(claim.text), left, right)
        for variable, operands in self.plan.lists:
            yield self.assignment.format(variable, self.items(operands))
        begin, entry, end = self.result
        yield begin
        for key, value in self.plan.entries:
            yield entry.format(self.text(key), value if isinstance(value, str) else self.items(value))
        yield end

    def _numbers(self) -> Iterator[str]:
        for variable, name, dims, rank in self.plan.shapes:
            yield self._call_line("read", self.text(name), self.text(dims), rank, variable=variable)
        for variable, source, shape, remainder in self.plan.sources:
            size = f"{shape}[{source.axis}]"
            size = size if remainder == 0 else self.difference(size, remainder)
            size = size if source.factor == 1 else self.quotient(size, source.factor)
            subject = f"{source.symbol}, which axis {source.axis} of input '{source.input}' gives,"
            least, most = self.bound(source.least), self.bound(source.most)
            yield self._call_line(
                "inside", size, least, most, self.text(subject), self.text(_range_words(source)), variable=variable
            )
        for variable, step in self.plan.steps:
            yield self.assignment.format(variable, self.right_side(step))

    def _check_lines(self) -> Iterator[str]:
        begin, entry, end = self.checks
        entries = []
        for number, check in enumerate(self.plan.checks):
            value = self.unknown
            if check.expected is not None:
                value = f"c{number}"
                yield self.assignment.format(value, self.sequence([self.text(check.text), self.items(check.expected)]))
            entries += [entry.format(self.text(name), value) for name in check.names]
        yield from (begin, *entries, end, self.check_loop)

    def _call_line(self, function: str, *args: object, variable: str = "") -> str:
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
