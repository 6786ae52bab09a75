"""The edits of a model, collected against its view, and the model that they describe, without dead code."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple

import onnx
import onnx.helper
from msgspec.structs import replace
from onnx.helper import get_attribute_value

from graphkit.errors import count_things
from graphkit.graph.new_nodes import NewNode as NewNode
from graphkit.graph.new_nodes import NodeInput as NodeInput
from graphkit.graph.view import (
    Node,
    Scope,
    Value,
    all_scopes,
    as_text,
    body_graphs,
    domain_of,
    functions_of,
    nodes_of,
)
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, copy_proto, keep_members, replace_members

FUNCTIONS_SINCE = 8  # IR version
INITIALIZERS_SINCE = 4  # IR version from which an initializer need not be an input


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


def attributes_of(node: Node, **changed: Any) -> dict[str, Any]:
    """Return the attributes of a node as `NewNode` takes them, some of them changed.

    An empty list, and one that the call of a function gives, stays a proto.
    """
    attributes: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        value = attribute if attribute.ref_attr_name else get_attribute_value(attribute)
        attributes[name] = attribute if isinstance(value, list) and not value else value
    return attributes | changed


def copy_node(node: Node, inputs: Sequence[NodeInput], outputs: Sequence[str], **changed: Any) -> NewNode:
    """Return a copy of a node with other inputs and outputs, and with some of its attributes changed."""
    return NewNode(node.op_type, inputs, outputs, attributes_of(node, **changed), like=node, domain=node.domain)


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

    def inputs_of(self, node: Node) -> list[NodeInput]:
        """Return what a node will read."""
        changed = self.inputs.get(node, {})
        sources = [changed.get(index, value) for index, value in enumerate(node.inputs)]
        return sources + [changed[index] for index in sorted(changed) if index >= len(sources)]

    def is_untouched(self, value: Value) -> bool:
        """Whether the readers of a value are those that it has in the view, and go on to read it."""
        return value not in self.aliases and value not in self.new_reads

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

    # The model that they describe

    def result(self, *, clean: bool = False) -> Model:
        """Return the edited model, without dead code if it is to be clean, or the same model if there are no edits."""
        if not self.is_changed:
            return self.model
        proto = copy_proto(self.model)
        first: list[onnx.NodeProto] = []
        if proto.ir_version >= INITIALIZERS_SINCE:
            proto.graph.initializer.extend(self.tensors)
        else:
            first = [onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in self.tensors]
        dirty = {node for value in (*self.aliases, *self.renamed) for node, _ in value.consumers}
        dirty.update(self.inputs)  # what changes an input, or gives an output another name
        dirty.update(value.producer for value in self.renamed if value.producer is not None)
        self._rebuild_graph(self.model.graph, proto.graph, first, dirty)
        add_functions(proto, self.functions.values())
        if clean:
            _remove_dead_nodes(proto)
            _remove_functions(proto)
        return self.model.with_proto(proto)

    def _rebuild_graph(
        self, scope: Scope, graph: onnx.GraphProto, first: list[onnx.NodeProto], dirty: Collection[Node]
    ) -> None:
        """Change a graph of a copied proto, and the bodies in it, in place; these nodes come first."""
        nodes = first + [self._make_proto(new, scope) for new in self.heads.get(scope, ())]
        is_same = not nodes and {*self.before, *self.replaced}.isdisjoint(scope.nodes)
        for node, proto in zip(scope.nodes, graph.node, strict=True):
            if (before := self.before.get(node)) is not None:
                nodes += [self._make_proto(new, scope) for new in before]
                if any(new.like is node for new in before):
                    proto.ClearField("name")  # which the new one has: onnxruntime refuses two nodes of one name
            if node in self.replaced:
                nodes += [self._make_proto(new, scope) for new in self.replaced[node]]
                continue
            if node in dirty:
                proto.input[:] = [self._name_of(source, node.scope) for source in self.inputs_of(node)]
                for index, value in enumerate(node.outputs):
                    if value in self.renamed:
                        proto.output[index] = self.renamed[value]
            nodes.append(proto)
            if node.bodies:
                for (_, body_graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
                    self._rebuild_graph(body, body_graph, [], dirty)
        for annotation in graph.quantization_annotation:
            tensor = scope.find(annotation.tensor_name)
            if tensor in self.renamed:
                annotation.tensor_name = self.renamed[tensor]
            for entry in annotation.quant_parameter_tensor_names:
                parameter = scope.find(entry.value)
                entry.value = self._name_of(parameter, scope) or entry.value
        if not is_same:
            replace_members(graph.node, nodes)

    def _name_of(self, source: NodeInput, scope: Scope) -> str:
        if source is None:
            return ""
        resolved = self.resolve(source, scope) if isinstance(source, Value) else source
        return self.renamed.get(resolved, resolved.name) if isinstance(resolved, Value) else resolved

    def _make_proto(self, new: NewNode, scope: Scope) -> onnx.NodeProto:
        return replace(new, inputs=[self._name_of(source, scope) for source in new.inputs]).to_proto()


# Dead code: nodes and tensors that no output needs. It is found by names in the proto, which is many times quicker than
# by a view: rewrites remove it in each round.


def remove_dead_code(model: Model) -> Outcome:
    """Return a model without nodes, initializers, declared types and functions that no output needs."""
    if (declined := without_outputs(model)) is not None:
        return Outcome(model, declined=(declined,))
    model.check_soundness()
    if not _may_have_dead_code(model):
        return Outcome(model)
    proto = copy_proto(model)
    _remove_dead_nodes(proto)
    removed = sum(1 for _ in nodes_of(model.proto)) - sum(1 for _ in nodes_of(proto))
    _remove_functions(proto)
    if proto.ByteSize() == model.proto.ByteSize():  # nothing is added, so nothing was removed
        return Outcome(model)
    return Outcome(model.with_proto(proto), (count_things(removed, "node(s) removed"),) if removed else ())


def _may_have_dead_code(model: Model) -> bool:
    """Whether a node or an output of a sound model does not read all that there is."""
    if model.proto.functions or model.proto.graph.quantization_annotation:
        return True
    for scope in all_scopes(model.scopes):
        read = {value for value in scope.values.values() if value.consumers or value.is_output}
        named = [*map(scope.values.get, scope.infos), *scope.initializers]
        if not read.issuperset(named) or any(node.results and read.isdisjoint(node.results) for node in scope.nodes):
            return True
    return False


def without_outputs(model: Model) -> Declined | None:
    """Return why a model without outputs is left alone, None for any other: all of it would be dead code."""
    if model.proto.graph.output:
        return None
    reason = "nothing is rewritten, because the graph has no outputs, and all of it would be dead code"
    return Declined(model.name, reason)


def _remove_dead_nodes(proto: onnx.ModelProto) -> None:
    """Remove the nodes and tensors of a sound model that nothing needs, in place."""
    _clean_graph(proto.graph, _follow_needs(proto.graph.node, _info_names(proto.graph.output)))
    for function in proto.functions:
        needs = _follow_needs(function.node, function.output)
        _clean_nodes(function.node, needs)
        used = needs.names.intersection([*function.input, *needs.made])
        keep_members(function.value_info, [info.name in used for info in function.value_info])


def _remove_functions(proto: onnx.ModelProto) -> None:
    """Remove the functions that nothing calls, or only such as go."""
    while proto.functions:
        called = {(domain_of(as_text(node.domain)), as_text(node.op_type)) for node in nodes_of(proto)}
        stays = [(function.domain, function.name) in called for function in proto.functions]
        if all(stays):
            break
        keep_members(proto.functions, stays)


def live_names(graph: onnx.GraphProto) -> Collection[str]:
    """Return the names of the values that the outputs of a graph need, those that bodies in it read included."""
    return _follow_needs(graph.node, _info_names(graph.output)).names


class _Needs(NamedTuple):
    """The nodes and tensors that the outputs of a graph need."""

    nodes: list[bool]  # whether they need it, for each node
    names: set[str]  # the values that they need, those of graphs around this one included
    made: Collection[str]  # the outputs of all nodes
    # the bodies of the nodes that they need, and what the outputs of these need, by the node's position
    bodies: dict[int, list[tuple[onnx.GraphProto, _Needs]]]


def _follow_needs(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> _Needs:
    """Follow the needs of outputs back through the nodes, which may be in any order; one without outputs is needed."""
    nodes = list(nodes)
    made = [node.output[:] for node in nodes]
    makers = {name: index for index, named in enumerate(made) for name in named if name}
    is_needed = [not any(named) for named in made]
    needed = _Needs(is_needed, set(), makers.keys(), {})
    pending, names = [index for index, is_root in enumerate(is_needed) if is_root], needed.names

    def add_needs(found: Iterable[str]) -> None:
        for name in found:
            if name and name not in names:
                names.add(name)
                if (maker := makers.get(name)) is not None and not is_needed[maker]:
                    is_needed[maker] = True
                    pending.append(maker)

    add_needs(outputs)
    while pending:
        node = nodes[index := pending.pop()]
        add_needs(node.input[:])
        graphs = body_graphs(node) if node.attribute else ()
        bodies = [(body, _follow_needs(body.node, _info_names(body.output))) for _, body in graphs]
        for body, needs in bodies:
            add_needs(needs.names.difference(needs.made, _defined_names(body)))
        if bodies:
            needed.bodies[index] = bodies
    return needed


def _info_names(infos: Iterable[onnx.ValueInfoProto]) -> Iterator[str]:
    return (info.name for info in infos)


def _defined_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from _info_names(graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)


def _clean_graph(graph: onnx.GraphProto, needs: _Needs) -> None:
    used = needs.names.intersection([*needs.made, *_defined_names(graph)])
    _clean_nodes(graph.node, needs)
    annotations = graph.quantization_annotation
    keep_members(annotations, [annotation.tensor_name in used for annotation in annotations])
    used_or_named = {*used, *_info_names(graph.input)}
    used_or_named.update(entry.value for annotation in annotations for entry in annotation.quant_parameter_tensor_names)
    keep_members(graph.initializer, [tensor.name in used_or_named for tensor in graph.initializer])
    keep_members(graph.sparse_initializer, [sparse.values.name in used_or_named for sparse in graph.sparse_initializer])
    keep_members(graph.value_info, [info.name in used for info in graph.value_info])


def _clean_nodes(nodes: MutableSequence[onnx.NodeProto], needs: _Needs) -> None:
    for body in itertools.chain.from_iterable(needs.bodies.values()):
        _clean_graph(*body)
    keep_members(nodes, needs.nodes)
