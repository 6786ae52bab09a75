"""Drop zeros that change nothing: those that are added to floats, and initial states of recurrent nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.attributes import constant_tensor
from graphkit.graph.operator_traits import MOVING, value_inputs
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.uses import moved_from
from graphkit.graph.view import Node, Scope, Value
from graphkit.io.tensors import inline_array
from graphkit.rewrite import Editor, NewNode, Rewrite, attributes_of

__all__ = ["DropZeroAdds", "DropZeroStates"]

ZERO_FLOATS = {*FLOATS, onnx.TensorProto.BFLOAT16}

# Operators whose result is the same for 0.0 and -0.0, including the sign of a zero.
BLIND = {"Abs", "ArgMax", "ArgMin", "Cos", "Cosh", "DynamicQuantizeLinear", "Equal", "Exp", "Greater", "GreaterOrEqual"}
BLIND |= {"IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "QuantizeLinear", "ReduceL1", "ReduceL2"}
BLIND |= {"ReduceSumSquare", "Shape", "Sigmoid", "Size", "Softmax", "Softplus"}
# Operators whose result for 0.0 and -0.0 differs at most in the sign of a zero.
FAITHFUL = MOVING | {"Add", "AveragePool", "Cast", "Ceil", "Clip", "Conv", "CumSum", "Einsum", "Elu", "Erf", "Floor"}
FAITHFUL |= {"Gelu", "Gemm", "GlobalAveragePool", "HardSwish", "LayerNormalization", "LeakyRelu", "MatMul", "Max"}
FAITHFUL |= {"ConvTranspose", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization"}
FAITHFUL |= {"MaxPool", "Mean", "Min", "Mul", "Neg", "PRelu", "Pad", "ReduceMax", "ReduceMean", "ReduceMin"}
FAITHFUL |= {"ReduceSum", "Relu", "Resize", "Round", "ScatterND", "Sin", "Sqrt", "Sub", "Sum", "Tanh", "Where"}

DEPENDS = "it adds zeros, but a later node may depend on the sign of a zero"
SIGNS = "it adds zeros, which makes 0 of -0 in an output; with `--fuse` it goes"


@dataclass(frozen=True)
class DropZeroAdds(Rewrite):
    """Remove the addition (or subtraction) of zeros to floats: biases that were never trained.

    `x + 0.0` changes only the sign of a zero, from -0.0 to 0.0, which compare equal. onnxruntime's own basic
    optimizations remove it too. Legality: the constant is small enough to be read, is all zeros, and does not
    broadcast; and the sign of a zero has no further effect: before an operator such as Softmax or a square discards it,
    no consumer divides by the result, takes a power of it, or is an operator that this pass does not know. An output
    may have zeros of another sign, unless `signs` are to be kept.

    Before:

        agraph (float[N, 2] x) => (float[N, 2] y) <float[2] bias = {0.0, 0.0}> {
            a = Add (x, bias)
            y = Softmax (a)
        }

    After:

        agraph (float[N, 2] x) => (float[N, 2] y) {
            y = Softmax (x)
        }

    Attributes:
        signs: Whether each output keeps the sign of its zeros, as `fold` asks for without `--fuse`.
    """

    signs: bool = False

    def edit(self, editor: Editor) -> None:
        adds = [
            (node, source) for node in editor.nodes("Add", "Sub") if (source := _find_augend(editor, node)) is not None
        ]
        graph = editor.model.graph
        exposed = _find_exposed_values(editor, graph, {*graph.outputs} if self.signs else set()) if adds else set()
        is_sorted = not any(scope.problems for scope in editor.scopes)
        for node, source in adds:
            out = node.outputs[0]
            if out is None or editor.is_output(out):
                continue
            if (out in exposed or not is_sorted) and not _keeps_signs(editor, node, source):
                editor.decline(node, SIGNS if self.signs else DEPENDS)
                continue
            if editor.replace_all_uses(out, source):
                editor.take(node)
                editor.note("addition(s) of zeros removed")


def _keeps_signs(editor: Editor, node: Node, source: Value) -> bool:
    """Whether the node adds -0.0 to a value, or takes 0.0 away from it, so that all its zeros keep their signs."""
    left, right = node.inputs
    gone = right if left is source else left
    return gone is not None and _has_signs(editor, gone, negative=node.is_op("Add"))


def _find_augend(editor: Editor, node: Node) -> Value | None:
    """Return the input that zeros are added to."""
    if node.scope.opset() < 7 or len(node.inputs) != 2 or node.outputs[0] is None:
        return None
    after = editor.shapes[node.outputs[0]]
    if after.dtype not in ZERO_FLOATS or after.dims is None:
        return None
    for index in (0, 1) if node.op_type == "Add" else (0,):
        value, addend = node.inputs[index], node.inputs[1 - index]
        if addend is not None and editor.shapes.dims(value) == after.dims and editor.uniform(addend) == 0:
            return value
    return None


def _find_exposed_values(editor: Editor, scope: Scope, exposed: set[Value]) -> set[Value]:
    """Return the values of a graph for which the sign of a zero may matter, in one pass from its end."""
    for node in reversed(scope.nodes):
        for body in node.bodies.values():
            if node.is_op("If"):
                pairs = zip(node.outputs, body.outputs, strict=False)
                exposed.update(inner for outer, inner in pairs if outer in exposed)
            else:
                exposed.update(body.outputs)
            _find_exposed_values(editor, body, exposed)
        is_open = any(value in exposed for value in node.outputs)
        exposed.update(
            value
            for index, value in enumerate(node.inputs)
            if value is not None and _exposes_sign(editor, node, index, is_open)
        )
    return exposed


def _exposes_sign(editor: Editor, node: Node, index: int, is_open: bool) -> bool:
    """Whether a node gives more than zeros of another sign for zeros of another sign at an input.

    `is_open` says whether the sign of a zero matters for an output of the node.
    """
    if node.domain or index in value_inputs(node):
        return True
    if node.is_op("QuantizeLinear") and (index or editor.shapes[node.outputs[0]].dtype not in INTEGERS):
        return bool(index) or is_open  # a float of 8 bits has a sign of zeros, too
    if node.op_type in BLIND or _ignores_sign(node, index):
        return False
    if node.is_op("Cast") and node.attr("to", int) in (None, onnx.TensorProto.STRING):
        return True
    return is_open or not (node.op_type in FAITHFUL or (node.op_type == "Div" and index == 0))


def _ignores_sign(node: Node, index: int) -> bool:
    """Whether a node takes an even power."""
    if not node.is_op("Pow") or index == 1:
        return False
    exponent = node.inputs[1].constant if node.inputs[1] is not None else None
    array = inline_array(exponent) if exponent is not None and list(exponent.dims) in ([], [1]) else None
    if array is None:
        return False
    number = float(array.reshape(-1)[0])
    return number > 0 and number % 2 == 0


STATES = (5, 6)  # of an LSTM, which index holds the hidden and which the cell state; a GRU and an RNN have the first
MOVES = ("Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose")
MOVED = (*MOVES, "Unsqueeze")


@dataclass(frozen=True)
class DropZeroStates(Rewrite):
    """Leave out the initial states of LSTM, GRU and RNN that are zeros, and with them the nodes that make them.

    Legality: the state is a constant of zeros, or made of such by a ConstantOfShape and nodes that move elements;
    -0.0 stays.

    Before:

        agraph (float[L, N, 3] x) => (float[L, 1, N, 2] y)
        <float[1, 6, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[1, 6, 2] r = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, int64[1] one = {1}, int64[1] two = {2}> {
            batch = Shape <start = 1, end = 2> (x)
            dims = Concat <axis = 0> (one, batch, two)
            zeros = ConstantOfShape (dims)
            y = GRU <hidden_size = 2> (x, w, r, , , zeros)
        }

    After:

        agraph (float[L, N, 3] x) => (float[L, 1, N, 2] y)
        <float[1, 6, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[1, 6, 2] r = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
            y = GRU <hidden_size = 2> (x, w, r)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("LSTM", "GRU", "RNN"):
            zeros = [index for index in STATES if (value := node.input(index)) is not None and _is_zero(editor, value)]
            if zeros:
                _leave_out(editor, node, zeros)
                editor.note("initial state(s) of zeros left out", len(zeros))


def _leave_out(editor: Editor, node: Node, indices: Sequence[int]) -> None:
    inputs = [None if index in indices else value for index, value in enumerate(node.inputs)]
    while inputs and inputs[-1] is None:
        inputs.pop()
    outputs = [out.name if out is not None else "" for out in node.outputs]
    editor.replace(node, NewNode(node.op_type, inputs, outputs, attributes_of(node), like=node))


def _is_zero(editor: Editor, value: Value) -> bool:
    """Whether all elements of a value are 0.0."""
    return all(
        _is_zero_source(editor, source) for source in walk_breadth_first([value], lambda each: moved_from(each, MOVED))
    )


def _is_zero_source(editor: Editor, value: Value) -> bool:
    """Whether a value is zeros, or is moved from values that may be."""
    node = value.producer
    if value.is_constant:
        return _has_signs(editor, value, negative=False)
    return node is not None and (
        node.is_op(*MOVED) or (node.is_op("ConstantOfShape") and _fills_with_zeros(editor, node))
    )


def _has_signs(editor: Editor, value: Value, *, negative: bool) -> bool:
    """Whether a value is a constant of zeros that all have this sign."""
    tensor = value.constant
    if tensor is None or editor.uniform(value) != 0:
        return False
    return bool((np.signbit(editor.model.array(tensor)) == negative).all())


def _fills_with_zeros(editor: Editor, node: Node) -> bool:
    """Whether a ConstantOfShape gives zeros: it does where it says nothing."""
    if "value" not in node.attributes:
        return True
    tensor = constant_tensor(node.attributes)
    if tensor is None or tensor.data_type not in FLOATS:
        return False
    array = editor.model.array(tensor)
    return not array.any() and not np.signbit(array).any()
