"""Which nodes nothing needs once others are gone."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor

__all__ = ["dead_after_removal"]


def dead_after_removal(editor: Editor, gone: Iterable[Node], kept: Container[Value]) -> set[Node]:
    """Return nodes that go, and those before them that nothing else needs then.

    Args:
        editor: Nodes that depend on constants alone do not count: they are folded.
        gone: The nodes that go.
        kept: Values that are needed all the same.
    """
    found = set(gone)
    pending = list(found)
    while pending:
        for value in pending.pop().inputs:
            node = value.producer if value is not None else None
            if node is None or node in found or editor.is_static(node):
                continue
            if not any(_is_needed(editor, out, found, kept) for out in node.outputs if out is not None):
                found.add(node)
                pending.append(node)
    return found


def _is_needed(editor: Editor, value: Value, gone: Collection[Node], kept: Container[Value]) -> bool:
    if value in kept or value in editor.new_reads or editor.is_output(value):
        return True
    return any(reader not in gone for reader, _ in value.consumers)
