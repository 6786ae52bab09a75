"""Compare the weights of models with those of the originals that they were made of: no run reads every row of a table.

A rewrite gives what it changes another name; so what stands under a name of an original, with its dtype and dims, has
to have its elements, and a number in an attribute of a node of that name has to be its number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from graphkit.dtypes import BITS, dtype_name
from graphkit.errors import count_things
from graphkit.graph.names import group_pairs
from graphkit.graph.view import Scope, Value, all_nodes, all_scopes, graphs_with_scopes, walk_breadth_first
from graphkit.io.tensors import element_count
from graphkit.matching.value_numbering import ConstantNumbers, first_difference
from graphkit.model import Model
from graphkit.passes.control_flow.merged_decoders import SUFFIX
from graphkit.rewrite.base import copy_proto
from graphkit.verify.cause_search import run_part
from graphkit.verify.rewrite_proof import WeightProof

SMALL = 1024  # bytes; below, a tensor may be a number that a rewrite made, and every run reads all of it
SHOWN = 3
READING_ALL = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Sub", "Mul", "Div", "BatchNormalization")
CLOSE = 1e-6  # of what was computed once, by another program
PREFIX = "encoder/"  # of what a bundle takes from the encoder
ADDED = re.compile(r"_(\d+|value)$")


class Weight(Struct, frozen=True, eq=False, dict=True):
    """A constant tensor of a model, under the name of its value, or of the node whose attribute it is."""

    name: str
    scope: str
    tensor: TensorProto
    model: Model
    value: Value | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it apart from others of its model, and its kind."""
        return self.scope, self.name, self.kind

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """Its dtype and dims."""
        return self.tensor.data_type, tuple(self.tensor.dims)

    @cached_property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(map(len, self.tensor.string_data)) or len(self.model.payload(self.tensor))

    def difference(self, other: Weight) -> int | None:
        """Return the first byte in which another weight differs, None where there is none."""
        return first_difference(self.model, self.tensor, other.model, other.tensor)

    def __str__(self) -> str:
        return f"'{self.name}' ({dtype_name(self.tensor.data_type)}{list(self.tensor.dims)})"


def _all_weights(model: Model, scopes: Iterable[Scope]) -> Iterator[Weight]:
    """Yield initializers, defaults of inputs, tensors of Constant nodes, and those in attributes of other nodes."""
    for scope in scopes:
        for value in scope.values.values():
            sparse = value.sparse.values if value.sparse is not None else None
            if (tensor := sparse or value.constant or value.tensor) is not None:
                yield Weight(value.name, scope.path, tensor, model, value)
        for node in scope.nodes:
            for attribute in node.proto.attribute if not node.is_op("Constant") else ():
                tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
                for number, tensor in enumerate(tensors):
                    yield Weight(f"{node.label}.{attribute.name}.{number}", scope.path, tensor, model)


def changed_weights(original: Model, rewritten: Model, *, only_partly_read: bool = False) -> WeightProof:
    """Compare the weights that stand under one name in two models, with the same dtype and dims.

    A rewrite may have made constants of its own, under names of their own, and may have changed the numbers that shapes
    are computed from. With `only_partly_read` those may differ that each run reads as a whole.
    """
    known = {weight.key: weight for weight in _all_weights(original, all_scopes(original.scopes))}
    compared = []
    for weight in _all_weights(rewritten, all_scopes(rewritten.scopes)):
        same = known.get(weight.key)
        if same is not None and not rewritten.shape_tensors.is_shape(weight.value):
            difference, value, is_whole = same.difference(weight), weight.value, False
            if only_partly_read and value is not None and not value.scope.path:  # where nodes run always
                is_whole = all(n.scope is value.scope and n.is_op(*READING_ALL) for n, _ in value.consumers)
            if difference is None or not is_whole:
                compared.append((weight, same, difference))
    return _prove_weights(compared, "the original's")


