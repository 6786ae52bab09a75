"""Match the tensors of two models, or of a model and its dumps: as told, by name, by structure, by module."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphkit.errors import UsageError
from graphkit.graph.names import module_of
from graphkit.graph.view import Value
from graphkit.matching.matches import Matching
from graphkit.matching.value_matching import match_graphs
from graphkit.suggest import did_you_mean
from graphkit.verify.layers.compared_model import Pair, Side
from graphkit.verify.layers.legal_feeds import ArrayFile

__all__ = ["match_dumps", "match_models"]

SEPARATORS = re.compile(r"[/.]+")


def match_models(a: Side, b: Side, told: Mapping[str, str], *, by_order: bool = False) -> list[Pair]:
    """Return the tensors of the main graphs that match, in the topological order of `a`: see `match_graphs`.

    Args:
        a: One model.
        b: The other one.
        told: Names of tensors of `a`, and what they are in `b`.
        by_order: Whether what is left within a module of one path, of one operator and dims, goes by order where both
            have as many.

    Raises:
        UsageError: A name of `told` does not exist, or stands there twice.
    """
    matching = Matching()
    for side in (a, b):
        matching.numbers.add(side.model)
    _as_told(matching, a, b, told)
    match_graphs(matching, a, b, by_order=by_order)
    pairs = {one: matching.forth[one] for one in a.place if matching.forth.get(one) in b.place}
    held = [one for one, two in pairs.items() if one not in a.unholdable and two not in b.unholdable]
    return [Pair(one, pairs[one], matching.how[one]) for one in held]


def _as_told(matching: Matching, a: Side, b: Side, told: Mapping[str, str]) -> None:
    for mine, theirs in told.items():
        one, two = _named(a, mine), _named(b, theirs)
        if not matching.add(one, two, "map"):
            raise UsageError(f"--map {mine}={theirs}: '{theirs}' stands for two tensors - map each once")


def _named(side: Side, name: str) -> Value:
    value = side.model.graph.values.get(name)
    if value is None or value not in side.place:
        hint = did_you_mean(name, (value.name for value in side.place), "`graphkit shapes` lists them")
        raise UsageError(f"--map: {side.model.label} computes no tensor '{name}' in its main graph - {hint}")
    return value


def match_dumps(side: Side, dumps: ArrayFile, told: Mapping[str, str]) -> list[Pair]:
    """Return the tensors that have a dump, in topological order.

    A dump matches the tensor of its name, or the one tensor that leaves the module of its name
    (`encoder.layers.0.fc1` is what leaves `/encoder/layers.0/fc1`); where several leave it, none.

    Raises:
        UsageError: A name of `told` does not exist.
    """
    names = {value.name: value for value in side.place if value not in side.unholdable}
    found: dict[Value, tuple[str, str]] = {}
    for mine, theirs in told.items():
        if mine not in names:
            hint = did_you_mean(mine, names, "`graphkit shapes` lists them")
            raise UsageError(f"--map: {side.model.label} has no tensor '{mine}' - {hint}")
        if theirs not in dumps.names:
            raise UsageError(f"--map: {dumps.label} has no array '{theirs}' - {did_you_mean(theirs, dumps.names)}")
        found[names[mine]] = (theirs, "map")
    leaving = _leaving(side)
    for name in dumps.names:
        if name in told.values():
            continue
        values = [names[name]] if name in names else leaving.get(_path(name), [])
        if len(values) == 1 and values[0] not in found:
            found[values[0]] = (name, "name" if name in names else "module")
    return [Pair(value, *found[value]) for value in side.place if value in found]


def _path(name: str) -> tuple[str, ...]:
    return tuple(part for part in SEPARATORS.split(name) if part)


def _leaving(side: Side) -> dict[tuple[str, ...], list[Value]]:
    """Return the tensors that are read outside the module that computes them, or come out of the model, by module."""
    outputs = set(side.model.graph.outputs)
    found: dict[tuple[str, ...], list[Value]] = {}
    for value in side.place:
        own = _path(module_of(value.producer)) if value.producer is not None else ()
        if not own or value in side.unholdable:
            continue
        readers = [_path(module_of(node)) for node, _ in value.consumers]
        for depth in range(len(own), 0, -1):
            module = own[:depth]
            if value in outputs or any(reader[:depth] != module for reader in readers):
                found.setdefault(module, []).append(value)
    return found
