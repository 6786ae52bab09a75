"""Which inputs and outputs of two models are the same: those of one name, then those that were only renamed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model

__all__ = ["InterfaceMatching", "match_interfaces"]

Pairs = tuple[tuple[Value, Value], ...]


@dataclass(frozen=True, eq=False)
class InterfaceMatching:
    """The inputs and outputs of two models that are the same.

    Attributes:
        inputs: Those of A, with those of B.
        outputs: The same of outputs.
    """

    inputs: Pairs
    outputs: Pairs

    @cached_property
    def names(self) -> dict[Value, str]:
        """The names in A of what is called otherwise in B."""
        return {
            value_b: value_a.name for value_a, value_b in (*self.inputs, *self.outputs) if value_a.name != value_b.name
        }


def match_interfaces(a: Model, b: Model) -> InterfaceMatching:
    """Match inputs and outputs by name; what is left, where dtype, rank and the operators beside it agree.

    Of these, what stands at the same place of both models comes first, then what is the only one of its kind in either.
    """
    return InterfaceMatching(
        inputs=tuple(_pairs(a.graph.inputs, b.graph.inputs, _kind_of_input)),
        outputs=tuple(_pairs(a.graph.outputs, b.graph.outputs, _kind_of_output)),
    )


def _pairs(
    mine: Sequence[Value], theirs: Sequence[Value], kind: Callable[[Value], Hashable]
) -> Iterator[tuple[Value, Value]]:
    names = [{value.name: value for value in values} for values in (mine, theirs)]
    yield from ((value_a, names[1][name]) for name, value_a in names[0].items() if name in names[1])
    rest_a = [value_a if value_a.name not in names[1] else None for value_a in mine]
    rest_b = [value_b if value_b.name not in names[0] else None for value_b in theirs]
    for place, (value_a, value_b) in enumerate(zip(rest_a, rest_b, strict=False)):
        if value_a is not None and value_b is not None and kind(value_a) == kind(value_b):
            rest_a[place] = rest_b[place] = None
            yield value_a, value_b
    by_kind_a, by_kind_b = (_by_kind(values, kind) for values in (rest_a, rest_b))
    yield from (
        (by_kind_a[key][0], by_kind_b[key][0])
        for key in by_kind_a
        if len(by_kind_a[key]) == len(by_kind_b.get(key, ())) == 1
    )


def _by_kind(values: Sequence[Value | None], kind: Callable[[Value], Hashable]) -> dict[Hashable, list[Value]]:
    groups: dict[Hashable, list[Value]] = {}
    for value in values:
        if value is not None:
            groups.setdefault(kind(value), []).append(value)
    return groups


def _kind_of_input(value: Value) -> Hashable:
    return _kind(value), frozenset((node.operator, place) for node, place in value.consumers)


def _kind_of_output(value: Value) -> Hashable:
    producer = value.producer.operator if value.producer is not None else None
    return _kind(value), producer, value.output_index


def _kind(value: Value) -> Hashable:
    declared = declared_type(value)
    return None if declared is None else (declared.dtype, declared.rank)
