"""Find and remove dead code: what no output needs."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence

import onnx

from graphkit.graph.build import build_scopes
from graphkit.graph.names import counted
from graphkit.graph.view import Node, Scope, Value, all_nodes, body_graphs
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, copy_proto, keep

__all__ = ["live_values", "remove_dead_code", "without_outputs"]


def remove_dead_code(model: Model) -> Outcome:
    """Return a model without nodes, initializers, declared types and functions that no output needs."""
    if (declined := without_outputs(model)) is not None:
        return Outcome(model, declined=(declined,))
    proto = copy_proto(model)
    live = live_values(model.scopes)
    removed = _clean_graph(proto.graph, model.scopes[0], live)
    for function, scope in zip(proto.functions, model.scopes[1:], strict=True):
        removed += _clean_nodes(function.node, scope, live)
        keep(function.value_info, [_is_used(scope, info.name, live) for info in function.value_info])
    _clean_functions(proto)
    if proto.ByteSize() == model.proto.ByteSize():  # nothing is added, so nothing was removed
        return Outcome(model)
    return Outcome(model.with_proto(proto), (counted(removed, "node(s) removed"),) if removed else ())


def without_outputs(model: Model) -> Declined | None:
    """Return why a model without outputs is left alone, None for any other: all of it would be dead code."""
    if model.graph.outputs:
        return None
    return Declined(
        model.name, "nothing is rewritten, because the graph has no outputs, and all of it would be dead code"
    )


def live_values(scopes: Iterable[Scope]) -> set[Value]:
    """Return the values that the outputs of these scopes need, those in bodies included; nodes may be in any order."""
    live: set[Value] = set()
    met: set[Node] = set()
    graphs: list[Scope] = list(scopes)
    values: list[Value] = []
    while graphs or values:
        if graphs:
            scope = graphs.pop()
            values += scope.outputs
            nodes = [node for node in scope.nodes if not any(node.outputs)]
        else:
            value = values.pop()
            nodes = [value.producer] if value.producer is not None and value not in live else []
            live.add(value)
        for node in nodes:
            if node not in met:
                met.add(node)
                graphs += node.bodies.values()
                values += (value for value in node.inputs if value is not None)
    return live


def _is_live(node: Node, live: set[Value]) -> bool:
    outputs = [value for value in node.outputs if value is not None]
    return not outputs or any(value in live for value in outputs)


def _clean_graph(graph: onnx.GraphProto, scope: Scope, live: set[Value]) -> int:
    """Remove dead code from a copy of a scope's graph and return the number of nodes removed."""
    removed = _clean_nodes(graph.node, scope, live)
    annotations = graph.quantization_annotation
    keep(annotations, [_is_used(scope, annotation.tensor_name, live) for annotation in annotations])
    named = {info.name for info in graph.input}
    named.update(entry.value for annotation in annotations for entry in annotation.quant_parameter_tensor_names)
    keep(graph.initializer, [t.name in named or _is_used(scope, t.name, live) for t in graph.initializer])
    sparse = graph.sparse_initializer
    keep(sparse, [s.values.name in named or _is_used(scope, s.values.name, live) for s in sparse])
    keep(graph.value_info, [_is_used(scope, info.name, live) for info in graph.value_info])
    return removed


def _clean_nodes(protos: MutableSequence[onnx.NodeProto], scope: Scope, live: set[Value]) -> int:
    removed = 0
    wanted = [_is_live(node, live) for node in scope.nodes]
    for proto, node, stays in zip(protos, scope.nodes, wanted, strict=True):
        if not stays:
            removed += 1 + sum(len(inner.nodes) for body in node.bodies.values() for inner in body.walk())
        elif node.bodies:
            for (_, graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
                removed += _clean_graph(graph, body, live)
    keep(protos, wanted)
    return removed


def _is_used(scope: Scope, name: str, live: set[Value]) -> bool:
    return scope.values.get(name) in live


def _clean_functions(proto: onnx.ModelProto) -> None:
    """Remove the functions that nothing calls, those that only such functions call included."""
    while proto.functions:
        called = {(node.domain, node.op_type) for node in all_nodes(build_scopes(proto))}
        wanted = [(function.domain, function.name) in called for function in proto.functions]
        if all(wanted):
            return
        keep(proto.functions, wanted)
