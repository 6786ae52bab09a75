"""Build the model that the edits of another one describe, in a copy of its proto."""

from __future__ import annotations

import onnx
import onnx.helper

from graphkit.graph.view import Node, Scope, Value, body_graphs
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.rewrite.dead_code import clean_proto
from graphkit.rewrite.edits import Edits, NewNode, NodeInput
from graphkit.rewrite.functions import add_functions

__all__ = ["INITIALIZERS_SINCE", "rebuilt"]

INITIALIZERS_SINCE = 4  # IR version from which an initializer need not be an input


def rebuilt(edits: Edits, *, clean: bool = False) -> Model:
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
        is_same = not nodes
        for node, proto in zip(scope.nodes, graph.node, strict=True):
            if node in self.edits.before:
                nodes += [self._made(new, scope) for new in self.edits.before[node]]
                is_same = False
                if any(new.like is node for new in self.edits.before[node]):
                    proto.ClearField("name")  # which the new one has: onnxruntime refuses two nodes of one name
            if node in self.edits.replaced:
                nodes += [self._made(new, scope) for new in self.edits.replaced[node]]
                is_same = False
                continue
            self._rewire(node, proto)
            nodes.append(proto)
            for (_, body_graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
                self.graph(body, body_graph, [])
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = self._annotated(scope, annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                parameter = scope.find(entry.value)
                entry.value = self._name(parameter, scope) or entry.value
        if not is_same:
            kept = onnx.GraphProto()
            kept.node.extend(nodes)
            del graph.node[:]
            graph.node.extend(kept.node)

    def _annotated(self, scope: Scope, name: str) -> str:
        value = scope.find(name)
        return self.edits.renamed.get(value, name) if value is not None else name

    def _rewire(self, node: Node, proto: onnx.NodeProto) -> None:
        if node not in self.dirty:
            return
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
        found = self.edits.resolve(source, scope) if isinstance(source, Value) else source
        return self.edits.renamed.get(found, found.name) if isinstance(found, Value) else found

    def _made(self, new: NewNode, scope: Scope) -> onnx.NodeProto:
        names = [self._name(source, scope) for source in new.inputs]
        protos = {key: value for key, value in new.attributes.items() if isinstance(value, onnx.AttributeProto)}
        plain = {key: value for key, value in new.attributes.items() if key not in protos}
        proto = onnx.helper.make_node(new.op_type, names, list(new.outputs), name=new.name, domain=new.domain, **plain)
        proto.attribute.extend(protos.values())
        if new.like is not None:
            for name in ("name", "doc_string"):
                if new.like.proto.HasField(name):
                    setattr(proto, name, getattr(new.like.proto, name))
            proto.metadata_props.extend(new.like.proto.metadata_props)
        return proto