def foreign_weights(merged: Model, scopes: Iterable[Scope], model: Model) -> WeightProof:
    """Look for the weights of a model made from one branch of a merged decoder among the tensors that branch can read.

    The exporter's suffix `_merged_0` does not count in names. A tensor that has no equal of its name may have one of
    another name: models that were merged may have called it otherwise.
    """
    numbers, equal, named = ConstantNumbers(), dict[int, Weight](), dict[tuple[str, object], Weight]()
    for weight in _all_weights(merged, scopes):
        named[SUFFIX.sub("", weight.name), weight.kind] = named[weight.name, weight.kind] = weight
        equal[numbers.of(merged, weight.tensor)] = weight
    compared = []
    for weight in _all_weights(model, all_scopes(model.scopes)):
        same = equal.get(numbers.of(model, weight.tensor))
        other = named.get((weight.name, weight.kind)) or named.get((SUFFIX.sub("", weight.name), weight.kind))
        difference = other.difference(weight) if same is None and other is not None else None
        compared.append((weight, same or other, difference))
    return _prove_weights(compared, "the merged decoder's")


def _prove_weights(compared: Sequence[tuple[Weight, Weight | None, int | None]], whose: str) -> WeightProof:
    equal = [weight.size for weight, same, difference in compared if same is not None and difference is None]
    new = [weight for weight, same, _ in compared if same is None]
    failures = [f"weight {weight} is none of {whose}" for weight in new if weight.size >= SMALL]
    for weight, same, difference in compared:
        if same is not None and difference is not None:
            first = _element_index(weight.tensor, difference)
            failures.append(f"weight {weight} differs from {whose} '{same.name}', first at element {first}")
    more = [f"and {len(failures) - SHOWN} weights more"] if len(failures) > SHOWN else []
    return WeightProof(len(equal), sum(equal), sum(weight.size < SMALL for weight in new), (*failures[:SHOWN], *more))


def _element_index(tensor: TensorProto, offset: int) -> str:
    bits = BITS.get(tensor.data_type)
    index = offset * 8 // bits if bits is not None else 0
    if index >= element_count(tensor):
        return "0"
    return str([int(position) for position in np.unravel_index(index, tuple(tensor.dims))])


class WrongWeight(Struct, frozen=True, eq=False):
    """A weight that has other elements than that of the same name."""

    file: str
    name: str
    # how many elements differ, of how many
    count: int
    total: int
    first: tuple[int, ...]  # the index of the first of them
    right: np.ndarray
    is_sure: bool = True  # whether its name is the original's; else something was added, and it may be another constant

    def __str__(self) -> str:
        differ = f"{self.count:,} of {count_things(self.total, 'element(s)')} differ{'s' if self.count == 1 else ''}"
        where = f", first [{', '.join(map(str, self.first))}]" if self.first else ""
        return f"Weight '{self.name}' of {self.file} is not that of the export: {differ}{where}."


class WrongAttribute(Struct, frozen=True, eq=False):
    """A number in an attribute that is another one than in the node of the same name."""

    file: str
    node: str
    operator: str
    name: str
    # what it is, and what it should be
    number: float
    right: float
    is_sure: ClassVar[bool] = True

    def __str__(self) -> str:
        place = f"'{self.node}' ({self.operator}) of {self.file}"
        return f"{place} has {self.name} {self.number:.6g}, and that of the export {self.right:.6g}."


WrongPart = WrongWeight | WrongAttribute


def _compare_weights(
    candidate: Model, value: Value, original: Model, twin: Value, numbers: ConstantNumbers
) -> WrongWeight | None:
    """Compare two weights; None where they are not of one dtype and dims, or the other is no constant."""
    mine, theirs = value.constant, twin.constant
    assert mine is not None
    if theirs is not None and (theirs.data_type, list(theirs.dims)) != (mine.data_type, list(mine.dims)):
        return None
    if theirs is not None and numbers.of(original, theirs) == numbers.of(candidate, mine):
        return WrongWeight(candidate.name, value.name, 0, 0, (), np.zeros(0))
    if mine.data_type not in helper.get_all_tensor_dtypes() or mine.data_type == TensorProto.STRING:
        return None
    right = original.array(theirs) if theirs is not None else None
    if theirs is None and twin.producer is not None:
        sources = walk_breadth_first(
            [twin], lambda each: () if each.is_constant or each.producer is None else each.producer.inputs
        )
        nodes = [source.producer for source in sources if not source.is_constant]
        if not any(node is None or node.bodies or node.is_op("Shape", "Size") for node in nodes):
            right = next(run_part(original, [twin], [{}]), {}).get(twin.name)
    array = candidate.array(mine)
    if right is None or (right.dtype, right.shape) != (array.dtype, array.shape):
        return None
    differ = right != array if theirs is not None else ~np.isclose(right, array, CLOSE, CLOSE, equal_nan=True)
    if theirs is not None and not differ.any():  # NaN, or zeros of another sign
        differ = np.ones_like(differ)
    count = int(differ.sum())
    first = tuple(int(index) for index in np.argwhere(differ)[0]) if count else ()
    return WrongWeight(candidate.name, value.name, count, array.size, first, right)


