"""Put a product of matrices and the Add behind it into one Gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.base import ROUNDING
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.shapes import const

__all__ = ["MatmulAddToGemm"]

BROADCAST_BIAS_SINCE = 7


@dataclass(frozen=True)
class MatmulAddToGemm(Rewrite):
    """Put a MatMul of two matrices and an Add behind it into a Gemm.

    A kernel may start its sums with the bias instead of adding it at the end: the last digits of results may change.

    Legality: both operands are floats of rank 2, nothing but the Add reads the product, and what is added has at most
    two dims, each 1 or that of the product.

    Before:

        agraph (float[N, 2] x, float[3] b) => (float[N, 3] y) <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
            a = MatMul (x, w)
            y = Add (a, b)
        }

    After:

        agraph (float[N, 2] x, float[3] b) => (float[N, 3] y) <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
            y = Gemm (x, w, b)
        }
    """

    largest_error: ClassVar[float] = ROUNDING

    def edit(self, editor: Editor) -> None:
        for add in list(editor.nodes("Add")):
            if add.scope.opset() < BROADCAST_BIAS_SINCE or len(add.inputs) != 2:
                continue
            for index in (0, 1):
                product, bias = add.inputs[index], add.inputs[1 - index]
                if product is not None and bias is not None and _is_product(editor, add, product):
                    _put_together(editor, add, product, bias)
                    break


def _is_product(editor: Editor, add: Node, value: Value) -> bool:
    """Whether a value is the product of two matrices, which only an Add reads."""
    node = value.producer
    if node is None or not node.is_op("MatMul") or len(node.inputs) != 2 or node.scope is not add.scope:
        return False
    if editor.is_static(node):
        return False
    ranks = [editor.shapes[one].rank for one in node.inputs if one is not None]
    is_float = editor.shapes[value].dtype in FLOATS
    return ranks == [2, 2] and is_float and editor.is_free(node)


def _put_together(editor: Editor, add: Node, value: Value, bias: Value) -> None:
    node, out = value.producer, add.outputs[0]
    if node is None or out is None:
        return
    if editor.only_reader(value) is not add:
        editor.decline(add, f"what '{node.label}' gives is read elsewhere too")
        return
    whole, added = editor.shapes[value].dims, editor.shapes[bias].dims
    if whole is None or added is None or len(added) > len(whole):
        editor.decline(add, "what it adds may have more dims than the product")
        return
    pairs = zip(reversed(added), reversed(whole), strict=False)
    if any(dim not in (const(1), other) for dim, other in pairs):
        editor.decline(add, "what it adds may be larger than the product")
        return
    editor.replace(add, NewNode("Gemm", [*node.inputs, bias], [out.name], like=node))
    editor.take(node)
    editor.note("pair(s) of MatMul and Add merged into a Gemm")
