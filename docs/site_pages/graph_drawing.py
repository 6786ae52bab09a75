"""Small ONNX graphs as SVG: a box for each node, input, initializer and output; bodies are named, not drawn."""

from __future__ import annotations

import onnx

from graphkit.render.document_blocks import Drawing
from graphkit.render.html import draw_svg

__all__ = ["drawn"]


def drawn(model: onnx.ModelProto) -> str:
    """Return the main graph of a model as an `<svg>` element."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    nodes = [(f"v {value.name}", value.name, "data") for value in graph.input if value.name not in constants]
    nodes += [(f"v {name}", name, "const") for name in sorted(constants)]
    made_by = {node_id: node_id for node_id, _, _ in nodes}
    for number, node in enumerate(graph.node):
        nodes.append((f"n {number}", node.op_type, "step"))
        made_by |= {f"v {name}": f"n {number}" for name in node.output}
    edges = []
    for number, node in enumerate(graph.node):
        read = {*node.input, *_captured(node)} - {""}
        edges += [(made_by[f"v {name}"], f"n {number}") for name in sorted(read) if f"v {name}" in made_by]
    for value in graph.output:
        nodes.append((f"o {value.name}", value.name, "consumer"))
        edges.append((made_by[f"v {value.name}"], f"o {value.name}"))
    read_ones = {start for start, _ in edges}
    return draw_svg(Drawing(graph.name, [one for one in nodes if one[2] != "const" or one[0] in read_ones], edges))


def _captured(node: onnx.NodeProto) -> set[str]:
    """Return the names that the bodies of a node read; no node around them makes the names of their own values."""
    bodies = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    inner = [each for body in bodies for each in body.node]
    names = {value.name for body in bodies for value in body.output}
    return names.union(*(set(each.input) | _captured(each) for each in inner))
