"""Compute Gelu by tanh in the place of erf. This changes results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["GeluToTanh"]

ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715
CONTRIB_GELU = "com.microsoft.Gelu"
NEAR = 1e-3  # how far exporters' sqrt(2), rounded to float16 or written with few digits, is off


@dataclass(frozen=True)
class GeluToTanh(Rewrite):
    """Compute each Gelu by tanh in the place of erf: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.

    This changes results: those of a Gelu by at most 4.8e-4, near x = 2.7 and x = -2.7. It runs only where it is asked
    for by name. A Gelu with an attribute `approximate` gets it set to `tanh`, that of com.microsoft is spelled out, and
    one that is spelled out gets a Tanh for its Erf. Legality: the Erf is of `x / sqrt(2)`, and all that reads it is an
    Add of 1, whose result is multiplied by x, or by half of x; any other Erf stays.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y)
        <float root = {1.41421356}, float one = {1.0}, float half = {0.5}> {
            a = Div (x, root)
            b = Erf (a)
            c = Add (b, one)
            d = Mul (x, c)
            y = Mul (d, half)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y)
        <float one = {1.0}, float half = {0.5}, float[1] b_cubic = {0.035677407}, float[1] b_linear = {0.7978846}> {
            b_square = Mul (x, x)
            b_scaled = Mul (b_square, b_cubic)
            b_factor = Add (b_scaled, b_linear)
            b_inner = Mul (x, b_factor)
            b_tanh = Tanh (b_inner)
            c = Add (b_tanh, one)
            d = Mul (x, c)
            y = Mul (d, half)
        }
    """

    largest_error: ClassVar[float] = 4.8e-4

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Gelu"):
            if node.attr("approximate", "none") == "none" and node.outputs[0] is not None:
                made = NewNode("Gelu", node.inputs, [node.outputs[0].name], {"approximate": "tanh"}, like=node)
                editor.replace(node, made)
                editor.note("Gelu(s) computed by tanh")
        for scope in editor.scopes:
            for node in scope.nodes:
                if node.operator == CONTRIB_GELU and editor.is_free(node):
                    _spell_out(editor, node)
        for node in editor.nodes("Erf"):
            source = _gelu_of(editor, node)
            if source is None:
                editor.decline(node, "it is not the Erf of a Gelu")
                continue
            _replace(editor, node, source)


def _replace(editor: Editor, node: Node, x: Value) -> None:
    """Put Tanh in the place of Erf, under another name, for its elements differ."""
    out = node.outputs[0]
    assert out is not None
    made = _tanh(editor, out, x)
    if editor.replace_all_uses(out, made[-1].outputs[0]):
        editor.insert_before(node, *made)
        editor.note("Gelu(s) computed by tanh")


def _spell_out(editor: Editor, node: Node) -> None:
    """Put nodes of onnx's own operators in the place of a Gelu of com.microsoft, which always takes erf."""
    x, out = node.input(0), node.outputs[0]
    if x is None or out is None or editor.shapes[x].dtype not in FLOATS or editor.shapes[x].rank in (None, 0):
        editor.decline(node, "it is not known to be a Gelu of floats of some rank")
        return
    made = _tanh(editor, out, x)
    dtype = FLOATS[editor.shapes[x].dtype]
    for op_type, role, number in (("Add", "one", 1), ("Mul", "half", 0.5)):
        constant = editor.constant(np.array([number], dtype), f"{out.name}_{role}")
        name = editor.unique_name(f"{out.name}_{role}_{op_type.lower()}")
        made.append(NewNode(op_type, [made[-1].outputs[0], constant], [name]))
    made.append(NewNode("Mul", [x, made[-1].outputs[0]], [out.name], like=node))
    editor.replace(node, *made)
    editor.note("Gelu(s) computed by tanh")


