"""Replace an Expand or Tile by broadcasting, by a Concat of copies, or by a Mul by ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.graph.view import Node, Value
from graphkit.passes.shapes.simplify_expand import DropBroadcasts
from graphkit.rewrite.builder import Builder
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NodeInput
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.match import MatchFailure

__all__ = ["ExpandToBroadcast"]

BROADCAST_SINCE = 7
MULTIPLIED = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64}
MAX_ONES = 1 << 20


@dataclass(frozen=True)
class ExpandToBroadcast(Rewrite):
    """Replace Expand and Tile, which few NPUs have, by broadcasting operators, which all have.

    Where all consumers broadcast, the node goes (see `drop-broadcasts`). A few copies are put together by a Concat, as
    the heads of keys and values that several queries share are. Many copies of one position are a Mul by a constant of
    ones, which is exact for every number. Legality: the dims are numbers, and none that is repeated is 0; booleans and
    small integers, and copies of more than one position, are never a Mul.

    Attributes:
        copies: The most copies along an axis that are put together by a Concat.

    Before:

        agraph (float[2, 1, 5, 4] keys, float[2, 3, 1, 5] weights) => (float[2, 3, 1, 4] y)
        <int64[4] to = {1, 3, 1, 1}> {
            heads = Expand (keys, to)
            y = MatMul (weights, heads)
        }

    After:

        agraph (float[2, 1, 5, 4] keys, float[2, 3, 1, 5] weights) => (float[2, 3, 1, 4] y) {
            heads = Concat <axis = 1> (keys, keys, keys)
            y = MatMul (weights, heads)
        }
    """

    copies: int = 16

    def edit(self, editor: Editor) -> None:
        before = editor.changes.total()
        DropBroadcasts().edit(editor)
        if editor.changes.total() != before:
            return  # what is left of an Expand is seen in the next round
        for node in editor.nodes("Expand", "Tile"):
            data, out = node.input(0), node.outputs[0]
            if data is None or out is None or editor.shapes[out].is_shape_like:
                continue
            with editor.matching(node):
                self._replace(editor, node, data, out)

    def _replace(self, editor: Editor, node: Node, data: Value, out: Value) -> None:
        if node.scope.opset() < BROADCAST_SINCE:
            raise MatchFailure("operators of its opset do not broadcast")
        before, after = editor.shapes[data].sizes(), editor.shapes[out].sizes()
        if before is None or after is None:
            raise MatchFailure(f"its dims are not all numbers: {editor.shapes[out]}")
        padded = (1,) * (len(after) - len(before)) + before
        if any(one == 0 or large % one for one, large in zip(padded, after, strict=True) if one != large):
            raise MatchFailure("it repeats an axis without positions")
        repeats = [large // one if one != large else 1 for one, large in zip(padded, after, strict=True)]
        if 0 in repeats:
            raise MatchFailure("it gives a tensor without elements")
        if math.prod(repeats) == 1 and before == after:
            editor.bypass(node, data)
        else:
            builder = Builder(editor, node)
            source: NodeInput = (
                data if before == padded else builder.add("Reshape", data, builder.integers(padded, "dims"))
            )
            self._repeat(builder, source, repeats, padded, editor.shapes[data].dtype)
            builder.replace()
        editor.note(f"{node.op_type} node(s) removed")

    def _repeat(
        self, builder: Builder, source: NodeInput, repeats: Sequence[int], dims: Sequence[int], dtype: int
    ) -> None:
        """Add the nodes that repeat a tensor along its axes."""
        many = [count if count > self.copies else 1 for count in repeats]
        if math.prod(many) > 1:
            self._check(many, dims, dtype)
            ones = builder.constant(np.ones(many, tensor_dtype_to_np_dtype(dtype)), "ones")
            source = builder.add("Mul", source, ones)
        for axis, count in reversed(list(enumerate(repeats))):
            if 1 < count <= self.copies:
                source = builder.add("Concat", *[source] * count, axis=axis)

    def _check(self, many: Sequence[int], dims: Sequence[int], dtype: int) -> None:
        """Check that a product with ones gives so many copies."""
        if any(count > 1 and dim != 1 for dim, count in zip(dims, many, strict=True)):
            raise MatchFailure(f"it makes more than {self.copies} copies of several positions")
        if dtype not in MULTIPLIED:
            raise MatchFailure(f"it makes more than {self.copies} copies of what is not multiplied")
        if math.prod(many) > MAX_ONES:
            raise MatchFailure(f"it makes {math.prod(many):,} copies")
