"""Give each Reshape a constant shape: numbers, 0 for a dim that is copied, at most one -1."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.view import Node
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes.tensor import Dims

__all__ = ["CanonicalizeReshape"]


@dataclass(frozen=True)
class CanonicalizeReshape(Rewrite):
    """Give each Reshape a constant shape, or remove it if it changes nothing.

    A number is written as such, a dim that equals the input's dim at the same position is written as 0 (copy), and one
    more dim may be -1. Legality: at most one dim is neither a number nor a copy, and -1 stands for it only if no other
    dim can be 0 at any legal input dims, because -1 could not be inferred then.

    Before:

        agraph (float[N, L, 32] x) => (float[N, L, 8, 4] y) <int64[1] heads = {8}, int64[1] rest = {-1}> {
            s = Shape (x)
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            n = Gather (s, zero)
            l = Gather (s, one)
            to = Concat <axis = 0> (n, l, heads, rest)
            y = Reshape (x, to)
        }

    After:

        agraph (float[N, L, 32] x) => (float[N, L, 8, 4] y) <int64[4] y_shape = {0, 0, 8, 4}> {
            y = Reshape (x, y_shape)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Reshape"):
            shape, data, out = node.input(1), node.input(0), node.outputs[0]
            if shape is None or data is None or out is None:
                continue
            before, after = editor.shapes[data].dims, editor.shapes[out].dims
            if before is None or after is None:
                continue
            if before == after:
                if editor.bypass(node, data):
                    editor.note("Reshape(s) without effect removed")
            elif not shape.is_constant:
                _canonicalize(editor, node, before, after)


def _canonicalize(editor: Editor, node: Node, before: Dims, after: Dims) -> None:
    out = node.outputs[0]
    assert out is not None
    spec = reshape_spec(before, after)
    if spec is None:
        editor.decline(node, f"its shape has two dims that are neither numbers nor copied: {editor.shapes[out]}")
        return
    name = editor.integers(spec, f"{out.name}_shape")
    if node.attr("allowzero", 0) != 0:
        editor.replace(node, NewNode("Reshape", [node.input(0), name], [out.name], like=node))
    else:
        editor.set_inputs(node, {1: name})
    editor.note("Reshape(s) given a constant shape")
