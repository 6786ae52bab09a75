"""Find the projections of a self-attention: the products that make queries, keys and values, and their moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph.view import Node, Value
from graphkit.rewrite.affine import Affine, Reason, affine_of
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.layouts import MOVERS, Atom, Group, Layout, after, joined
from graphkit.rewrite.linear import Linear, linear_of
from graphkit.shapes import const

__all__ = ["SCALING", "Projection", "batch_and_rows", "operand", "projection_of"]

SCALING = ("Mul", "Div")
TAKING = ("Split", "Slice", "Gather")


@dataclass(frozen=True, eq=False)
class Projection:
    """Queries, keys or values: columns of the product of a tensor and a constant weight.

    Attributes:
        linear: The MatMul.
        weight: Its weight.
        add: The node that adds a bias, where one does.
        shift: What it adds, one number for each column or one.
        layout: How the columns lie in the operand.
        nodes: All nodes from the MatMul to the operand.
    """

    linear: Linear
    weight: Value
    add: Node | None
    shift: np.ndarray
    layout: Layout
    nodes: tuple[Node, ...]


def batch_and_rows(editor: Editor, data: Value, *, is_turned: bool) -> tuple[Group, Group]:
    """Return the groups that count batch and rows in data of rank 3, whose rows come first if it is turned."""
    first, second, _ = editor.shapes[data].dims or ()
    batch, rows = (second, first) if is_turned else (first, second)
    return joined([Atom("batch", batch)]), joined([Atom("row", rows)])


def operand(node: Node) -> Value | None:
    """Return the input that a node moves, takes a part of, or scales."""
    if node.is_op(*SCALING):
        return next((value for value in node.inputs if value is not None and not value.is_constant), None)
    return node.input(0)


def projection_of(editor: Editor, value: Value | None, role: str, *, is_turned: bool) -> Projection | Reason:
    """Return the queries, keys or values that a value is, or why it is none; rows may come before the batch."""
    path: list[tuple[Node, Value, Value]] = []
    while value is not None and value.producer is not None and value.producer.is_op(*MOVERS, *SCALING, *TAKING):
        source = operand(value.producer)
        if source is None:
            return Reason(f"its {role} are constant")
        path.append((value.producer, source, value))
        value = source
    node = value.producer if value is not None else None
    if value is None or node is None or node.is_op("Concat"):
        return Reason(f"its {role} are an input, or joined with others, such as a past")
    found = _product(editor, node, value, role)
    if isinstance(found, Reason):
        return found
    linear, add, shift = found
    batch, rows = batch_and_rows(editor, value, is_turned=is_turned)
    columns = joined([Atom("column", const(linear.result.count))])
    layout = Layout((rows, batch, columns) if is_turned else (batch, rows, columns))
    for mover, source, out in reversed(path):
        moved = after(editor, mover, source, out, layout)
        if moved is None:
            return Reason(f"'{mover.label}' does something else to its {role} than to tell heads apart")
        layout = moved
    nodes = (linear.node, *([add] if add is not None else []), *(mover for mover, _, _ in path))
    weight = linear.node.inputs[linear.weight]
    assert weight is not None
    return Projection(linear, weight, add, shift, layout, nodes)


def _product(editor: Editor, node: Node, value: Value, role: str) -> tuple[Linear, Node | None, np.ndarray] | Reason:
    """Return the MatMul that gives a value of rank 3, with the Add behind it, if any, and its bias."""
    add = node if node.is_op("Add") else None
    if add is not None:
        made = [one.producer for one in add.inputs if one is not None and not one.is_constant]
        node = made[0] if len(made) == 1 and made[0] is not None else add
    linear = linear_of(node, editor.shapes)
    if isinstance(linear, Reason):
        return Reason(f"its {role} are not made by a MatMul with a constant weight{': ' * bool(linear)}{linear}")
    if node.op_type != "MatMul" or linear.data != 0 or len(linear.view) != 2 or editor.shapes[value].rank != 3:
        return Reason(f"its {role} are not made by a MatMul of a tensor of rank 3 and a matrix")
    if linear.tensor.data_type != TensorProto.FLOAT:
        return Reason("it is not of float32, for which alone onnxruntime has a kernel on the CPU")
    if add is None:
        return linear, None, np.zeros(1)
    product = node.outputs[0]
    assert product is not None
    shift = affine_of(editor.model, add, product, linear.result, linear.tensor.data_type)
    if not isinstance(shift, Affine) or editor.shapes[product].dims != editor.shapes[value].dims:
        return Reason(f"what is added to its {role} is not one constant number for each column")
    return linear, add, shift.shift
