"""The weights and attributes of a model that was made of others, against those of the same name in these.

A rewrite gives what it changes another name; so what stands under a name of an original, with its dtype and dims, has
to have its elements, and a number in an attribute of a node of that name has to be its number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from graphkit.graph.names import counted
from graphkit.graph.traversal import reachable
from graphkit.graph.view import Node, Value, all_nodes, all_scopes
from graphkit.matching.tensor_bytes import SameBytes
from graphkit.model import Model
from graphkit.verify.first_difference import run_part

__all__ = ["WrongAttribute", "WrongPart", "WrongWeight", "mended", "wrong_attributes", "wrong_parts", "wrong_weights"]

CLOSE = 1e-6  # of what was computed once, by another program
PREFIX = "encoder/"  # of what a bundle takes from the encoder
ADDED = re.compile(r"_(\d+|value)$")
SUFFIX = "_merged_0"  # of the names in a merged decoder


@dataclass(frozen=True, eq=False)
class WrongWeight:
    """A weight that has other elements than that of the same name.

    Attributes:
        file: The file that it is in.
        name: Its name.
        count, total: How many elements differ, of how many.
        first: The index of the first of them.
        right: What it should be.
        is_sure: Whether its name is that of the original; else something was added, and it may be another constant.
    """

    file: str
    name: str
    count: int
    total: int
    first: tuple[int, ...]
    right: np.ndarray
    is_sure: bool = True

    def __str__(self) -> str:
        differ = f"{self.count:,} of {counted(self.total, 'element(s)')} differ{'s' if self.count == 1 else ''}"
        where = f", first [{', '.join(map(str, self.first))}]" if self.first else ""
        return f"Weight '{self.name}' of {self.file} is not that of the export: {differ}{where}."


@dataclass(frozen=True, eq=False)
class WrongAttribute:
    """A number in an attribute that is another one than in the node of the same name.

    Attributes:
        file: The file that the node is in.
        node: The node.
        name: The attribute.
        number, right: What it is, and what it should be.
    """

    file: str
    node: str
    operator: str
    name: str
    number: float
    right: float
    is_sure: ClassVar[bool] = True

    def __str__(self) -> str:
        place = f"'{self.node}' ({self.operator}) of {self.file}"
        return f"{place} has {self.name} {self.number:.6g}, and that of the export {self.right:.6g}."


WrongPart = WrongWeight | WrongAttribute


def wrong_weights(originals: Sequence[Model], *candidates: Model) -> Iterator[WrongWeight]:
    """Yield the weights of models that none of the originals' weights of that name, dtype and dims is equal to.

    Bytes that models share in a data file are compared once. What an original computes of constants, and a model has
    as a constant, is computed once more. Constants of no such name are not compared: the runs tell of them.
    """
    known: dict[str, list[tuple[Model, Value]]] = {}
    for model in dict.fromkeys(originals):
        for scope in all_scopes(model.scopes):
            for value in scope.values.values():
                known.setdefault(_plain(value.name), []).append((model, value))
    same = SameBytes()
    for candidate in candidates:
        for value in (value for scope in all_scopes(candidate.scopes) for value in scope.values.values()):
            if value.constant is not None and not candidate.shape_tensors.is_shape(value):
                yield from _wrong(candidate, value, known, same)


def _wrong(
    candidate: Model, value: Value, known: Mapping[str, Sequence[tuple[Model, Value]]], same: SameBytes
) -> Iterator[WrongWeight]:
    """Yield a weight if no original's of its name is equal to it."""
    for name, is_sure in _names(value.name):
        named = known.get(name, [])
        faults = [
            wrong for model, twin in named if (wrong := _compared(candidate, value, model, twin, same)) is not None
        ]
        if faults and not any(wrong.count == 0 for wrong in faults):
            yield replace(min(faults, key=lambda wrong: wrong.count), is_sure=is_sure)
        if named:
            break


def _names(name: str) -> Iterator[tuple[str, bool]]:
    """Yield the names that a constant may have in an original, and whether each is certain."""
    plain = _plain(name.rsplit("//", 1)[-1])
    yield plain, True
    yield plain.removeprefix(PREFIX), True
    yield ADDED.sub("", plain), False


