"""Drawings of small directed graphs: as SVG, with one row for each layer, and in Graphviz's DOT language.

SVG suits graphs of a few dozen nodes, such as the cone of one shape; Graphviz (`--format dot`) draws larger ones.
"""

from __future__ import annotations

from html import escape

import networkx as nx

from graphkit.render.document_blocks import Drawing, printable

__all__ = ["as_dot", "draw_svg"]

CHARACTER, BOX_HEIGHT, GAP, ROW = 6.7, 22, 14, 52  # pixels
MAX_LABEL = 34


def draw_svg(drawing: Drawing) -> str:
    """Return an `<svg>` element."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node for node, _, _ in drawing.nodes)
    graph.add_edges_from(drawing.edges)
    labels = {node: _short_label(label) for node, label, _ in drawing.nodes}
    widths = {node: len(label) * CHARACTER + 14 for node, label in labels.items()}
    layers = _node_layers(graph)
    total = max((sum(widths[n] + GAP for n in layer) for layer in layers), default=0) + GAP
    centre: dict[str, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        x = (total - sum(widths[n] + GAP for n in layer)) / 2 + GAP / 2
        for node in layer:
            centre[node] = (x + widths[node] / 2, row * ROW + BOX_HEIGHT)
            x += widths[node] + GAP
    height = len(layers) * ROW
    parts = [
        f'<svg viewBox="0 0 {total:.0f} {height}" width="{total:.0f}" height="{height}" role="img" '
        f'aria-label="{escape(printable(drawing.title))}">'
    ]
    for start, end in drawing.edges:
        (x0, y0), (x1, y1) = centre[start], centre[end]
        y0, y1 = y0 + BOX_HEIGHT / 2, y1 - BOX_HEIGHT / 2
        middle = (y0 + y1) / 2
        parts.append(f'<path d="M{x0:.1f} {y0:.1f} C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"/>')
    for node, _, role in drawing.nodes:
        x, y = centre[node]
        parts.append(
            f'<rect class="{role}" x="{x - widths[node] / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" '
            f'width="{widths[node]:.1f}" height="{BOX_HEIGHT}" rx="4"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(labels[node])}</text>'
        )
    return "".join(parts) + "</svg>"


def _short_label(label: str) -> str:
    label = printable(label)
    return label if len(label) <= MAX_LABEL else f"…{label[1 - MAX_LABEL :]}"


def _node_layers(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Return the nodes by their longest distance to a sink, those that feed neighbours beside each other."""
    graph = _without_cycles(graph)
    depth: dict[str, int] = {}
    for node in reversed(list(nx.topological_sort(graph))):
        depth[node] = max((depth[after] + 1 for after in graph.successors(node)), default=0)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in graph.nodes:
        layers[depth[node]].append(node)
    place: dict[str, float] = {}
    for layer in layers:  # from the sink upwards: order by the mean place of a node's consumers
        layer.sort(key=lambda node: _mean_of([place[after] for after in graph.successors(node)]))
        for number, node in enumerate(layer):
            place[node] = number - len(layer) / 2
    return layers[::-1]


def _without_cycles(graph: nx.DiGraph[str]) -> nx.DiGraph[str]:
    """Return a graph without the edges that close a cycle, which only a broken model has."""
    while not nx.is_directed_acyclic_graph(graph):
        graph = graph.copy()
        graph.remove_edge(*nx.find_cycle(graph)[-1][:2])
    return graph


def _mean_of(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


SHAPES = {"const": "plaintext", "data": "ellipse", "consumer": "box3d"}


def as_dot(drawing: Drawing) -> str:
    """Return a drawing as a DOT digraph."""
    lines = ["digraph {", "    node [shape=box];"]
    for node, label, role in drawing.nodes:
        lines.append(f'    "{node}" [label="{_quote_label(label)}", shape={SHAPES.get(role, "box")}];')
    lines += [f'    "{start}" -> "{end}";' for start, end in drawing.edges]
    return "\n".join([f"// {printable(drawing.title)}", *lines, "}"]) + "\n"


def _quote_label(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
