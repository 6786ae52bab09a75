"""Match the tensors of two models, or of a model and its dumps: told, by name, form, structure or module."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphkit.errors import UsageError
from graphkit.graph.names import module_of
from graphkit.graph.view import Value
from graphkit.matching.value_matching import Matching, match_graphs
from graphkit.suggest import did_you_mean
from graphkit.verify.equivalence.shared_values import shared_values
from graphkit.verify.layers.compared_model import Pair, Side
from graphkit.verify.layers.legal_feeds import ArrayFile

__all__ = ["match_dumps", "match_models"]

SEPARATORS = re.compile(r"[/.]+")


def match_models(a: Side, b: Side, names_in_b: Mapping[str, str], *, by_order: bool = False) -> list[Pair]:
    """Return the tensors of the main graphs that match, in the topological order of `a`.

    Those that are told match first, and those of one name; then what has one normal form, whatever it is called, and
    the rest by structure: see `match_graphs`.

    Args:
        a: One model.
        b: The other one.
        names_in_b: Names of tensors of `a`, and what they are in `b`.
        by_order: Whether what is left within a module of one path, of one operator and dims, goes by order where both
            have as many.

    Raises:
        UsageError: A name of `names_in_b` does not exist, or stands there twice.
    """
    matching = Matching()
    for side in (a, b):
        matching.numbers.add(side.model)
    _as_told(matching, a, b, names_in_b)
    names_in_a = {name_b: name_a for name_a, name_b in names_in_b.items()}
    equal = shared_values(a.model, b.model, matching.numbers.constants, b.spec, names_in_a)
    match_graphs(matching, a, b, equal=equal, by_order=by_order)
    pairs = {value_a: matching.forth[value_a] for value_a in a.place if matching.forth.get(value_a) in b.place}
    holdable = [
        value_a for value_a, value_b in pairs.items() if value_a not in a.unholdable and value_b not in b.unholdable
    ]
    return [Pair(value_a, pairs[value_a], matching.how[value_a]) for value_a in holdable]


def _as_told(matching: Matching, a: Side, b: Side, names_in_b: Mapping[str, str]) -> None:
    for name_a, name_b in names_in_b.items():
        value_a, value_b = _value_named(a, name_a), _value_named(b, name_b)
        if not matching.add(value_a, value_b, "map"):
            raise UsageError(f"--map {name_a}={name_b}: '{name_b}' stands for two tensors - map each once")


def _value_named(side: Side, name: str) -> Value:
    value = side.model.graph.values.get(name)
    if value is None or value not in side.place:
        hint = did_you_mean(name, (value.name for value in side.place), "`graphkit shapes` lists them")
        raise UsageError(f"--map: {side.model.label} computes no tensor '{name}' in its main graph - {hint}")
    return value


def match_dumps(side: Side, dumps: ArrayFile, dump_names: Mapping[str, str]) -> list[Pair]:
    """Return the tensors that have a dump, in topological order.

    A dump matches the tensor of its name, or the one tensor that leaves the module of its name
    (`encoder.layers.0.fc1` is what leaves `/encoder/layers.0/fc1`); where several leave it, none.

    Raises:
        UsageError: A name of `dump_names` does not exist.
    """
    names = {value.name: value for value in side.place if value not in side.unholdable}
    matched: dict[Value, tuple[str, str]] = {}
    for tensor_name, dump_name in dump_names.items():
        if tensor_name not in names:
            hint = did_you_mean(tensor_name, names, "`graphkit shapes` lists them")
            raise UsageError(f"--map: {side.model.label} has no tensor '{tensor_name}' - {hint}")
        if dump_name not in dumps.names:
            raise UsageError(
                f"--map: {dumps.label} has no array '{dump_name}' - {did_you_mean(dump_name, dumps.names)}"
            )
        matched[names[tensor_name]] = (dump_name, "map")
    leaving = _values_leaving(side)
    for name in dumps.names:
        if name in dump_names.values():
            continue
        values = [names[name]] if name in names else leaving.get(_name_path(name), [])
        if len(values) == 1 and values[0] not in matched:
            matched[values[0]] = (name, "name" if name in names else "module")
    return [Pair(value, *matched[value]) for value in side.place if value in matched]


def _name_path(name: str) -> tuple[str, ...]:
    return tuple(part for part in SEPARATORS.split(name) if part)


def _values_leaving(side: Side) -> dict[tuple[str, ...], list[Value]]:
    """Return the tensors that are read outside the module that computes them, or come out of the model, by module."""
    outputs = set(side.model.graph.outputs)
    leaving: dict[tuple[str, ...], list[Value]] = {}
    for value in side.place:
        path = _name_path(module_of(value.producer)) if value.producer is not None else ()
        if not path or value in side.unholdable:
            continue
        readers = [_name_path(module_of(node)) for node, _ in value.consumers]
        for depth in range(len(path), 0, -1):
            module = path[:depth]
            if value in outputs or any(reader[:depth] != module for reader in readers):
                leaving.setdefault(module, []).append(value)
    return leaving
