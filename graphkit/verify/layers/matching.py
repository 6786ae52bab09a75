"""Match the tensors of two models, or of a model and its dumps: as told, by name, by structure, by module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphkit.errors import UsageError
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Value
from graphkit.suggest import did_you_mean
from graphkit.verify.layers.compared_model import Dims, Pair, Side, corresponds, same_operator, same_values
from graphkit.verify.layers.legal_feeds import ArrayFile

__all__ = ["match_dumps", "match_models"]

How = Literal["map", "name", "structure", "order"]
COUNTED = re.compile(
    r"(.*[/.])?([A-Za-z_:]*?[._]?\d+|[A-Z]\w*(_\d+)?_output_\d+)"
)  # `add_3`, `123`, `/l/Add_1_output_0`
MAX_ROUNDS = 4
SEPARATORS = re.compile(r"[/.]+")


@dataclass(eq=False)
class _Matching:
    """The matches so far, in both directions."""

    a: Side
    b: Side
    forth: dict[Value, Value] = field(default_factory=dict)
    back: dict[Value, Value] = field(default_factory=dict)
    how: dict[Value, How] = field(default_factory=dict)

    def add(self, one: Value, two: Value, how: How) -> bool:
        """Match two tensors, unless one of them is matched."""
        if one in self.forth or two in self.back:
            return False
        self.forth[one], self.back[two], self.how[one] = two, one, how
        return True

    def add_nodes(self, one: Node, two: Node, how: How) -> bool:
        """Match the outputs of two nodes of one operator."""
        pairs = [(x, y) for x, y in zip(one.outputs, two.outputs, strict=False) if x is not None and y is not None]
        return bool([pair for pair in pairs if self.add(*pair, how)])


def match_models(a: Side, b: Side, told: Mapping[str, str], *, by_order: bool = False) -> list[Pair]:
    """Return the tensors that match, in the topological order of `a`.

    A name that an exporter counts (`add_3`, `/layer/Add_1_output_0`) says little: it counts where operator and dims
    agree, and where no other tensor is computed from the same ones.

    Args:
        a: One model.
        b: The other one.
        told: Names of tensors of `a`, and what they are in `b`.
        by_order: Whether what is left within a module of one path, of one operator and dims, goes by order where both
            have as many.

    Raises:
        UsageError: A name of `told` does not exist, or stands there twice.
    """
    matching = _Matching(a, b)
    _as_told(matching, told)
    by_name = {two.name: two for two in b.place}
    for one in a.place:
        two = by_name.get(one.name)
        is_telling = one.producer is None or not COUNTED.fullmatch(one.name)
        if two is not None and is_telling and (one.producer is None) == (two.producer is None):
            matching.add(one, two, "name")
    for _ in range(MAX_ROUNDS):
        before = len(matching.forth)
        _forwards(matching, by_name)
        _backwards(matching)
        if len(matching.forth) == before:
            break
    if by_order:
        _by_order(matching)
    seen = [one for one in a.place if one in matching.forth]
    held = [one for one in seen if one not in a.unholdable and matching.forth[one] not in b.unholdable]
    return [Pair(one, matching.forth[one], matching.how[one]) for one in held]


def _as_told(matching: _Matching, told: Mapping[str, str]) -> None:
    for mine, theirs in told.items():
        one, two = _named(matching.a, mine), _named(matching.b, theirs)
        if not matching.add(one, two, "map"):
            raise UsageError(f"--map {mine}={theirs}: '{theirs}' stands for two tensors - map each once")


def _named(side: Side, name: str) -> Value:
    value = side.model.graph.values.get(name)
    if value is None or value not in side.place:
        hint = did_you_mean(name, (value.name for value in side.place), "`graphkit shapes` lists them")
        raise UsageError(f"--map: {side.model.label} computes no tensor '{name}' in its main graph - {hint}")
    return value


def _forwards(matching: _Matching, by_name: Mapping[str, Value]) -> None:
    """Match the outputs of nodes whose inputs correspond, and those of one name."""
    mine = {value.name for value in matching.a.place}
    for node in matching.a.nodes:
        open_outputs = [value for value in node.outputs if value is not None and value not in matching.forth]
        for value in open_outputs:
            two = by_name.get(value.name)
            if two is not None and two.producer is not None and corresponds(node, two.producer, matching.forth):
                matching.add(value, two, "name")
        twin = _twin(node, matching) if any(value not in matching.forth for value in open_outputs) else None
        if twin is not None and any(value is not None and value.name in mine for value in twin.outputs):
            matching.add_nodes(node, twin, "structure")  # B counted on from another number
        for value in open_outputs:
            two = by_name.get(value.name)
            if value not in matching.forth and two is not None and _is_read_alike(value, two, matching):
                matching.add(value, two, "name")
        if twin is not None:
            matching.add_nodes(node, twin, "structure")
        for value in open_outputs:
            two = by_name.get(value.name)
            if value not in matching.forth and two is not None and _may_share_name(value, two, matching):
                matching.add(value, two, "name")


def _twin(node: Node, matching: _Matching) -> Node | None:
    """Return the one node of `b` that computes the same from matched inputs, None where none or several do.

    Where several do, as the projections of one tensor, the one whose constants are equal is meant.
    """
    known = next((value for value in node.inputs if value is not None and value in matching.forth), None)
    if known is None:
        return None
    theirs = [
        other
        for other in _readers(matching.forth[known], matching.b, matching.back)
        if corresponds(node, other, matching.forth)
    ]
    mine = [
        other
        for other in _readers(known, matching.a, matching.forth)
        if any(corresponds(other, twin, matching.forth) for twin in theirs)
    ]
    if len(theirs) == len(mine) == 1:
        return theirs[0]
    same = same_values(matching.a.model, matching.b.model)
    return next((other for other in theirs if corresponds(node, other, matching.forth, same)), None)


def _readers(value: Value, side: Side, matched: Mapping[Value, Value]) -> list[Node]:
    """Return the nodes that read a tensor, of those that nothing is known of."""
    readers = dict.fromkeys(reader for reader, _ in value.consumers if reader.scope is side.model.graph)
    return [node for node in readers if not any(value in matched for value in node.outputs if value is not None)]


def _may_share_name(one: Value, two: Value, matching: _Matching) -> bool:
    """Whether tensors of one counted name may be the same: operator and dims do not contradict it."""
    if one.producer is None or two.producer is None:
        return False
    if not same_operator(one.producer, two.producer) or not compatible(matching.a.dims(one), matching.b.dims(two)):
        return False
    return not _rival(one.producer, two.producer, matching)


def _is_read_alike(one: Value, two: Value, matching: _Matching) -> bool:
    """Whether two tensors are read at the same places by nodes whose operators and names are the same."""
    readers = [
        {(node.operator, place, *(v.name for v in node.outputs if v is not None)) for node, place in value.consumers}
        for value in (one, two)
    ]
    return bool(readers[0]) and readers[0] == readers[1] and compatible(matching.a.dims(one), matching.b.dims(two))


def _rival(one: Node, two: Node, matching: _Matching) -> bool:
    """Whether another node of `a` computes the same as `two`, so that the name was only counted alike."""
    read = [value for value in two.inputs if value is not None and value in matching.back]
    return any(
        corresponds(other, two, matching.forth)
        for value in read
        for other, _ in matching.back[value].consumers
        if other is not one and other.scope is one.scope
    )


def compatible(one: Dims, two: Dims) -> bool:
    """Whether two shapes may be equal."""
    if one is None or two is None:
        return True
    return len(one) == len(two) and all(x is None or y is None or x == y for x, y in zip(one, two, strict=True))


def _backwards(matching: _Matching) -> None:
    """Match the inputs of matched nodes, place by place."""
    for node in reversed(matching.a.nodes):
        value = next((value for value in node.outputs if value is not None and value in matching.forth), None)
        twin = None if value is None else matching.forth[value].producer
        if twin is None or not same_operator(node, twin):
            continue
        mine = [value for value in node.inputs if value is not None and value in matching.a.place]
        theirs = [value for value in twin.inputs if value is not None and value in matching.b.place]
        left = [x for x in mine if x not in matching.forth], [y for y in theirs if y not in matching.back]
        if len(mine) == len(theirs) and len(left[0]) == len(left[1]) == 1:
            _read_alike(left[0][0], left[1][0], matching)


def _read_alike(one: Value, two: Value, matching: _Matching) -> None:
    if one.producer is None or two.producer is None or not compatible(matching.a.dims(one), matching.b.dims(two)):
        return
    if one.name == two.name:
        matching.add(one, two, "name")
    elif one.output_index == two.output_index and same_operator(one.producer, two.producer):
        matching.add(one, two, "structure")


def _by_order(matching: _Matching) -> None:
    mine, theirs = _groups(matching.a, matching.forth), _groups(matching.b, matching.back)
    for key, ones in mine.items():
        twos = theirs.get(key, [])
        if len(ones) == len(twos):
            for one, two in zip(ones, twos, strict=True):
                matching.add(one, two, "order")


def _groups(side: Side, matched: Mapping[Value, Value]) -> dict[object, Sequence[Value]]:
    """Return the unmatched values by module path, operator and dims, without those of no module."""
    groups: dict[object, list[Value]] = {}
    for value in side.place:
        node, dims = value.producer, side.dims(value)
        if node is None or value in matched or dims is None or None in dims:
            continue
        if scope := module_of(node):
            groups.setdefault((scope, node.operator, value.output_index, dims), []).append(value)
    return dict(groups)


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