def _tanh(editor: Editor, out: Value, x: Value) -> list[NewNode]:
    """Return the nodes that compute the tanh; the last one gives it."""
    made: list[NewNode] = []

    def make(op_type: str, role: str, *inputs: NodeInput) -> NodeInput:
        made.append(NewNode(op_type, inputs, [editor.unique_name(f"{out.name}_{role}")]))
        return made[-1].outputs[0]

    dtype = FLOATS[editor.shapes[x].dtype]
    cubic = editor.constant(np.array([ROOT * CUBIC], dtype), f"{out.name}_cubic")
    linear = editor.constant(np.array([ROOT], dtype), f"{out.name}_linear")
    factor = make("Add", "factor", make("Mul", "scaled", make("Mul", "square", x, x), cubic), linear)
    make("Tanh", "tanh", make("Mul", "inner", x, factor))
    return made


def _gelu_of(editor: Editor, node: Node) -> Value | None:
    """Return the x of a Gelu that an Erf belongs to, None where it belongs to none."""
    scaled, out = node.input(0), node.outputs[0]
    if scaled is None or out is None or editor.is_output(out) or len(out.consumers) != 1:
        return None
    x = _unscaled(editor, scaled.producer)
    shifted = _sum_with_one(editor, out.consumers[0][0], out)
    if x is None or shifted is None or editor.is_output(shifted) or len(shifted.consumers) != 1:
        return None
    if editor.shapes[x].dtype not in FLOATS or editor.shapes[x].rank in (None, 0):
        return None
    return x if _is_multiplied(editor, shifted, x) else None


def _is_multiplied(editor: Editor, shifted: Value, x: Value) -> bool:
    """Whether all that reads a value multiplies it by x, before or after it is halved."""
    product = shifted.consumers[0][0]
    others = [value for value in product.inputs if value is not shifted]
    if not product.is_op("Mul") or len(others) != 1 or others[0] is None:
        return False
    if _is_multiple(editor, others[0], x):
        return True
    half = product.outputs[0]
    is_half = editor.uniform(others[0]) == 0.5 and half is not None and len(half.consumers) == 1
    return is_half and half is not None and not editor.is_output(half) and _reads(half.consumers[0][0], half, x)


def _reads(node: Node, one: Value, other: Value) -> bool:
    return node.is_op("Mul") and node.inputs in ((one, other), (other, one))


def _unscaled(editor: Editor, node: Node | None) -> Value | None:
    """Return the x of x / sqrt(2)."""
    if node is None or not node.is_op("Div", "Mul") or len(node.inputs) != 2:
        return None
    wanted = math.sqrt(2) if node.is_op("Div") else math.sqrt(0.5)
    pairs: Sequence[tuple[Value | None, Value | None]] = [(node.inputs[0], node.inputs[1])]
    if node.is_op("Mul"):
        pairs = [*pairs, (node.inputs[1], node.inputs[0])]
    for x, by in pairs:
        factor = editor.uniform(by) if by is not None else None
        if factor is not None and abs(factor - wanted) < NEAR and _keeps_dims(editor, x, node.outputs[0]):
            return x
    return None


def _sum_with_one(editor: Editor, node: Node, erf: Value) -> Value | None:
    others = [value for value in node.inputs if value is not erf]
    is_sum = node.is_op("Add") and len(others) == 1 and others[0] is not None and editor.uniform(others[0]) == 1
    return node.outputs[0] if is_sum else None


def _is_multiple(editor: Editor, value: Value | None, x: Value) -> bool:
    """Whether a value is x, or x times 0.5."""
    if value is x:
        return True
    node = value.producer if value is not None else None
    if node is None or not node.is_op("Mul", "Div") or len(node.inputs) != 2:
        return False
    one, other = node.inputs
    wanted = 2 if node.is_op("Div") else 0.5
    pairs = [(one, other)] if node.is_op("Div") else [(one, other), (other, one)]
    return any(first is x and by is not None and editor.uniform(by) == wanted for first, by in pairs)


def _keeps_dims(editor: Editor, one: Value | None, other: Value | None) -> bool:
    if one is None or other is None:
        return False
    dims = editor.shapes[one].dims
    return dims is not None and dims == editor.shapes[other].dims
