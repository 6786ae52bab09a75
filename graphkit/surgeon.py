"""Graphs for other libraries: to onnx-graphsurgeon and back, for rewrites on its mutable graph; and to networkx.

onnx-graphsurgeon 0.6 drops what it has no place for: the model's domain, version, doc string and metadata, doc
strings and metadata of nodes and values, quantization annotations. `from_graphsurgeon` puts these back where the graph
still has the node or value that they belong to. Large tensors stay external-data references, as long as nothing
touches their `values`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import networkx as nx
import onnx

from graphkit.graph.view import Node, Scope, Value, all_nodes, body_graphs
from graphkit.model import Model, ModelLike, as_model

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

Described = onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto


def to_graphsurgeon(model: ModelLike) -> gs.Graph:
    """Return a model's graph for onnx-graphsurgeon; changes to it do not change the model.

    Returns:
        A `gs.Graph`, whose large tensors are read when their `values` are asked for.

    Example:
        >>> len(graphkit.to_graphsurgeon(graphkit.load("example:causal-attention")).nodes)
        213
    """
    import onnx_graphsurgeon as gs

    model = as_model(model)
    gs.logger.G_LOGGER.severity = gs.logger.G_LOGGER.ERROR
    return gs.import_onnx(copy.deepcopy(model.proto))


def from_graphsurgeon(graph: gs.Graph, model: ModelLike) -> Model:
    """Return a model of a graph that was made of `model`, with the parts that onnx-graphsurgeon dropped put back.

    Args:
        graph: The graph, perhaps changed.
        model: The argument of `to_graphsurgeon`; the weights stay where they lie for it.

    Returns:
        The model, with its weights where they lie for the other one.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.from_graphsurgeon(graphkit.to_graphsurgeon(model), model).name
        'causal-attention.onnx'
    """
    import onnx_graphsurgeon as gs

    model = as_model(model)
    gs.logger.G_LOGGER.severity = gs.logger.G_LOGGER.ERROR
    proto = gs.export_onnx(graph, do_type_check=False)
    source = model.proto
    proto.ir_version = source.ir_version
    for name in ("domain", "model_version", "producer_name", "producer_version"):
        if source.HasField(name):
            setattr(proto, name, getattr(source, name))
    _restore_words(source, proto)
    _restore_graph(source.graph, proto.graph)
    return model.with_proto(proto)


def _restore_graph(source: onnx.GraphProto, target: onnx.GraphProto) -> None:
    nodes = {tuple(node.output): node for node in source.node}
    for node in target.node:
        original = nodes.get(tuple(node.output))
        if original is not None and original.op_type == node.op_type:
            _restore_words(original, node)
            bodies = dict(body_graphs(original))
            for name, body in body_graphs(node):
                if name in bodies:
                    _restore_graph(bodies[name], body)
    infos = {info.name: info for info in _value_infos(source)}
    for info in _value_infos(target):
        if info.name in infos:
            _restore_words(infos[info.name], info)
    _restore_words(source, target)
    known = {name for node in target.node for name in (*node.input, *node.output)}
    annotations = [a for a in source.quantization_annotation if a.tensor_name in known]
    del target.quantization_annotation[:]
    target.quantization_annotation.extend(annotations)


def _restore_words(source: Described, target: Described) -> None:
    target.ClearField("doc_string")
    if source.HasField("doc_string"):
        target.doc_string = source.doc_string
    del target.metadata_props[:]
    target.metadata_props.extend(source.metadata_props)


def _value_infos(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output, *graph.value_info]


Network: TypeAlias = "nx.DiGraph[Node | Value]"


def to_networkx(model: Model | Iterable[Scope], keep: Callable[[Value], bool] | None = None) -> Network:
    """Return the values and nodes of a model, or of some scopes, bodies included, as one directed graph.

    The graph's vertices are `Node` and `Value` objects; edges run value -> consumer and producer -> value.

    Args:
        model: Where to take the nodes from.
        keep: Which values to include; all by default. Edges to other values are left out.

    Returns:
        A directed graph of networkx.

    Example:
        >>> graphkit.to_networkx(graphkit.load("example:causal-attention")).number_of_nodes()
        464
    """
    graph: Network = nx.DiGraph()
    is_included = keep or (lambda _: True)
    for node in all_nodes(model.scopes if isinstance(model, Model) else tuple(model)):
        graph.add_node(node)
        graph.add_edges_from((value, node) for value in node.operands if is_included(value))
        graph.add_edges_from((node, value) for value in node.results if is_included(value))
        for body in node.bodies.values():
            graph.add_edges_from((value, node) for value in body.outputs if is_included(value))
    return graph


def cone(graph: Network, vertex: Node | Value) -> Network:
    """Return the part of a graph that a vertex is computed from, itself included.

    Returns:
        A view of the graph with the vertex and its ancestors.

    Raises:
        NetworkXError: The vertex is not in the graph.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> whole = graphkit.to_networkx(model.scopes)
        >>> len(graphkit.cone(whole, model.graph.outputs[0])) <= len(whole)
        True
    """
    return graph.subgraph({vertex, *nx.ancestors(graph, vertex)})