def _plain(name: str) -> str:
    return name.removesuffix(SUFFIX)


def _compared(candidate: Model, value: Value, original: Model, twin: Value, same: SameBytes) -> WrongWeight | None:
    """Compare two weights; None where they are not of one dtype and dims, or the other is no constant."""
    mine, theirs = value.constant, twin.constant
    assert mine is not None
    if theirs is not None and (theirs.data_type, list(theirs.dims)) != (mine.data_type, list(mine.dims)):
        return None
    if theirs is not None and (original is candidate or same.holds(candidate, mine, original, theirs)):
        return WrongWeight(candidate.name, value.name, 0, 0, (), np.zeros(0))
    if mine.data_type not in helper.get_all_tensor_dtypes() or mine.data_type == onnx.TensorProto.STRING:
        return None
    right = original.array(theirs) if theirs is not None else _computed(original, twin)
    array = candidate.array(mine)
    if right is None or (right.dtype, right.shape) != (array.dtype, array.shape):
        return None
    differ = right != array if theirs is not None else ~np.isclose(right, array, CLOSE, CLOSE, equal_nan=True)
    if theirs is not None and not differ.any():  # NaN, or zeros of another sign
        differ = np.ones_like(differ)
    count = int(differ.sum())
    first = tuple(int(index) for index in np.argwhere(differ)[0]) if count else ()
    return WrongWeight(candidate.name, value.name, count, array.size, first, right)


def _computed(model: Model, value: Value) -> np.ndarray | None:
    """Return a value that a model computes of constants alone; None for another value."""
    if value.producer is None or not _is_constant(value):
        return None
    computed = next(run_part(model, [value], lambda inputs: () if inputs else ({},)), None)
    return None if computed is None else computed[value.name]


def _is_constant(value: Value) -> bool:
    """Whether a value follows from constants alone."""

    def sources(source: Value) -> Sequence[Value | None]:
        return () if source.is_constant or source.producer is None else source.producer.inputs

    computed = (source for source in reachable([value], sources) if not source.is_constant)
    nodes = (source.producer for source in computed)
    return not any(node is None or node.bodies or node.is_op("Shape", "Size") for node in nodes)


def wrong_attributes(originals: Sequence[Model], candidate: Model) -> Iterator[WrongAttribute]:
    """Yield the numbers in attributes, such as an epsilon, that no node of that name and operator has."""
    known: dict[tuple[str, str], list[Node]] = {}
    for model in dict.fromkeys(originals):
        for node in all_nodes(model.scopes):
            if node.proto.name:
                known.setdefault((node.proto.name, node.operator), []).append(node)
    for node in all_nodes(candidate.scopes):
        same = known.get((node.proto.name.rsplit("//", 1)[-1], node.operator), [])
        for name, attribute in node.attributes.items():
            if attribute.type != AttributeProto.FLOAT:
                continue
            right = [original_node.attributes[name].f for original_node in same if name in original_node.attributes]
            if right and attribute.f not in right:
                yield WrongAttribute(candidate.name, node.proto.name, node.operator, name, attribute.f, right[0])


def wrong_parts(originals: Sequence[Model], candidates: Collection[Model]) -> list[WrongPart]:
    """Return the weights of models, and the numbers in attributes, that are not, or may not be, the originals'."""
    attributes = (wrong for model in candidates for wrong in wrong_attributes(originals, model))
    return [*wrong_weights(originals, *candidates), *attributes]


def mended(models: Mapping[str, Model], wrong: Sequence[WrongPart]) -> dict[str, Model]:
    """Return those of some models in which weights and attributes are wrong, by name, with these as they should be."""
    parts = {name: [part for part in wrong if part.file == model.name] for name, model in models.items()}
    return {name: _mended(models[name], faults) for name, faults in parts.items() if faults}


def _mended(model: Model, wrong: Sequence[WrongPart]) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    weights = {fault.name: fault.right for fault in wrong if isinstance(fault, WrongWeight)}
    numbers = {(fault.node, fault.name): fault.right for fault in wrong if isinstance(fault, WrongAttribute)}
    for graph in _graphs(proto.graph):
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


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
