"""Write CastLike as a Cast, whose type is an attribute."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, attributes_of
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["CastlikeToCast"]


@dataclass(frozen=True)
class CastlikeToCast(Rewrite):
    """Write a CastLike as a Cast to the type that its second input has.

    PyTorch's exporter writes constants so, such as the zeros of a missing bias: a Cast of a constant folds, and the
    fusions behind it find a constant. Legality: the type of the second input is known.

    Before:

        agraph (float[N] x, float[M] other) => (float[N] y) <int64[1] one = {1}> {
            a = CastLike (one, other)
            y = Add (x, a)
        }

    After:

        agraph (float[N] x, float[M] other) => (float[N] y) <int64[1] one = {1}> {
            a = Cast <to = 1> (one)
            y = Add (x, a)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("CastLike"):
            source, like, out = node.input(0), node.input(1), node.outputs[0]
            dtype = editor.shapes[like].dtype if like is not None else 0
            if source is None or out is None or not dtype:
                continue
            editor.replace(node, NewNode("Cast", [source], [out.name], attributes_of(node, to=dtype), like=node))
            editor.note("CastLike(s) written as Cast")
