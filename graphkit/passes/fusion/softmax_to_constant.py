"""Replace a Softmax over one element, which is always 1, by a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["SoftmaxToConstant"]

ONE_AXIS_SINCE = 13  # before, Softmax takes all axes from its axis on as one
MAX_CONSTANT = 1 << 20  # bytes


@dataclass(frozen=True)
class SoftmaxToConstant(Rewrite):
    """Replace a Softmax over an axis of one element by a constant of ones, with all that computes its scores.

    At frozen dims, the attention of vision models with one patch left, and of decoders at the first token, is such. A
    score that is infinite or NaN gives NaN, and 1 after this pass: that is why it runs only where it is asked for.

    Legality: the shape of the scores is constant, and the ones take at most 1 MiB.

    Before:

        agraph (float[2, 4] q, float[1, 4] k, float[1, 3] v) => (float[2, 3] y) {
            t = Transpose (k)
            scores = MatMul (q, t)
            weights = Softmax (scores)
            y = MatMul (weights, v)
        }

    After:

        agraph (float[2, 4] q, float[1, 4] k, float[1, 3] v) => (float[2, 3] y)
        <float[2, 1] weights_ones = {1.0, 1.0}> {
            y = MatMul (weights_ones, v)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in list(editor.nodes("Softmax")):
            out = node.outputs[0]
            if out is None or not _is_over_one(editor, node, out):
                continue
            tensor = editor.shapes[out]
            sizes = tensor.sizes()
            if sizes is None:
                editor.decline(node, "it gives ones, but not always equally many")
            elif tensor.dtype not in FLOATS or math.prod(sizes) * FLOATS[tensor.dtype].itemsize > MAX_CONSTANT:
                editor.decline(node, f"it gives more than {MAX_CONSTANT:,} bytes of ones, or ones of another type")
            elif editor.bypass(node, editor.constant(np.ones(sizes, FLOATS[tensor.dtype]), f"{out.name}_ones")):
                editor.note("Softmax node(s) of one element made constant")


def _is_over_one(editor: Editor, node: Node, out: Value) -> bool:
    """Whether each element that a Softmax gives is computed from one alone."""
    dims, is_newer = editor.shapes[out].dims, node.scope.opset() >= ONE_AXIS_SINCE
    axis = node.attr("axis", -1 if is_newer else 1)
    if dims is None or axis is None or not -len(dims) <= axis < len(dims):
        return False
    axis %= len(dims)
    return all(dim == 1 for dim in (dims[axis : axis + 1] if is_newer else dims[axis:]))
