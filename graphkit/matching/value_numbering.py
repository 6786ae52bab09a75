"""Value numbering: values that compute the same from the same inputs and constants share a number.

Numbers are shared by all models that are numbered together. A call of a function has its name for an operator: what the
function does is not looked into.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from onnx import AttributeProto, SparseTensorProto, TensorProto

from graphkit.dtypes import BITS
from graphkit.errors import ModelError
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import operator_schema
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model

BLOCK = 1 << 18  # larger ones are new pages for each read
Place = tuple[Path, int, int]  # file, offset and length


def place_of(model: Model, tensor: TensorProto) -> Place | None:
    """Return where the bytes of a tensor lie; None where they are in memory."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    path, offset, length = model.piece(tensor)
    return Path(os.path.realpath(path)), offset, length


def first_difference(model: Model, tensor: TensorProto, other: Model, other_tensor: TensorProto) -> int | None:
    """Return the first byte in which a tensor differs from one of another model, None where there is none.

    Bytes that lie at one place of one file are equal unread. A ModelError says that a file is missing, or has shrunk.
    """
    places = place_of(model, tensor), place_of(other, other_tensor)
    if places[0] is not None and places[0] == places[1]:
        return None
    sizes = len(_payload_bytes(model, tensor)), len(_payload_bytes(other, other_tensor))
    if sizes[0] != sizes[1]:
        return min(sizes)
    at = 0
    for block, same in zip(_payload_blocks(model, tensor), _payload_blocks(other, other_tensor), strict=True):
        if block != same:
            pair = (np.frombuffer(side, np.uint8) for side in (block, same))
            return at + int(np.not_equal(*pair).argmax())
        at += len(block)
    return None


def _payload_bytes(model: Model, tensor: TensorProto) -> memoryview:
    if tensor.data_type == TensorProto.STRING:
        return memoryview(b"\0".join(tensor.string_data))
    return model.payload(tensor)


def _payload_blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    """Yield the bytes of a tensor, block by block; those in a file are read, not mapped."""
    place = place_of(model, tensor)
    if place is None:
        payload = _payload_bytes(model, tensor)
        yield from (bytes(payload[at : at + BLOCK]) for at in range(0, len(payload), BLOCK))
        return
    path, offset, length = place
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        for at in range(0, length, BLOCK):
            yield file.read(min(BLOCK, length - at))


SAMPLE = 4096  # bytes of either end


class ConstantNumbers:
    """Gives numbers to constants of any models."""

    def __init__(self) -> None:
        self.unread: set[int] = set()  # those of constants whose bytes are missing, which name and place stand for
        self._numbers: dict[Hashable, int] = {}
        # the first one of each number that has more bytes than a sample, by its sample
        self._large: dict[Hashable, list[tuple[int, Model, TensorProto]]] = {}
        self._fresh = itertools.count()

    def of(self, model: Model, tensor: TensorProto) -> int:
        """Return the number of a tensor, or raise a ModelError where its file has shrunk since the model was read."""
        kind = (tensor.data_type, tuple(tensor.dims))
        if tensor.data_type == TensorProto.STRING:
            return self._number_of_key((kind, tuple(tensor.string_data)))
        if tensor.data_type not in BITS:
            plain = TensorProto()
            plain.CopyFrom(tensor)
            plain.ClearField("name")
            return self._number_of_key((kind, plain.SerializeToString(deterministic=True)))
        try:
            place_of(model, tensor)
        except ModelError:  # the file is missing
            number = self._number_of_key((kind, tensor.name, tuple((e.key, e.value) for e in tensor.external_data)))
            self.unread.add(number)
            return number
        return self._number_of_key((kind, self.of_bytes(model, tensor)))

    def of_bytes(self, model: Model, tensor: TensorProto) -> int:
        """Return the number of the bytes of a tensor, whatever dtype and dims it has, or raise a ModelError."""
        place = place_of(model, tensor)
        if place is not None and place in self._numbers:
            return self._numbers[place]
        payload = model.payload(tensor)
        sample = len(payload), bytes(payload[:SAMPLE]), bytes(payload[-SAMPLE:])
        if len(payload) <= SAMPLE:
            number = self._number_of_key(sample)
        else:
            alike = self._large.setdefault(sample, [])
            same = (known for known, other, held in alike if first_difference(other, held, model, tensor) is None)
            if (number := next(same, -1)) < 0:
                number = next(self._fresh)
                alike.append((number, model, tensor))
        if place is not None:
            self._numbers[place] = number
        return number

    def of_sparse(self, model: Model, sparse: SparseTensorProto) -> int:
        """Return the number of a sparse tensor, or raise a ModelError."""
        parts = self.of(model, sparse.values), self.of(model, sparse.indices)
        return self._number_of_key(("sparse", tuple(sparse.dims), *parts))

    def _number_of_key(self, key: Hashable) -> int:
        if key not in self._numbers:
            self._numbers[key] = next(self._fresh)
        return self._numbers[key]


GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class ValueNumbers:
    """The numbers of the values, nodes and graphs of models."""

    def __init__(self) -> None:
        self.constants = ConstantNumbers()
        self._names: dict[Value, str] = {}
        self.values: dict[Value, int] = {}
        self.nodes: dict[Node, int] = {}  # of operator, attributes, inputs and bodies
        self.graphs: dict[Scope, int] = {}  # equal where one is the other in another order and by other names
        # what attributes say, without graphs and those that have their default
        self.attributes: dict[Node, Mapping[str, Hashable]] = {}
        self._numbers: dict[Hashable, int] = {}

    def add(self, model: Model, names: Mapping[Value, str] = MappingProxyType({})) -> None:
        """Number everything in a model, whose inputs and outputs may be known by other names than their own."""
        self._names.update(names)
        for scope in model.scopes:
            self._number_graph(model, scope)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _number_graph(self, model: Model, scope: Scope) -> int:
        is_main = scope is model.graph
        for place, value in enumerate(scope.inputs):
            key = ("input", self._name(value)) if is_main else ("bound", scope.depth, place)
            self.values[value] = self._number(key)
        defaults = [self._number_constant(model, value) for value in scope.inputs]
        for value in scope.initializers:
            if value.kind == "initializer":
                self.values[value] = self._number_constant(model, value)
        for node in in_order(scope):
            self._number_node(model, node)
        outputs = [(self._name(value) if is_main else "", self.value(value)) for value in scope.outputs]
        if is_main:
            outputs.sort()
        nodes = Counter(self.nodes[node] for node in scope.nodes)
        number = self._number(("graph", tuple(defaults), tuple(outputs), frozenset(nodes.items())))
        self.graphs[scope] = number
        return number

    def _name(self, value: Value) -> str:
        return self._names.get(value, value.name)

    def _number_constant(self, model: Model, value: Value) -> int:
        """Return the number of an initializer, of the default of an input, or of one that has none."""
        if value.tensor is not None:
            return self._number(("constant", self.constants.of(model, value.tensor)))
        if value.sparse is not None:
            return self._number(("constant", self.constants.of_sparse(model, value.sparse)))
        return self._number("no default")

    def value(self, value: Value | None) -> int:
        """Return the number of a value; one that is computed from itself, or nowhere, is known by its name."""
        if value is None:
            return self._number("left out")
        if value not in self.values:
            self.values[value] = self._number(("unknown", value.name))
        return self.values[value]

    def _number_node(self, model: Model, node: Node) -> None:
        bodies = frozenset((name, self._number_graph(model, body)) for name, body in node.bodies.items())
        plain = (each for each in node.proto.attribute if each.type not in GRAPHS)
        said = (each for each in plain if each != default_of(node, each.name))
        attributes = self.attributes[node] = {each.name: self._attribute_key(model, each) for each in said}
        inputs = [self.value(value) for value in node.inputs]
        while inputs and node.inputs[len(inputs) - 1] is None:
            inputs.pop()
        output_indices = tuple(index for index, value in enumerate(node.outputs) if value is not None)
        key = (node.operator, node.proto.overload, frozenset(attributes.items()), tuple(inputs), output_indices, bodies)
        number = self.nodes[node] = self._number(key)
        for index, value in enumerate(node.outputs):
            if value is not None and value.producer is node:
                tensor = node.constant if index == 0 else None
                content = (
                    ("output", number, index) if tensor is None else ("constant", self.constants.of(model, tensor))
                )
                self.values[value] = self._number(content)

    def _attribute_key(self, model: Model, attribute: AttributeProto) -> Hashable:
        if attribute.ref_attr_name:
            return "call", attribute.ref_attr_name
        if attribute.type == AttributeProto.TENSOR:
            return attribute.type, self.constants.of(model, attribute.t)
        if attribute.type == AttributeProto.TENSORS:
            return attribute.type, tuple(self.constants.of(model, tensor) for tensor in attribute.tensors)
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            return attribute.type, self.constants.of_sparse(model, attribute.sparse_tensor)
        plain = AttributeProto()
        plain.CopyFrom(attribute)
        for field in ("doc_string", "g", "graphs"):
            plain.ClearField(field)
        return attribute.type, plain.SerializeToString(deterministic=True)


def default_of(node: Node, name: str) -> AttributeProto | None:
    """Return the default of an attribute, where the specification of the operator has one."""
    return _attribute_defaults(node.op_type, node.domain, node.scope.opset(node.domain)).get(name)


@cache
def _attribute_defaults(op_type: str, domain: str, version: int) -> Mapping[str, AttributeProto]:
    schema = operator_schema(op_type, version, domain)
    known = schema.attributes.items() if schema is not None else ()
    return {name: attribute.default_value for name, attribute in known if attribute.default_value.name}