def find_wrong_parts(originals: Sequence[Model], candidates: Collection[Model]) -> list[WrongPart]:
    """Return the weights of models, and the numbers in attributes, that are not, or may not be, the originals'.

    A weight is wrong that none of the originals' weights of that name, dtype and dims is equal to; a number, such as an
    epsilon, that no node of that name and operator has. What an original computes of constants, and a model has as a
    constant, is computed once more. Constants of no such name are not compared: the runs tell of them.
    """
    wrong, numbers, models = list[WrongPart](), ConstantNumbers(), [*dict.fromkeys(originals)]
    scopes = ((model, scope) for model in models for scope in all_scopes(model.scopes))
    values = ((model, value) for model, scope in scopes for value in scope.values.values())
    known = group_pairs((SUFFIX.sub("", value.name), (model, value)) for model, value in values)
    for candidate in candidates:
        for value in (value for scope in all_scopes(candidate.scopes) for value in scope.values.values()):
            if value.constant is None or candidate.shape_tensors.is_shape(value):
                continue
            plain = SUFFIX.sub("", value.name.rsplit("//", 1)[-1])
            names = ((plain, True), (plain.removeprefix(PREFIX), True), (ADDED.sub("", plain), False))
            name, is_sure = next((pair for pair in names if pair[0] in known), ("", False))
            compared = [_compare_weights(candidate, value, *same, numbers) for same in known.get(name, ())]
            faults = [fault for fault in compared if fault is not None]
            if faults and all(fault.count for fault in faults):
                wrong.append(replace(min(faults, key=lambda fault: fault.count), is_sure=is_sure))
    nodes = (node for model in models for node in all_nodes(model.scopes) if node.proto.name)
    named = group_pairs(((node.proto.name, node.operator), node) for node in nodes)
    for candidate, node in ((model, node) for model in candidates for node in all_nodes(model.scopes)):
        twins = named.get((node.proto.name.rsplit("//", 1)[-1], node.operator), [])
        for name, attribute in node.attributes.items():
            right = [twin.attributes[name].f for twin in twins if name in twin.attributes]
            if attribute.type == AttributeProto.FLOAT and right and attribute.f not in right:
                place = candidate.name, node.proto.name, node.operator, name
                wrong.append(WrongAttribute(*place, attribute.f, right[0]))
    return wrong


def mend_models(models: Mapping[str, Model], wrong: Sequence[WrongPart]) -> dict[str, Model]:
    """Return those of some models in which weights and attributes are wrong, by name, with these as they should be."""
    parts = {name: [part for part in wrong if part.file == model.name] for name, model in models.items()}
    return {name: _mend_weights(models[name], faults) for name, faults in parts.items() if faults}


def _mend_weights(model: Model, wrong: Sequence[WrongPart]) -> Model:
    proto = copy_proto(model)
    weights = {fault.name: fault.right for fault in wrong if isinstance(fault, WrongWeight)}
    numbers = {(fault.node, fault.name): fault.right for fault in wrong if isinstance(fault, WrongAttribute)}
    for graph, _ in graphs_with_scopes(proto.graph, model.graph):
        for tensor in graph.initializer:
            if tensor.name in weights:
                tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
        for node in graph.node:
            for attribute in node.attribute:
                if (node.name, attribute.name) in numbers:
                    attribute.f = numbers[node.name, attribute.name]
                elif node.op_type == "Constant" and attribute.name == "value" and node.output[0] in weights:
                    attribute.t.CopyFrom(numpy_helper.from_array(weights[node.output[0]]))
    return model.with_proto(proto)
