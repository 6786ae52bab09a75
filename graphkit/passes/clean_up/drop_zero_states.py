"""Leave out initial states of recurrent nodes that are zeros, which is what they are when they are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.graph.attributes import constant_tensor
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, attributes_of
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["DropZeroStates"]

STATES = (5, 6)  # of an LSTM, which index holds the hidden and which the cell state; a GRU and an RNN have the first
MOVES = ("Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose")
MOVED = (*MOVES, "Unsqueeze")
MAX_STEPS = 16


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


def _is_zero(editor: Editor, value: Value, steps: int = MAX_STEPS) -> bool:
    """Whether all elements of a value are 0.0."""
    node = value.producer
    if value.is_constant:
        return editor.uniform(value) == 0 and _is_positive(editor, value)
    if node is None or not steps:
        return False
    if node.is_op("ConstantOfShape"):
        return _fills_with_zeros(editor, node)
    parts = node.inputs if node.is_op("Concat") else node.inputs[:1]
    return node.is_op(*MOVED) and all(part is not None and _is_zero(editor, part, steps - 1) for part in parts)


def _is_positive(editor: Editor, value: Value) -> bool:
    tensor = value.constant
    return tensor is not None and not np.signbit(editor.model.array(tensor)).any()


def _fills_with_zeros(editor: Editor, node: Node) -> bool:
    """Whether a ConstantOfShape gives zeros: it does where it says nothing."""
    if "value" not in node.attributes:
        return True
    tensor = constant_tensor(node.attributes)
    if tensor is None or tensor.data_type not in FLOATS:
        return False
    array = editor.model.array(tensor)
    return not array.any() and not np.signbit(array).any()
