"""The values of two models that have one normal form: what one computes at one place, and the other at another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType

from graphkit.equivalence.application import Names, Reading, Tools, inputs_fault
from graphkit.equivalence.linear import REAL
from graphkit.equivalence.reader import EXACT, read_pair
from graphkit.equivalence.sizes import RequiredProducts, common_shapes, required_equalities
from graphkit.equivalence.spelling import inline_model
from graphkit.equivalence.terms import Constants, Term, Terms
from graphkit.errors import ModelError, UsageError
from graphkit.graph.view import Value, all_nodes
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model
from graphkit.ops.rule_context import UnknownError
from graphkit.progress import OutOfTimeError, time_limit
from graphkit.shapes import AS_DECLARED, DimSpec
from graphkit.symbolic.expr import TooComplexError

SECONDS = 20.0
KNOWN = ("Constant", "Elements")  # terms whose elements are known
Pair = tuple[Value, Value]
AlikeBy = Callable[[Value], Hashable]


def shared_values(
    a: Model, b: Model, numbers: ConstantNumbers, spec: DimSpec = AS_DECLARED, names_in_a: Names = MappingProxyType({})
) -> Iterator[Pair]:
    """Yield the values of two main graphs that are equal by their normal forms, in exact arithmetic at least.

    This says where to look, not that the models are equal: what `check_equivalence` checks of interfaces and of nodes
    that may fail is left out. Of several values with one form, those of one name belong together, then the first ones.
    What has known elements is left out, but for two values that nodes of one operator compute, and no other one has.
    There are none of models whose meaning is not certain, or that take long.

    With the `numbers` of the constants of both, large ones are not read again. The inputs of both have the sizes that
    `spec` gives those of `b`, and `names_in_a` says what these are called in `a`.
    """
    try:
        with time_limit("the search for equal values", SECONDS):
            found = list(_shared_pairs(a, b, numbers, spec, names_in_a))
    except (ModelError, OutOfTimeError, TooComplexError, UnknownError, UsageError):
        return
    yield from found


def _shared_pairs(a: Model, b: Model, numbers: ConstantNumbers, spec: DimSpec, names_in_a: Names) -> Iterator[Pair]:
    models = inline_model(a), inline_model(b)
    shapes = common_shapes(*models, names_in_a, None, narrower=True, spec=spec)
    if any(inputs_fault(node) for each in models for node in all_nodes(each.scopes)):
        return
    constants = Constants(Terms(), numbers)
    tools = Tools.of(constants, RequiredProducts(required_equalities(shapes[0])))
    exact = read_pair(models, shapes, tools, names_in_a, EXACT)
    for first, second in (exact, read_pair(models, shapes, tools, names_in_a, REAL, exact)):
        yield from _pair_by_term(_by_term(a, first.result), _by_term(b, second.result))


def _pair_by_term(mine: Mapping[Term, list[Value]], theirs: Mapping[Term, list[Value]]) -> Iterator[Pair]:
    for term, values in mine.items():
        others = theirs.get(term, [])
        if term.op not in KNOWN:
            for key in KEYS:
                pairs = _pair_alike(values, others, key)
                yield from pairs.items()
                values = [value for value in values if value not in pairs]
                taken = {*pairs.values()}
                others = [other for other in others if other not in taken]
        elif len(values) == len(others) == 1:  # more are equal by chance, as shapes may be
            yield from _pair_alike(values, others, _operator_key).items()


def _pair_alike(values: Sequence[Value], others: Sequence[Value], key: AlikeBy) -> dict[Value, Value]:
    """Return values with others of the same key, the first with the first."""
    waiting: dict[Hashable, deque[Value]] = {}
    for other in others:
        waiting.setdefault(key(other), deque()).append(other)
    return {value: found.popleft() for value in values if (found := waiting.get(key(value)))}


def _operator_key(value: Value) -> Hashable:
    return None if value.producer is None else (value.producer.operator, len(value.producer.inputs))


# By what values of one form are told apart, the surest first.
KEYS: tuple[AlikeBy, ...] = (
    lambda value: (value.name, _operator_key(value)), _operator_key, lambda value: value.name, lambda _: None,
)  # fmt: skip


def _by_term(model: Model, reading: Reading) -> dict[Term, list[Value]]:
    """Return the values of a main graph that nodes compute, by term."""
    found: dict[Term, list[Value]] = {}
    for value in reading.values:
        here = model.graph.values.get(value.name) if value.scope is reading.model.graph else None  # none of a function
        if here is not None and here.producer is not None:
            found.setdefault(reading.values[value], []).append(here)
    return found
