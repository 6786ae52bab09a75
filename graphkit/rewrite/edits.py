"""The edits of a model, collected against its view, and the model that they describe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx.helper
from msgspec.structs import replace
from onnx.helper import get_attribute_value

from graphkit.graph.new_nodes import NewNode as NewNode
from graphkit.graph.new_nodes import NodeInput as NodeInput
from graphkit.graph.view import Node, Scope, Value, body_graphs, domain_of, functions_of
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.rewrite.dead_code import clean_proto

FUNCTIONS_SINCE = 8  # IR version


def add_functions(proto: onnx.ModelProto, functions: Iterable[onnx.FunctionProto]) -> None:
    """Give a model functions that it lacks, in place, with their domains and an IR version that knows functions."""
    has = functions_of(proto)
    imported = {domain_of(entry.domain) for entry in proto.opset_import}
    for function in functions:
        if (domain_of(function.domain), function.name, function.overload) in has:
            continue
        proto.functions.append(function)
        proto.ir_version = max(proto.ir_version, FUNCTIONS_SINCE)
        if function.domain not in imported:
            proto.opset_import.append(onnx.helper.make_opsetid(function.domain, 1))
            imported.add(function.domain)


INITIALIZERS_SINCE = 4  # IR version from which an initializer need not be an input


def rebuild_model(edits: Edits, *, clean: bool = False) -> Model:
    """Return the model with all edits made, and without dead code if asked; the same one where there are no edits."""
    if not edits.is_changed:
        return edits.model
    proto = copy_proto(edits.model)
    first: list[onnx.NodeProto] = []
    if proto.ir_version >= INITIALIZERS_SINCE:
        proto.graph.initializer.extend(edits.tensors)
    else:
        first = [onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in edits.tensors]
    _Rebuilder(edits).graph(edits.model.graph, proto.graph, first)
    add_functions(proto, edits.functions.values())
    if clean:
        clean_proto(proto)
    return edits.model.with_proto(proto)


class _Rebuilder:
    """Changes the graphs of a copied proto in place."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits
        self.dirty = {node for value in (*edits.aliases, *edits.renamed) for node, _ in value.consumers}
        self.dirty.update(edits.inputs)  # what changes an input, or gives an output another name
        self.dirty.update(value.producer for value in edits.renamed if value.producer is not None)

    def graph(self, scope: Scope, graph: onnx.GraphProto, first: list[onnx.NodeProto]) -> None:
        nodes = first + [self._made(new, scope) for new in self.edits.heads.get(scope, ())]
        is_same = not (nodes or any(node in self.edits.before or node in self.edits.replaced for node in scope.nodes))
        for node, proto in zip(scope.nodes, graph.node, strict=True):
            nodes += [self._made(new, scope) for new in self.edits.before.get(node, ())]
            if any(new.like is node for new in self.edits.before.get(node, ())):
                proto.ClearField("name")  # which the new one has: onnxruntime refuses two nodes of one name
            if node in self.edits.replaced:
                nodes += [self._made(new, scope) for new in self.edits.replaced[node]]
                continue
            if node in self.dirty:
                self._rewire(node, proto)
            nodes.append(proto)
            pairs = zip(body_graphs(proto), node.bodies.values(), strict=True) if node.bodies else ()
            for (_, body_graph), body in pairs:
                self.graph(body, body_graph, [])
        for annotation in graph.quantization_annotation:
            tensor = scope.find(annotation.tensor_name)
            if tensor in self.edits.renamed:
                annotation.tensor_name = self.edits.renamed[tensor]
            for entry in annotation.quant_parameter_tensor_names:
                parameter = scope.find(entry.value)
                entry.value = self._name(parameter, scope) or entry.value
        if not is_same:
            kept = onnx.GraphProto()
            kept.node.extend(nodes)
            del graph.node[:]
            graph.node.extend(kept.node)

    def _rewire(self, node: Node, proto: onnx.NodeProto) -> None:
        changed = self.edits.inputs.get(node, {})
        sources = [changed.get(index, value) for index, value in enumerate(node.inputs)]
        sources += [changed[index] for index in sorted(changed) if index >= len(node.inputs)]
        proto.input[:] = [self._name(source, node.scope) for source in sources]
        for index, value in enumerate(node.outputs):
            if value in self.edits.renamed:
                proto.output[index] = self.edits.renamed[value]

    def _name(self, source: NodeInput, scope: Scope) -> str:
        if source is None:
            return ""
        resolved = self.edits.resolve(source, scope) if isinstance(source, Value) else source
        return self.edits.renamed.get(resolved, resolved.name) if isinstance(resolved, Value) else resolved

    def _made(self, new: NewNode, scope: Scope) -> onnx.NodeProto:
        return replace(new, inputs=[self._name(source, scope) for source in new.inputs]).to_proto()


