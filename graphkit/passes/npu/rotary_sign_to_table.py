"""Move the Neg of a rotary embedding into the table of sines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.dtypes import FLOATS
from graphkit.graph.new_nodes import make_concat
from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.view import Node, Value
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, NodeRewrite

MAX_SIGNS = 1 << 20  # elements of a rotated tensor


@dataclass(frozen=True)
class RotarySignToTable(NodeRewrite):
    """Move the Neg of a rotary embedding into its table: `Concat(-b, a) * sin` is `Concat(b, a) * (sin * [-1, 1])`.

    One small Mul by a constant is left for each table, which equal ones share, in the place of a Neg for each query and
    key; where the table is a constant, it folds into it. Interleaved halves, with a Reshape after the Concat, are
    rotated likewise. The results are equal to the last bit.

    Legality: nothing else reads what is rotated, from the Neg to the Mul; the dims are numbers, the dtype is a float;
    and the table with its signs has no more elements than what it multiplies.

    Before:

        agraph (float[1, 2, 3, 4] x, float[1, 1, 3, 4] cos, float[1, 1, 3, 4] sin) => (float[1, 2, 3, 4] y) {
            a, b = Split <axis = 3> (x)
            n = Neg (b)
            r = Concat <axis = -1> (n, a)
            xc = Mul (x, cos)
            rs = Mul (r, sin)
            y = Add (xc, rs)
        }

    After:

        agraph (float[1, 2, 3, 4] x, float[1, 1, 3, 4] cos, float[1, 1, 3, 4] sin) => (float[1, 2, 3, 4] y)
        <float[1, 1, 1, 4] sin_signs = {-1.0, -1.0, 1.0, 1.0}> {
            a, b = Split <axis = 3> (x)
            xc = Mul (x, cos)
            r_positive = Concat <axis = -1> (b, a)
            sin_signed = Mul (sin, sin_signs)
            rs = Mul (r_positive, sin_signed)
            y = Add (xc, rs)
        }
    """

    operators: ClassVar[tuple[str, ...]] = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        sources = [_negated_tensor(value, node) for value in node.inputs]
        if not any(sources):
            return
        product, rotated = _reading_product(editor, node)
        editor.replace(product, *_make_nodes(editor, node, sources, product, rotated))
        editor.note("Neg(s) moved into the signs of a table")


def _negated_tensor(value: Value | None, concat: Node) -> Value | None:
    """Return the tensor that a Concat's input negates, with the same order of elements; None for no Neg."""
    while value is not None and value.producer is not None and len(value.consumers) == 1:
        node = value.producer
        if node.scope is not concat.scope or value in concat.scope.outputs:
            return None
        if node.is_op("Neg"):
            return node.input(0)
        value = node.input(0) if node.is_op(*RESHAPING) else None
    return None


def _reading_product(editor: Editor, concat: Node) -> tuple[Node, Value]:
    """Return the Mul that reads a Concat, and the input of it that is the Concat with or without other dims."""
    value = concat.outputs[0]
    while value is not None:
        if len(value.consumers) != 1 or editor.is_output(value):
            raise MatchFailure("what it rotates has other readers")
        node = value.consumers[0][0]
        if node.scope is not concat.scope or not editor.is_free(node):
            break
        if node.is_op("Mul"):
            return node, value
        value = node.outputs[0] if node.is_op(*RESHAPING) and node.input(0) is value else None
    raise MatchFailure("what it rotates is not multiplied by a table")


def _make_nodes(
    editor: Editor, concat: Node, sources: list[Value | None], product: Node, rotated: Value
) -> list[NewNode]:
    joined, out = concat.result(), product.result()
    table = next((value for value in product.operands if value is not rotated), None)
    if table is None:
        raise MatchFailure("what it rotates is not multiplied by a table")
    signs = _sign_table(editor, concat, joined, sources, rotated)
    before, after = editor.shapes[table].sizes(), editor.shapes[rotated].sizes()
    if before is None or after is None:
        raise MatchFailure(f"the dims of its table are not all numbers: {editor.shapes[table]}")
    if len(before) > len(after) or math.prod(np.broadcast_shapes(before, signs.shape)) > math.prod(after):
        raise MatchFailure("its table has more elements than what it rotates")
    made: list[NewNode] = []

    def reshape(source: NodeInput, dims: Sequence[int], base: str) -> NodeInput:
        name = editor.unique_name(f"{base}_positive")
        made.append(editor.make_reshape(source, dims, name))
        return name

    parts: list[NodeInput] = []
    for value, source in zip(concat.operands, sources, strict=True):
        part, dims = value if source is None else source, editor.shapes[value].sizes()
        is_same = source is None or dims is None or editor.shapes[source].sizes() == dims
        parts.append(part if is_same or dims is None else reshape(part, dims, value.name))
    name = editor.unique_name(f"{joined.name}_positive")
    made.append(make_concat(parts, concat.attr("axis", 0), name, like=concat))
    result = name if rotated is joined else reshape(name, after, rotated.name)
    signed = editor.unique_name(f"{table.name}_signed")
    made.append(NewNode("Mul", [table, editor.constant(signs, f"{table.name}_signs")], [signed]))
    return [*made, NewNode("Mul", [result, signed], [out.name], like=product)]


def _sign_table(editor: Editor, concat: Node, joined: Value, sources: list[Value | None], rotated: Value) -> np.ndarray:
    """Return the sign of each rotated element, with dims of 1 where it is the same along an axis."""
    tensor, axis = editor.shapes[joined], concat.attr("axis", 0)
    dims, after = tensor.sizes(), editor.shapes[rotated].sizes()
    if dims is None or after is None or axis is None or not 0 < math.prod(dims) <= MAX_SIGNS:
        raise MatchFailure(f"the dims of what it rotates are not all numbers: {tensor}")
    if tensor.dtype not in FLOATS:
        raise MatchFailure("it does not rotate floats")
    signs = []
    for value, source in zip(concat.inputs, sources, strict=True):
        part = editor.shapes[value].sizes()
        if part is None or (source is not None and editor.shapes[source].sizes() is None):
            raise MatchFailure(f"the dims of what it rotates are not all numbers: {tensor}")
        signs.append(np.full(part, 1 if source is None else -1, tensor_dtype_to_np_dtype(tensor.dtype)))
    array = np.concatenate(signs, axis).reshape(after)
    for index in range(array.ndim):
        first = array.take([0], index)
        array = first if (array == first).all() else array
    return array
