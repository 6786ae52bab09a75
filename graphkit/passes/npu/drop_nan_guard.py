"""Remove the nodes that replace the NaN of a Softmax over nothing, where there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.float_bounds import FloatBounds

__all__ = ["DropNanGuard"]


@dataclass(frozen=True)
class DropNanGuard(Rewrite):
    """Remove `Where(IsNaN(p), 0, p)` where p is a Softmax of finite scores.

    A Softmax gives NaN for a row that is -inf throughout, which exporters guard against. With a finite floor there is
    no such row; where masks hold -inf, run `masked-fill-to-add` first.

    Legality: p is a Softmax, or a cast of one, of scores that cannot be infinite: the bounds of all masks that are
    added are finite, and so are their sums. What inputs and products of matrices give is taken to be finite.

    Before:

        agraph (float[N, L] x, bool[L] padding) => (float[N, L] y)
        <float floor = {-1e9}, float zero = {0.0}> {
            mask = Where (padding, floor, zero)
            scores = Add (x, mask)
            p = Softmax <axis = -1> (scores)
            none = IsNaN (p)
            q = Where (none, zero, p)
            y = Neg (q)
        }

    After:

        agraph (float[N, L] x, bool[L] padding) => (float[N, L] y)
        <float floor = {-1e9}, float zero = {0.0}> {
            mask = Where (padding, floor, zero)
            scores = Add (x, mask)
            p = Softmax <axis = -1> (scores)
            y = Neg (p)
        }
    """

    def edit(self, editor: Editor) -> None:
        bounds = FloatBounds(editor.model, editor.shapes)
        for node, guarded in _guards(editor):
            if not _is_softmax(guarded):
                editor.decline(node, "what it guards is not a Softmax")
            elif not bounds.of(guarded).is_finite:
                editor.decline(node, "the scores of its Softmax may be -inf; run masked-fill-to-add first")
            elif not _keeps_shape(editor, node, guarded):
                editor.decline(node, "it may change the shape of what it guards")
            elif editor.bypass(node, guarded):
                editor.note("guard(s) against NaN removed")


def _guards(editor: Editor) -> Iterator[tuple[Node, Value]]:
    """Yield the choices between a value and something else where it is NaN."""
    for node in editor.nodes("Where"):
        cond, side = node.input(0), 2
        test = cond.producer if cond is not None else None
        if test is not None and test.is_op("Not"):
            cond, side = test.input(0), 1
            test = cond.producer if cond is not None else None
        guarded = node.input(side)
        if test is not None and test.is_op("IsNaN") and guarded is not None and test.input(0) is guarded:
            yield node, guarded


def _is_softmax(value: Value | None) -> bool:
    while value is not None and value.producer is not None and value.producer.is_op("Cast", "Identity"):
        value = value.producer.input(0)
    return value is not None and value.producer is not None and value.producer.is_op("Softmax")


def _keeps_shape(editor: Editor, node: Node, guarded: Value) -> bool:
    out, other = node.outputs[0], node.input(1 if node.input(2) is guarded else 2)
    if out is None or other is None:
        return False
    before, after = editor.shapes[guarded].dims, editor.shapes[out].dims
    if before is not None and before == after:
        return True
    fill = editor.shapes[other].dims
    return fill == () or (
        fill is not None and before is not None and fill == (1,) * len(fill) and len(fill) <= len(before)
    )