def attributes_of(node: Node, **changed: Any) -> dict[str, Any]:
    """Return the attributes of a node as `NewNode` takes them, some of them changed.

    An empty list, and one that the call of a function gives, stays a proto.
    """
    attributes: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        value = attribute if attribute.ref_attr_name else get_attribute_value(attribute)
        attributes[name] = attribute if isinstance(value, list) and not value else value
    return attributes | changed


class Edits:
    """Edits of one model, which is not changed."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.aliases: dict[Value, Value | str] = {}  # what consumers read instead of a value
        self.inputs: dict[Node, dict[int, NodeInput]] = defaultdict(dict)  # what a node reads instead, by index
        self.replaced: dict[Node, Sequence[NewNode]] = {}  # the nodes that take the place of a node
        self.before: dict[Node, Sequence[NewNode]] = {}  # those that come before it
        self.heads: dict[Scope, list[NewNode]] = defaultdict(list)  # those that come first in a graph
        self.renamed: dict[Value, str] = {}
        self.tensors: list[onnx.TensorProto] = []
        self.functions: dict[tuple[str, str], onnx.FunctionProto] = {}  # by domain and name, what the model lacks
        self.new_reads: set[Value] = set()  # the values with new readers, which `Value.consumers` does not list
        self._inner_names: dict[Scope, set[str]] = {}

    # Queries

    @property
    def is_changed(self) -> bool:
        """Whether there are any edits."""
        return bool(self.aliases or self.inputs or self.replaced or self.before or self.heads or self.renamed)

    def is_taken(self, node: Node) -> bool:
        """Whether an edit has taken a node."""
        return node in self.replaced or node in self.inputs or node in self.before

    def is_visible(self, value: Value, scope: Scope) -> bool:
        """Whether a value may be read in a scope by its name, which no body inside its own scope gives to another.

        A body's inputs and initializers may have names of the graphs around it. onnxruntime mixes them up even where
        one branch of an If has such an initializer, and the other reads the outer tensor.
        """
        return scope is value.scope or value.name not in self.inner_names(value.scope)

    def inner_names(self, scope: Scope) -> set[str]:
        """Return the names that the bodies inside a graph define."""
        if scope not in self._inner_names:
            self._inner_names[scope] = {name for body in scope.walk() if body is not scope for name in body.values}
        return self._inner_names[scope]

    def resolve(self, value: Value, scope: Scope | None = None) -> Value | str:
        """Return the value that consumers of a value will read; in a scope, if given, names may be shadowed."""
        resolved: Value | str = value
        while isinstance(resolved, Value) and resolved in self.aliases:
            after = self.aliases[resolved]
            if scope is not None and isinstance(after, Value) and not self.is_visible(after, scope):
                break
            resolved = after
        return resolved

    def only_reader(self, value: Value) -> Node | None:
        """Return the one node that reads a value, in its own graph, None where others do, or will after the edits.

        An output of a graph is read by what runs the graph.
        """
        if len(value.consumers) != 1 or value in self.new_reads or value.is_output:
            return None
        reader = value.consumers[0][0]
        return reader if reader.scope is value.scope else None

    # Edits

    def replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Let all consumers of a value read another one with the same elements; return whether that is possible."""
        if not self.can_replace_all_uses(value, instead):
            return False
        self.aliases[value] = instead
        self._read([instead])
        return True

    def can_replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Whether all consumers of a value can read another one."""
        return isinstance(instead, str) or all(self.is_visible(instead, node.scope) for node, _ in value.consumers)

    def set_inputs(self, node: Node, inputs: Mapping[int, NodeInput]) -> None:
        """Change the inputs of a node."""
        self.inputs[node].update(inputs)
        self._read(inputs.values())

    def take(self, node: Node) -> None:
        """Keep other edits of this round from a node, which stays as it is until nothing reads it."""
        self.set_inputs(node, {})

    def replace(self, node: Node, *nodes: NewNode) -> None:
        """Replace a node by nodes that produce its used outputs under the same names.

        What no node produces any longer must have no reader left, also none of another edit of the same round: where
        one may come, insert nodes before this one, which stays until nothing reads it.
        """
        self.replaced[node] = nodes
        self._make(nodes)

    def insert_before(self, node: Node, *nodes: NewNode) -> None:
        """Insert nodes before a node, which stays until nothing reads it."""
        self.before[node] = nodes
        self._make(nodes)

    def insert_first(self, scope: Scope, node: NewNode) -> None:
        """Insert a node at the start of a graph, after those inserted there before."""
        self.heads[scope].append(node)
        self._make([node])

    def rename(self, value: Value, name: str) -> None:
        """Rename a node's output, to a name that no remaining value has, here or in a body that reads it."""
        assert value.producer is not None
        self.renamed[value] = name
        self.take(value.producer)

    def _make(self, nodes: Iterable[NewNode]) -> None:
        for node in nodes:
            self._read(node.inputs)

    def _read(self, sources: Iterable[NodeInput]) -> None:
        self.new_reads.update(source for source in sources if isinstance(source, Value))
