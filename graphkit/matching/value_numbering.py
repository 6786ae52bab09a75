"""Value numbering: values that compute the same from the same inputs and constants share a number.

Numbers are shared by all models that are numbered together. A call of a function has its name for an operator: what the
function does is not looked into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from functools import cache
from types import MappingProxyType

import onnx.defs
from onnx import AttributeProto

from graphkit.graph.dataflow import in_order
from graphkit.graph.view import Node, Scope, Value
from graphkit.matching.constant_numbers import ConstantNumbers
from graphkit.model import Model

__all__ = ["ValueNumbers", "default_of"]

GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
NEWEST = (1 << 31) - 1  # the largest version that onnx can be asked for


class ValueNumbers:
    """The numbers of the values, nodes and graphs of models.

    Attributes:
        constants: Those of constants.
        values: Those of values, after `add`.
        nodes: Those of nodes: operator, attributes, inputs and bodies.
        graphs: Those of graphs, bodies and functions: equal where one is the other in another order and by other names.
        attributes: What the attributes of a node say, without its graphs, and without those that have their default.
    """

    def __init__(self) -> None:
        self.constants = ConstantNumbers()
        self._names: dict[Value, str] = {}
        self.values: dict[Value, int] = {}
        self.nodes: dict[Node, int] = {}
        self.graphs: dict[Scope, int] = {}
        self.attributes: dict[Node, Mapping[str, Hashable]] = {}
        self._numbers: dict[Hashable, int] = {}

    def add(self, model: Model, names: Mapping[Value, str] = MappingProxyType({})) -> None:
        """Number everything in a model.

        Args:
            model: The model.
            names: Inputs and outputs with other names than their own to know them by.

        Raises:
            ModelError: A file of weights has shrunk since the model was read.
        """
        self._names.update(names)
        for scope in model.scopes:
            self._number_graph(model, scope)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _number_graph(self, model: Model, scope: Scope) -> int:
        is_main = scope is model.graph
        for place, value in enumerate(scope.inputs):
            self.values[value] = self._number(
                ("input", self._name(value)) if is_main else ("bound", scope.depth, place)
            )
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
        attributes = {
            attribute.name: self._attribute_key(model, attribute)
            for attribute in node.proto.attribute
            if attribute.type not in GRAPHS and attribute != default_of(node, attribute.name)
        }
        self.attributes[node] = attributes
        inputs = [self.value(value) for value in node.inputs]
        while inputs and node.inputs[len(inputs) - 1] is None:
            inputs.pop()
        output_indices = tuple(index for index, value in enumerate(node.outputs) if value is not None)
        key = (node.operator, node.proto.overload, frozenset(attributes.items()), tuple(inputs), output_indices, bodies)
        number = self.nodes[node] = self._number(key)
        constant = node.constant
        for index, value in enumerate(node.outputs):
            if value is not None and value.producer is node:
                is_constant = constant is not None and index == 0
                self.values[value] = (
                    self._number(("constant", self.constants.of(model, constant)))
                    if is_constant and constant is not None
                    else self._number(("output", number, index))
                )

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
    if not onnx.defs.has(op_type, domain):
        return {}
    try:
        schema = onnx.defs.get_schema(op_type, min(version, NEWEST), domain)
    except onnx.defs.SchemaError:  # not in this version
        return {}
    known = schema.attributes.items()
    return {name: attribute.default_value for name, attribute in known if attribute.default_value.name}
