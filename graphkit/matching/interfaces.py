"""The inputs and outputs of two models: which are the same, gone, new, of another type, or in another order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct

from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import group_pairs
from graphkit.graph.view import Value
from graphkit.model import Model

Kind = Callable[[Value], Hashable]


class Ports(Struct, frozen=True, eq=False, dict=True):
    """The inputs, or the outputs, of two models."""

    pairs: tuple[tuple[Value, Value], ...]  # those of A, with those of B that they are
    lost: tuple[Value, ...]  # those that B lacks
    new: tuple[Value, ...]  # those that A lacks
    order_a: tuple[str, ...]  # what both have, as it is called in B, in the order of each
    order_b: tuple[str, ...]

    @cached_property
    def retyped_names(self) -> list[str]:
        """The names of those that have another dtype or rank, as far as both are known."""
        types = [(b.name, declared_type(a), declared_type(b)) for a, b in self.pairs]
        known = [(name, a, b) for name, a, b in types if a is not None and b is not None]
        return [name for name, a, b in known if a.dtype != b.dtype or len({a.rank, b.rank} - {None}) > 1]


class Interfaces(Struct, frozen=True, eq=False, dict=True):
    """The inputs and outputs of two models."""

    inputs: Ports
    outputs: Ports

    @cached_property
    def names(self) -> dict[Value, str]:
        """The names in A of what is called otherwise in B."""
        return {b: a.name for a, b in (*self.inputs.pairs, *self.outputs.pairs) if a.name != b.name}


def compare_interfaces(a: Model, b: Model) -> Interfaces:
    """Compare inputs and outputs, those that were only renamed included: dtype, rank and the operators beside agree.

    Of these, what stands at the same place of both models comes first, then what is the only one of its kind in either.
    """
    inputs = compare_ports(a.graph.inputs, b.graph.inputs, _kind_of_input)
    return Interfaces(inputs, compare_ports(a.graph.outputs, b.graph.outputs, _kind_of_output))


def compare_ports(ports_a: Sequence[Value], ports_b: Sequence[Value], kind_of: Kind | None = None) -> Ports:
    """Compare inputs, or outputs, by name; what is left by place and by its kind, where that is given."""
    pairs = dict(_pair_ports(ports_a, ports_b, kind_of))
    twins = set(pairs.values())
    return Ports(
        pairs=tuple((value, pairs[value]) for value in dict.fromkeys(ports_a) if value in pairs),
        lost=tuple(dict.fromkeys(value for value in ports_a if value not in pairs)),
        new=tuple(dict.fromkeys(value for value in ports_b if value not in twins)),
        order_a=tuple(pairs[value].name for value in ports_a if value in pairs),
        order_b=tuple(value.name for value in ports_b if value in twins),
    )


def _pair_ports(
    ports_a: Sequence[Value], ports_b: Sequence[Value], kind_of: Kind | None
) -> Iterator[tuple[Value, Value]]:
    names = [{value.name: value for value in values} for values in (ports_a, ports_b)]
    yield from ((value_a, names[1][name]) for name, value_a in names[0].items() if name in names[1])
    if kind_of is None:
        return
    rest_a = [value if value.name not in names[1] else None for value in ports_a]
    rest_b = [value if value.name not in names[0] else None for value in ports_b]
    for place, (value_a, value_b) in enumerate(zip(rest_a, rest_b, strict=False)):
        if value_a is not None and value_b is not None and kind_of(value_a) == kind_of(value_b):
            rest_a[place] = rest_b[place] = None
            yield value_a, value_b
    groups = [group_pairs((kind_of(value), value) for value in filter(None, rest)) for rest in (rest_a, rest_b)]
    both = [(values, groups[1].get(key, [])) for key, values in groups[0].items()]
    yield from ((first[0], second[0]) for first, second in both if len(first) == len(second) == 1)


def _kind_of_input(value: Value) -> Hashable:
    return _type_of(value), frozenset((node.operator, place) for node, place in value.consumers)


def _kind_of_output(value: Value) -> Hashable:
    producer = value.producer.operator if value.producer is not None else None
    return _type_of(value), producer, value.output_index


def _type_of(value: Value) -> Hashable:
    return (declared := declared_type(value)) and (declared.dtype, declared.rank)
