"""Compare the weights of two models byte by byte: no run reaches every row of an embedding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.dtypes import BITS, dtype_name
from graphkit.graph.view import Scope, Value, all_scopes
from graphkit.io.tensors import element_count
from graphkit.matching.tensor_bytes import Place, first_difference, place_of
from graphkit.model import Model
from graphkit.passes.control_flow.split_merged import SUFFIX
from graphkit.verify.rewrite_proof import WeightProof

__all__ = ["changed_weights", "foreign_weights"]

SAMPLE = 4096  # bytes at either end, compared before the rest is read
SMALL = 1024  # bytes; below, a tensor may be a number that a rewrite made, and every run reads all of it
SHOWN = 3
READING_ALL = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Sub", "Mul", "Div", "BatchNormalization")


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant tensor of a model, under the name of its value, or of the node whose attribute it is."""

    name: str
    scope: str
    tensor: TensorProto
    model: Model
    value: Value | None = None

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """Its dtype and dims."""
        return self.tensor.data_type, tuple(self.tensor.dims)

    @cached_property
    def payload(self) -> memoryview:
        """Its bytes, mapped where they are in a file."""
        if self.tensor.data_type == TensorProto.STRING:
            return memoryview(b"\0".join(self.tensor.string_data))
        return self.model.payload(self.tensor)

    @cached_property
    def place(self) -> Place | None:
        """File, offset and length of its bytes; None where they are in memory."""
        return place_of(self.model, self.tensor)

    def difference(self, other: Weight) -> int | None:
        """Return the first byte in which another weight differs, None where there is none."""
        return first_difference(self.model, self.tensor, other.model, other.tensor)

    def __str__(self) -> str:
        return f"'{self.name}' ({dtype_name(self.tensor.data_type)}{list(self.tensor.dims)})"


def changed_weights(original: Model, rewritten: Model, *, only_partly_read: bool = False) -> WeightProof:
    """Compare the weights that stand under one name in two models, with the same dtype and dims.

    A rewrite may have made constants of its own, under names of their own, and may have changed the numbers that shapes
    are computed from. With `only_partly_read` those may differ that each run reads as a whole.
    """
    known = {(weight.scope, weight.name): weight for weight in _weights(original, all_scopes(original.scopes))}
    tally = _Tally()
    for weight in _weights(rewritten, all_scopes(rewritten.scopes)):
        same = known.get((weight.scope, weight.name))
        if same is None or same.kind != weight.kind or rewritten.shape_tensors.is_shape(weight.value):
            continue
        difference = same.difference(weight)
        if difference is None or not (only_partly_read and _is_read_whole(weight.value)):
            tally.add(weight, same, difference, "the original's")
    return tally.proof()


def _is_read_whole(value: Value | None) -> bool:
    """Whether every run reads all elements of a weight: the nodes that read it run always, and look nothing up."""
    return (
        value is not None
        and not value.scope.path
        and all(node.scope is value.scope and node.is_op(*READING_ALL) for node, _ in value.consumers)
    )


def foreign_weights(merged: Model, scopes: Iterable[Scope], model: Model) -> WeightProof:
    """Look for the weights of a model made from one branch of a merged decoder among the tensors that branch can read.

    The exporter's suffix `_merged_0` does not count in names. A tensor that has no equal of its name may have one of
    another name: models that were merged may have called it otherwise.
    """
    pool = _Pool(list(_weights(merged, scopes)))
    tally = _Tally()
    for weight in _weights(model, all_scopes(model.scopes)):
        named = pool.named(weight)
        difference = named.difference(weight) if named is not None else 0
        if difference is not None and pool.has_equal(weight):
            difference = None
        if named is None and difference is not None:
            tally.add_unknown(weight)
        else:
            tally.add(weight, named or weight, difference, "the merged decoder's")
    return tally.proof()


def _weights(model: Model, scopes: Iterable[Scope]) -> Iterator[Weight]:
    """Yield initializers, defaults of inputs, tensors of Constant nodes, and those in attributes of other nodes."""
    for scope in scopes:
        for value in scope.values.values():
            if (tensor := _tensor(value)) is not None:
                yield Weight(value.name, scope.path, tensor, model, value)
        for node in scope.nodes:
            if not node.is_op("Constant"):
                for attribute in node.proto.attribute:
                    tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
                    for number, tensor in enumerate(tensors):
                        yield Weight(f"{node.label}.{attribute.name}.{number}", scope.path, tensor, model)


def _tensor(value: Value) -> onnx.TensorProto | None:
    if value.sparse is not None:
        return value.sparse.values
    return value.constant if value.constant is not None else value.tensor


class _Pool:
    """The weights that a branch can read, by name and by kind."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        self._kinds: dict[tuple[int, tuple[int, ...]], list[Weight]] = {}
        self._names: dict[tuple[str, tuple[int, tuple[int, ...]]], Weight] = {}
        for weight in weights:
            self._kinds.setdefault(weight.kind, []).append(weight)
            self._names[SUFFIX.sub("", weight.name), weight.kind] = weight
            self._names[weight.name, weight.kind] = weight

    def named(self, weight: Weight) -> Weight | None:
        """Return the weight of the same name, dtype and dims."""
        return self._names.get((weight.name, weight.kind)) or self._names.get(
            (SUFFIX.sub("", weight.name), weight.kind)
        )

    def has_equal(self, weight: Weight) -> bool:
        """Whether there is a weight of the same dtype, dims and bytes."""
        same = self._kinds.get(weight.kind, [])
        return any(_may_equal(pooled, weight) and pooled.difference(weight) is None for pooled in same)


def _may_equal(pooled: Weight, weight: Weight) -> bool:
    if pooled.place is not None and pooled.place == weight.place:
        return True
    left, right = pooled.payload, weight.payload
    return bytes(left[:SAMPLE]) == bytes(right[:SAMPLE]) and bytes(left[-SAMPLE:]) == bytes(right[-SAMPLE:])


@dataclass
class _Tally:
    """The comparisons so far."""

    equal: int = 0
    bytes: int = 0
    made: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, weight: Weight, same: Weight, difference: int | None, whose: str) -> None:
        if difference is None:
            self.equal += 1
            self.bytes += len(weight.payload)
        else:
            place = _element(weight.tensor, difference)
            self.failures.append(f"weight {weight} differs from {whose} '{same.name}', first at element {place}")

    def add_unknown(self, weight: Weight) -> None:
        if len(weight.payload) < SMALL:
            self.made += 1
        else:
            self.failures.append(f"weight {weight} is none of the merged decoder's")

    def proof(self) -> WeightProof:
        more = [f"and {len(self.failures) - SHOWN} weights more"] if len(self.failures) > SHOWN else []
        return WeightProof(self.equal, self.bytes, self.made, (*self.failures[:SHOWN], *more))


def _element(tensor: TensorProto, offset: int) -> str:
    """Return the index of the element at a byte."""
    bits = BITS.get(tensor.data_type)
    index = offset * 8 // bits if bits is not None else 0
    if index >= element_count(tensor):
        return "0"
    return str([int(position) for position in np.unravel_index(index, tuple(tensor.dims))])
