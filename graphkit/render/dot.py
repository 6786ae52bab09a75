"""Drawings in Graphviz's DOT language."""

from __future__ import annotations

from graphkit.render.blocks import Drawing, printable

__all__ = ["dot"]

SHAPES = {"const": "plaintext", "data": "ellipse", "consumer": "box3d"}


def dot(drawing: Drawing) -> str:
    """Return a drawing as a DOT digraph."""
    lines = ["digraph {", "    node [shape=box];"]
    for node, label, role in drawing.nodes:
        lines.append(f'    "{node}" [label="{_quoted(label)}", shape={SHAPES.get(role, "box")}];')
    lines += [f'    "{start}" -> "{end}";' for start, end in drawing.edges]
    return "\n".join([f"// {printable(drawing.title)}", *lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
