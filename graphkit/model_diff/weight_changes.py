"""Constants that were added, removed or changed: initializers, defaults of inputs, tensors of Constant nodes.

Constants are the same where nodes that match read them at one place, or else by their names. Their bytes are compared
only where dtype and dims agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from onnx import TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import tensor_text, values_text
from graphkit.graph.view import Node, Scope, Value, all_scopes
from graphkit.matching.value_matching import is_counted, source_of
from graphkit.model import Model
from graphkit.model_diff.changes import WeightChange, WeightKind
from graphkit.model_diff.node_changes import ReadConstants
from graphkit.model_diff.node_matching import NodeMatching, value_path

__all__ = ["Weights", "tensor_of", "weight_changes"]


Key = Callable[[Value, int], Hashable]  # of a constant and its number


@dataclass(frozen=True)
class Weights:
    """The constants that differ.

    Attributes:
        changes: One for each.
        renamed: Names in A and in B of constants that are equal.
        unread: The constants of A that were not compared, since bytes of theirs or of those in B are missing.
        pairs: Those that are the same, in A and in B.
    """

    changes: tuple[WeightChange, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    pairs: tuple[tuple[Value, Value], ...] = ()


@dataclass(frozen=True, eq=False)
class _Side:
    """The constants of a model, and their numbers."""

    matching: NodeMatching
    model: Model
    scopes: tuple[Scope, ...]
    matched_graphs: Collection[Scope]
    matched: Collection[Node]

    @cached_property
    def numbers(self) -> Mapping[Value, int]:
        values = (value for scope in self.scopes for value in scope.values.values())
        return {value: number for value in values if (number := self._number(value)) is not None}

    def _number(self, value: Value) -> int | None:
        constants = self.matching.values.numbers.constants
        tensor = value.constant if value.constant is not None else value.tensor
        if tensor is not None:
            return constants.of(self.model, tensor)
        return None if value.sparse is None else constants.of_sparse(self.model, value.sparse)

    @cached_property
    def by_number(self) -> Mapping[int, Value]:
        """A constant for each number, the first one."""
        return {number: value for value, number in reversed(list(self.numbers.items()))}

    def is_unread(self, value: Value) -> bool:
        """Whether its bytes are missing."""
        return self.numbers[value] in self.matching.values.numbers.constants.unread

    def is_alone(self, value: Value) -> bool:
        """Whether it is read, and only by nodes that the other model lacks, or is in a body that it lacks."""
        readers = [node for node, _ in value.consumers]
        return bool(readers or value.scope not in self.matched_graphs) and not any(
            node in self.matched for node in readers
        )


def weight_changes(matching: NodeMatching, read: ReadConstants, a: Model, b: Model) -> Weights:
    """Return the constants that differ.

    Args:
        matching: The nodes that match.
        read: Constants that nodes read at the same places.
        a: A model.
        b: The other one.

    Raises:
        ModelError: A file of weights has shrunk since the model was read.
    """
    graphs = {graph for pair in matching.graphs for graph in (pair.a, pair.b)}  # a function of one model is none
    scopes = [tuple(all_scopes(tuple(root for root in model.scopes if root in graphs))) for model in (a, b)]
    graphs |= {graph for pair in matching.moves for graph in (pair.a, pair.b)}
    mine = _Side(matching, a, scopes[0], graphs, matching.forth)
    theirs = _Side(matching, b, scopes[1], graphs, matching.back)
    pairs = list(_pair_constants(matching, read, mine, theirs))
    changes = [change for value_a, value_b in pairs for change in _weight_changes(value_a, value_b, mine, theirs)]
    paired = {value for pair in pairs for value in pair}
    changes += [_lone(value, "removed", mine, theirs) for value in mine.numbers if value not in paired]
    changes += [_lone(value, "added", theirs, mine) for value in theirs.numbers if value not in paired]
    equal = [(x, y) for x, y in pairs if mine.numbers[x] == theirs.numbers[y] and x.name != y.name]
    unread = {x for x in mine.numbers if mine.is_unread(x)} | {x for x, y in pairs if theirs.is_unread(y)}
    return Weights(
        changes=tuple(changes),
        renamed=tuple(dict.fromkeys((value_path(x), value_path(y)) for x, y in equal)),
        unread=tuple(value_path(value) for value in mine.numbers if value in unread),
        pairs=tuple(pairs),
    )


def _pair_constants(
    matching: NodeMatching, read: ReadConstants, mine: _Side, theirs: _Side
) -> Iterator[tuple[Value, Value]]:
    """Yield constants that are the same: those read at one place, of one content, of one name."""
    sources = dict.fromkeys((source_of(value_a), source_of(value_b)) for value_a, value_b in read)
    pairs = [
        (value_a, value_b) for value_a, value_b in sources if value_a in mine.numbers and value_b in theirs.numbers
    ]
    yield from pairs
    done = {value_a for value_a, _ in pairs}, {value_b for _, value_b in pairs}
    for graphs in (*matching.graphs, *matching.moves):
        rest_a = [value for value in graphs.a.values.values() if value in mine.numbers and value not in done[0]]
        rest_b = [value for value in graphs.b.values.values() if value in theirs.numbers and value not in done[1]]
        keys: tuple[Key, ...] = (lambda value, number: (value.name, number), lambda _, number: number, _given_name)
        for key in keys:
            by_key: dict[Hashable, list[Value]] = {}
            for value_b in rest_b:
                by_key.setdefault(key(value_b, theirs.numbers[value_b]), []).append(value_b)
            matched = [
                (value_a, twins.pop(0))
                for value_a in rest_a
                if (twins := by_key.get(key(value_a, mine.numbers[value_a])))
            ]
            yield from matched
            for taken, values in zip(done, zip(*matched, strict=True), strict=False):
                taken.update(values)
            rest_a = [value_a for value_a in rest_a if value_a not in done[0]]
            rest_b = [value_b for value_b in rest_b if value_b not in done[1]]


def _given_name(value: Value, _: int) -> Hashable:
    """Return the name of a constant, unless it is that of a node that an exporter counted, as `Constant_3_output_0`."""
    return value if value.kind == "node" and is_counted(value.name) else value.name


def _weight_changes(value_a: Value, value_b: Value, mine: _Side, theirs: _Side) -> Iterator[WeightChange]:
    names = value_path(value_a), value_path(value_b)
    kind = _kind_of_difference(value_a, value_b) if mine.numbers[value_a] != theirs.numbers[value_b] else None
    if kind is not None and not (kind == "values" and (mine.is_unread(value_a) or theirs.is_unread(value_b))):
        equal = mine.by_number.get(theirs.numbers[value_b])
        yield WeightChange(
            *names,
            kind,
            _weight_text(value_a),
            _weight_text(value_b),
            _path_of_value(equal),
            has_values=_has_values(value_b),
        )
    elif _storage_text(value_a) != _storage_text(value_b):
        yield WeightChange(*names, "storage", _storage_text(value_a), _storage_text(value_b))


def _kind_of_difference(value_a: Value, value_b: Value) -> WeightKind:
    first, second = tensor_of(value_a), tensor_of(value_b)
    if first is None or second is None or first.data_type != second.data_type:
        return "dtype"
    return "dims" if first.dims != second.dims else "values"


def _lone(value: Value, kind: WeightKind, side: _Side, other: _Side) -> WeightChange:
    """Return a constant that only one model has."""
    names, texts = (value_path(value), ""), (_weight_text(value), "")
    if kind == "added":
        names, texts = names[::-1], texts[::-1]
    equal = _path_of_value(other.by_number.get(side.numbers[value]))
    return WeightChange(
        *names, kind, *texts, equal_to=equal, with_nodes=side.is_alone(value), has_values=_has_values(value)
    )


def _path_of_value(value: Value | None) -> str:
    return value_path(value) if value is not None else ""


def tensor_of(value: Value) -> TensorProto | None:
    """Return the tensor of a constant, the values of a sparse one."""
    if value.sparse is not None:
        return value.sparse.values
    return value.constant if value.constant is not None else value.tensor


def _weight_text(value: Value) -> str:
    if value.sparse is not None:
        return f"sparse {dtype_name(value.sparse.values.data_type)}{list(value.sparse.dims)}"
    tensor = tensor_of(value)
    return tensor_text(tensor) if tensor is not None else ""


def _has_values(value: Value) -> bool:
    """Whether the text of a constant has its values."""
    tensor = tensor_of(value) if value.sparse is None else None
    return tensor is not None and bool(values_text(tensor))


def _storage_text(value: Value) -> str:
    if value.kind == "node":
        return "Constant node"
    return "default of an input" if value.kind == "input" else "initializer"
