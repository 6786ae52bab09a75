"""The plan of a generated function: its steps in order, independent of the language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.graph.types import shape_text
from graphkit.shapes.code.contents import ProgramContents
from graphkit.shapes.code.steps import Operand, Step, Steps, used
from graphkit.shapes.expr import Expr
from graphkit.shapes.sources import Source

__all__ = ["Check", "Claim", "Operands", "Plan", "make_plan"]

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
        steps: Variable and step of what is computed once.
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
    checks, claims, found = _checks(program, steps), _claims(program, steps), tuple(_lists(program, steps))
    lists, entries = _shared(found)
    symbols = {source.symbol: f"s{number}" for number, source in enumerate(program.sources)}
    named = tuple((f"t{number}", step) for number, step in enumerate(step for step in steps if step.has_name))
    shapes = tuple(_shapes(program))
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


def _shapes(program: ProgramContents) -> Iterator[tuple[str, str, str, int]]:
    dims = {entry.name: entry.dims or () for entry in program.inputs}
    for number, name in enumerate(dict.fromkeys(source.input for source in program.sources)):
        yield f"x{number}", name, shape_text(dims[name]), len(dims[name])


def _checks(program: ProgramContents, steps: Steps) -> tuple[Check, ...]:
    groups: dict[tuple[Expr | None, ...] | None, list[str]] = {}
    for entry in program.inputs:
        groups.setdefault(entry.dims, []).append(entry.name)
    found = []
    for dims, names in groups.items():
        expected = None if dims is None else tuple(used(steps.of(dim)) for dim in dims)
        found.append(Check(tuple(names), "" if dims is None else shape_text(dims), expected))
    return tuple(found)


def _claims(program: ProgramContents, steps: Steps) -> tuple[Claim, ...]:
    """Return the conditions that can be computed at any dims."""
    found = []
    for condition in program.conditions:
        sides = steps.of(condition.left), steps.of(condition.right)
        if not any(side is None or (isinstance(side, Step) and side.can_fail) for side in sides):
            left, right = (used(used(side)) for side in sides)  # compared, and told
            found.append(Claim(left, condition.relation, right, str(condition)))
    return tuple(found)


def _lists(program: ProgramContents, steps: Steps) -> Iterator[tuple[str, Operands]]:
    for consumer in program.consumers:
        for read in consumer.reads:
            if read.elements is not None:
                yield read.key, tuple(steps.element(element, read.dtype) for element in read.elements)
        for output in consumer.outputs:
            if output.dims is not None:
                yield output.key, tuple(map(steps.of, output.dims))


def _shared(
    found: Sequence[tuple[str, Operands]],
) -> tuple[tuple[tuple[str, Operands], ...], tuple[tuple[str, str | Operands], ...]]:
    """Return the lists that occur more than once, by variable, and the operands of each key."""
    distinct: dict[object, Operands] = {}
    counts: Counter[object] = Counter()
    for _, operands in found:
        identity = _identity(operands)
        counts[identity] += 1
        if counts[identity] == 1:
            distinct[identity] = tuple(map(used, operands))
    several = [identity for identity in distinct if counts[identity] > 1]
    variables = {identity: f"v{number}" for number, identity in enumerate(several)}
    lists = tuple((variable, distinct[identity]) for identity, variable in variables.items())
    return lists, tuple((key, variables.get(_identity(operands), operands)) for key, operands in found)


def _identity(operands: Operands) -> object:
    """Return a key that tells lists apart: 1 from 1.0, and 0.0 from -0.0, which are equal."""
    return tuple(operand if isinstance(operand, Step) else (type(operand), repr(operand)) for operand in operands)
