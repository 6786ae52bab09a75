"""Remove the nodes that replace the NaN of a Softmax over nothing, where there can be none."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.view import Value, unwrapped
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.float_bounds import FloatBounds
from graphkit.rewrite.pattern import Op, Pattern

__all__ = ["DropNanGuard"]

GUARDED, FILL = Pattern(), Pattern()
IS_NAN = Op("IsNaN", GUARDED)
GUARD = Op("Where", IS_NAN, FILL, GUARDED) | Op("Where", Op("Not", IS_NAN), GUARDED, FILL)


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
        for node in editor.nodes("Where"):
            if (match := GUARD.match(editor, node.outputs[0])) is None:
                continue
            guarded = match[GUARDED]
            softmax = unwrapped(guarded, ("Cast", "Identity")).producer
            if softmax is None or not softmax.is_op("Softmax"):
                editor.decline(node, "what it guards is not a Softmax")
            elif not bounds.of(guarded).is_finite:
                editor.decline(node, "the scores of its Softmax may be -inf; run masked-fill-to-add first")
            elif not _keeps_shape(editor, match[GUARD], guarded, match[FILL]):
                editor.decline(node, "it may change the shape of what it guards")
            elif editor.bypass(node, guarded):
                editor.note("guard(s) against NaN removed")


def _keeps_shape(editor: Editor, out: Value, guarded: Value, fill: Value) -> bool:
    before, after, of_fill = (editor.shapes[value].dims for value in (guarded, out, fill))
    if before is not None and before == after:
        return True
    is_one = of_fill is not None and of_fill == (1,) * len(of_fill)
    return of_fill == () or (is_one and before is not None and len(of_fill or ()) <= len(before))
