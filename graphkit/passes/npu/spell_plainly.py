"""Spell Neg, Pow and the normalizations of layers with the operators that any NPU has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["LayerNormToPrimitives", "NegToMul", "PowToMul"]


@dataclass(frozen=True)
class NegToMul(Rewrite):
    """Spell each Neg of floats as a Mul by -1, for targets without Neg.

    The results are equal, signed zeros too. Legality: the dtype is a float; the least integer has no opposite, and
    what a Neg of it gives differs between runtimes, so a Neg of integers is left.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Neg (x)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) <float[1] minus_one = {-1.0}> {
            y = Mul (x, minus_one)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Neg"):
            data, out = node.input(0), node.outputs[0]
            if data is None or out is None:
                continue
            dtype, rank = editor.shapes[data].dtype, editor.shapes[data].rank
            if dtype not in FLOATS or rank is None:
                editor.decline(node, "it is not known to be a Neg of floats of a known rank")
                continue
            array = np.full([1] * min(rank, 1), -1, tensor_dtype_to_np_dtype(dtype))
            minus_one = editor.constant(array, "minus_one")
            editor.replace(node, NewNode("Mul", [data, minus_one], [out.name], like=node))
            editor.note("Neg(s) spelled as Muls")


EXPONENTS = (1, 2, 3)


@dataclass(frozen=True)
class PowToMul(Rewrite):
    """Spell a Pow by 2 or 3 as products, and drop a Pow by 1, for targets without Pow.

    onnxruntime computes such a Pow in this way too. Legality: the exponent is a constant whose elements are all the
    same and whose dims add none to the base's; the base is a float.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) <float two = {2.0}> {
            y = Pow (x, two)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Mul (x, x)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Pow"):
            base, power, out = node.input(0), node.input(1), node.outputs[0]
            if base is None or power is None or out is None:
                continue
            exponent = editor.uniform(power)
            if exponent not in EXPONENTS:
                editor.decline(node, "its exponent is not a constant 1, 2 or 3")
            elif editor.shapes[base].dtype not in FLOATS:
                editor.decline(node, "its base is not a float")
            elif editor.shapes[base].dims is None or editor.shapes[base].dims != editor.shapes[out].dims:
                editor.decline(node, "its exponent has dims that its base lacks")
            elif exponent == 1:
                editor.bypass(node, base)
                editor.note("Pow(s) by 1 removed")
            else:
                square = out.name if exponent == 2 else editor.unique_name(f"{out.name}_square")
                made = [NewNode("Mul", [base, base], [square], like=node if exponent == 2 else None)]
                if exponent == 3:
                    made.append(NewNode("Mul", [square, base], [out.name], like=node))
                editor.replace(node, *made)
                editor.note("Pow(s) spelled as Muls")


AXES_INPUT_SINCE = 18  # of ReduceMean
NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


@dataclass(frozen=True)
class LayerNormToPrimitives(Rewrite):
    """Spell LayerNormalization as Sub, Mul, ReduceMean, Sqrt and Div, for targets without it.

    TFLite refuses a LayerNormalization in int16 because of its SQUARED_DIFFERENCE, which this spelling does without.
    RMSNormalization and SimplifiedLayerNormalization, which subtract no mean, are spelled out in the same way. Results
    differ in the last digits.
    Legality: nothing reads the mean or the deviation; the computation is in the dtype of the tensor (`stash_type`), and
    its rank is known.

    Before:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization <axis = -1, epsilon = 0.5> (x, s, b)
        }

    After:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) <float[1] y_epsilon = {0.5}> {
            y_mean = ReduceMean <axes = [-1], keepdims = 1> (x)
            y_centred = Sub (x, y_mean)
            y_square = Mul (y_centred, y_centred)
            y_variance = ReduceMean <axes = [-1], keepdims = 1> (y_square)
            y_positive = Add (y_variance, y_epsilon)
            y_deviation = Sqrt (y_positive)
            y_normal = Div (y_centred, y_deviation)
            y_scaled = Mul (y_normal, s)
            y = Add (y_scaled, b)
        }
    """

    largest_error: ClassVar[float] = 1e-5

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes(*NORMALIZATIONS):
            data, out = node.input(0), node.outputs[0]
            if data is None or out is None:
                continue
            dtype, rank, axis = editor.shapes[data].dtype, editor.shapes[data].rank, node.attr("axis", -1)
            if rank is None or axis is None or not -rank <= axis < rank:
                editor.decline(node, "the rank of its data is not known")
            elif dtype != (node.attr("stash_type", 1) or dtype):
                editor.decline(node, "it computes in another dtype than that of its data")
            elif any(value is not None and (value.consumers or editor.is_output(value)) for value in node.outputs[1:]):
                editor.decline(node, "its mean or deviation is in use")
            else:
                axes = list(range(axis if axis < 0 else axis - rank, 0))
                editor.replace(node, *_spelled(editor, node, data, out, axes))
                editor.note(f"{node.op_type} node(s) spelled out")


def _spelled(editor: Editor, node: Node, data: Value, out: Value, axes: Sequence[int]) -> list[NewNode]:
    made: list[NewNode] = []

    def make(op_type: str, role: str, *inputs: NodeInput) -> NodeInput:
        made.append(NewNode(op_type, inputs, [editor.unique_name(f"{out.name}_{role}")]))
        return made[-1].outputs[0]

    def mean(source: NodeInput, role: str) -> NodeInput:
        name = editor.unique_name(f"{out.name}_{role}")
        if node.scope.opset() < AXES_INPUT_SINCE:
            made.append(NewNode("ReduceMean", [source], [name], {"axes": axes, "keepdims": 1}))
        else:
            made.append(
                NewNode("ReduceMean", [source, editor.integers(axes, f"{out.name}_axes")], [name], {"keepdims": 1})
            )
        return name

    dtype = tensor_dtype_to_np_dtype(editor.shapes[data].dtype)
    epsilon = editor.constant(np.array([node.attr("epsilon", 1e-5)], dtype), f"{out.name}_epsilon")
    is_centred = node.is_op("LayerNormalization")
    centred = make("Sub", "centred", data, mean(data, "mean")) if is_centred else data
    variance = mean(make("Mul", "square", centred, centred), "variance")
    deviation = make("Sqrt", "deviation", make("Add", "positive", variance, epsilon))
    result = make("Div", "normal", centred, deviation)
    if (scale := node.input(1)) is not None:
        result = make("Mul", "scaled", result, scale)
    if is_centred and (bias := node.input(2)) is not None:
        make("Add", "shifted", result, bias)
    last = made.pop()
    return [*made, NewNode(last.op_type, last.inputs, [out.name], last.attributes, like=node)]
