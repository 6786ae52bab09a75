"""Hide frozen dims from bodies that cannot run at them, so that a runtime still loads the model.

At the dims of a decode step the first step's branch of a merged decoder may be impossible: a mask of 6 meets one token.
The model is sound, for that branch is not run; yet onnxruntime infers shapes in it while it loads, and refuses the
file. Therefore the branch reads outer values through a Reshape that copies all dims, to a shape of zeros that is
computed from a value known only at run time. The branch computes the same, or fails in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx

from graphkit.graph.merged import captures
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.shapes import Shapes

__all__ = ["hide_frozen_dims"]

INT64 = onnx.TensorProto.INT64


def hide_frozen_dims(model: Model, bodies: Collection[Scope], shapes: Shapes) -> Model:
    """Return a model that hides its frozen dims from subgraphs that cannot run at those sizes."""
    editor = Editor(model)
    for body in bodies:
        if not any(other is not body and other.contains(body) for other in bodies):
            _shield(editor, body, shapes)
    return editor.result()


def _shield(editor: Editor, body: Scope, shapes: Shapes) -> None:
    source = _run_time_value(editor, body)
    read = {value: rank for value in captures(body) if (rank := shapes[value].rank or 0) and _is_computed(value)}
    visible = [value for value in read if all(editor.is_visible(value, node.scope) for node in _readers(body, value))]
    if source is None or not visible:
        return
    number = editor.unique_name(f"{source.name}/number")
    editor.insert_first(body, NewNode("Cast", [source], [number], {"to": INT64}, number))
    copies: dict[int, str] = {}
    for rank in sorted({read[value] for value in visible}):
        copies[rank] = editor.unique_name(f"{source.name}/copy_{rank}")
        zeros = editor.integers([0] * rank, f"dims/{','.join(['0'] * rank)}")
        editor.insert_first(body, NewNode("Mul", [number, zeros], [copies[rank]], {}, copies[rank]))
    for value in visible:
        name = editor.unique_name(f"{value.name}/any_shape")
        editor.insert_first(body, NewNode("Reshape", [value, copies[read[value]]], [name], {}, name))
        for node in dict.fromkeys(_readers(body, value)):
            editor.set_inputs(node, {index: name for index, one in enumerate(node.inputs) if one is value})


def _run_time_value(editor: Editor, body: Scope) -> Value | None:
    """Return a number that is known at run time only: an If's condition, or the counter of a Loop."""
    owner = body.owner
    if owner is None or not owner.is_op("If", "Loop"):
        return None
    if owner.op_type == "Loop":
        return body.inputs[0] if body.inputs else None
    condition = owner.input(0)
    is_usable = condition is not None and _is_computed(condition) and editor.is_visible(condition, body)
    return condition if is_usable else None


def _is_computed(value: Value) -> bool:
    return value.tensor is None and not value.is_constant


def _readers(body: Scope, value: Value) -> Iterator[Node]:
    for node, _ in value.consumers:
        if body.contains(node.scope):
            yield node
