"""Dumps of a device or of a run in PyTorch: arrays by name, matched to the tensors of a model by name or by module."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphkit.errors import UsageError
from graphkit.graph.view import Value
from graphkit.suggest import did_you_mean
from graphkit.verify.layers.arrays import ArrayFile
from graphkit.verify.layers.matching import module_of
from graphkit.verify.layers.pairs import Pair
from graphkit.verify.layers.side import Side

__all__ = ["match_dumps"]

SEPARATORS = re.compile(r"[/.]+")


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
