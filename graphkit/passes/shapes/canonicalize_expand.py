"""Give each Expand, and each Tile that only repeats dims of 1, a constant shape, or remove it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.graph.view import Node
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import MAX_SIZE
from graphkit.shapes import Expr
from graphkit.shapes.tensor import Dims

__all__ = ["CanonicalizeExpand", "expand_spec"]

EXPAND_SINCE = 8


@dataclass(frozen=True)
class CanonicalizeExpand(Rewrite):
    """Give each Expand a constant shape, or remove it if it changes nothing.

    A dim that the input already has is written as 1, which keeps it. The same holds for the repeats of a Tile that only
    repeats dims of 1. Legality: every dim that grows from 1 grows to a number.

    Before:

        agraph (float[N, 1, 4] x) => (float[N, 6, 4] y) <int64[1] six = {6}, int64[1] four = {4}> {
            s = Shape (x)
            zero = Constant <value_ints = [0]> ()
            n = Gather (s, zero)
            to = Concat <axis = 0> (n, six, four)
            y = Expand (x, to)
        }

    After:

        agraph (float[N, 1, 4] x) => (float[N, 6, 4] y) <int64[3] y_shape = {1, 6, 1}> {
            y = Expand (x, y_shape)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Expand", "Tile"):
            data, to, out = node.input(0), node.input(1), node.outputs[0]
            if data is None or to is None or out is None or node.scope.opset() < EXPAND_SINCE:
                continue
            before, after = map(editor.shapes.dims, (data, out))
            if before is None or after is None or not _is_expansion(node, before, after):
                continue
            if before == after:
                if editor.bypass(node, data):
                    editor.note(f"{node.op_type}(s) without effect removed")
                continue
            spec = expand_spec(before, after)
            if all(isinstance(size, int) for size in spec) and not to.is_constant:
                editor.set_inputs(node, {1: editor.integers([int(size) for size in spec], f"{out.name}_shape")})
                editor.note(f"{node.op_type}(s) given a constant")


def _is_expansion(node: Node, before: Dims, after: Dims) -> bool:
    """Whether every dim stays or grows from 1."""
    if node.op_type == "Expand":
        return True
    return len(before) == len(after) and all(one in (1, other) for one, other in zip(before, after, strict=True))


def expand_spec(before: Sequence[Expr], after: Sequence[Expr]) -> tuple[Expr | int, ...]:
    """Return the shape with which an Expand gives these dims: 1 where the input has them, numbers where it can be."""
    padded = [Expr.of(1)] * (len(after) - len(before)) + list(before)
    return tuple(
        1 if one == other else other if (size := other.constant) is None or size > MAX_SIZE else size
        for one, other in zip(padded, after, strict=True)
    )
