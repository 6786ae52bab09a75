"""Spell nodes as compilers expect them: constants on the right, attributes written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnx.defs import get_schema

from graphkit.graph.view import Node
from graphkit.rewrite import Editor, NewNode, NodeRewrite, attributes_of

__all__ = ["MoveConstantsRight", "WriteLayerNormDefaults"]


@dataclass(frozen=True)
class MoveConstantsRight(NodeRewrite):
    """Make a constant the second input of each Add and Mul.

    Compilers match fixed spellings. Qualcomm's HTP compiler (onnxruntime-qnn 2.7.0) cannot finish a graph in which the
    weight of an RMS norm is on the left. The results are equal to the last bit, since both operators commute.

    Before:

        agraph (float[2, 4] x) => (float[2, 4] y) <float[4] weight = {1, 2, 3, 4}> {
            y = Mul (weight, x)
        }

    After:

        agraph (float[2, 4] x) => (float[2, 4] y) <float[4] weight = {1, 2, 3, 4}> {
            y = Mul (x, weight)
        }
    """

    operators: ClassVar[tuple[str, ...]] = ("Add", "Mul")

    def edit_node(self, editor: Editor, node: Node) -> None:
        left, right = node.operand(0), node.operand(1)
        if left.is_constant and not right.is_constant:
            editor.set_inputs(node, {0: right, 1: left})
            editor.note("constant(s) moved to the right")


@dataclass(frozen=True)
class WriteLayerNormDefaults(NodeRewrite):
    """Write out the axis and the epsilon of each LayerNormalization that leaves them to their defaults.

    RKNN-Toolkit2 2.5.0 does not build a model in which either is missing.

    Before:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization (x, s, b)
        }

    After:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, s, b)
        }
    """

    operators: ClassVar[tuple[str, ...]] = ("LayerNormalization",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        schema = get_schema(node.op_type, node.scope.opset(), "")
        defaults = {name: schema.attributes[name].default_value for name in ("axis", "epsilon")}
        if missing := {name: value for name, value in defaults.items() if name not in node.attributes}:
            outputs = ["" if value is None else value.name for value in node.outputs]
            editor.replace(node, NewNode(node.op_type, node.inputs, outputs, attributes_of(node, **missing), like=node))
            editor.note("default(s) of LayerNormalization(s) written out", len(missing))
