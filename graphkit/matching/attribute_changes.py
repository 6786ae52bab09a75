"""The attributes in which two nodes differ, in words."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.graph.attribute_text import attribute_text
from graphkit.graph.view import Node, as_text
from graphkit.matching.change import Change
from graphkit.matching.value_numbering import ValueNumbers, default_of

__all__ = ["attribute_changes"]


def attribute_changes(node_a: Node, node_b: Node, numbers: ValueNumbers) -> Iterator[Change]:
    """Yield the attributes in which two nodes differ, without their bodies; graphs that one of them lacks are told."""
    first, second = numbers.attributes[node_a], numbers.attributes[node_b]
    for name in sorted({*first, *second}, key=str):
        if first.get(name) != second.get(name):
            yield Change(as_text(name), _text(node_a, name), _text(node_b, name))
    for name in sorted(node_a.bodies.keys() ^ node_b.bodies.keys(), key=str):
        texts = ["a graph" if name in node.bodies else None for node in (node_a, node_b)]
        yield Change(as_text(name), *texts)


def _text(node: Node, name: str) -> str | None:
    attribute = node.attributes.get(name)
    if attribute is not None:
        return attribute_text(attribute)
    default = default_of(node, name)
    return f"{attribute_text(default)} (default)" if default is not None else None
