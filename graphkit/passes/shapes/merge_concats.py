"""Merge a Concat into the Concat that reads it where both join along the same axis."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["MergeConcats"]

MAX_PARTS = 1024  # of a Concat: where one is read twice at each of many levels, the parts double with each


@dataclass(frozen=True)
class MergeConcats(Rewrite):
    """Merge a Concat into the Concats that read it, all along the same axis.

    Exporters write nested Concats for padding, for states of several layers, and for what a model joins step by step.
    Legality: the axes are equal, written as the same number or counted from the start, nothing but such Concats reads
    what is in between, and none gets more than 1,024 parts.

    Before:

        agraph (float[N, 2] x, float[N, L] z) => (float[N, M] y) {
            a = Neg (x)
            b = Concat <axis = 1> (x, a)
            y = Concat <axis = -1> (z, b, x)
        }

    After:

        agraph (float[N, 2] x, float[N, L] z) => (float[N, M] y) {
            a = Neg (x)
            y = Concat <axis = -1> (z, x, a, x)
        }
    """

    def edit(self, editor: Editor) -> None:
        for inner in editor.nodes("Concat"):
            joined = inner.outputs[0] if inner.outputs else None
            if joined is None or editor.is_output(joined) or joined in editor.new_reads:
                continue
            readers = list(dict.fromkeys(reader for reader, _ in joined.consumers))
            if readers and all(_continues(editor, inner, joined, reader) for reader in readers):
                for reader in readers:
                    _merge(editor, inner, joined, reader)
                editor.note("Concat(s) merged into the next one")


def _continues(editor: Editor, inner: Node, joined: Value, reader: Node) -> bool:
    """Whether a reader joins what an inner Concat gives to more along the same axis."""
    if (
        not reader.is_op("Concat")
        or reader.outputs[0] is None
        or reader.scope is not inner.scope
        or not editor.is_free(reader)
    ):
        return False
    first, second = inner.attr("axis", int), reader.attr("axis", int)
    if first is None or second is None:
        return False
    rank = editor.shapes[joined].rank
    is_same_axis = first == second or bool(rank and first % rank == second % rank)
    return is_same_axis and len(_parts(inner, joined, reader)) <= MAX_PARTS


def _parts(inner: Node, joined: Value, reader: Node) -> list[Value | None]:
    """Return what a reader joins with what the inner Concat joins in its place."""
    return [part for value in reader.inputs for part in (inner.inputs if value is joined else (value,))]


def _merge(editor: Editor, inner: Node, joined: Value, reader: Node) -> None:
    out = reader.outputs[0]
    assert out is not None
    parts, axis = _parts(inner, joined, reader), reader.attr("axis", int)
    editor.replace(reader, NewNode("Concat", parts, [out.name], {"axis": axis}, like=reader))
