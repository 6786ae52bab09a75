"""Replace integer tensors whose elements are all known by constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.shapes.tensor import numbers

__all__ = ["FoldShapes"]


@dataclass(frozen=True)
class FoldShapes(Rewrite):
    """Replace integer and boolean tensors whose elements the shape engine knows as numbers by constants.

    The elements may come, through any number of operators, from the shape of a tensor whose other dims are dynamic.
    Legality: every element is a number at all legal input dims.

    Before:

        agraph (float[N, 4, 8] x) => (int64[2] y) <int64[2] at = {1, 2}> {
            s = Shape (x)
            y = Gather (s, at)
        }

    After:

        agraph (float[N, 4, 8] x) => (int64[2] y) <int64[2] y_value = {4, 8}> {
            y = Identity (y_value)
        }
    """

    def edit(self, editor: Editor) -> None:
        for scope in editor.scopes:
            for node in scope.nodes:
                if node.is_op("Constant", "Identity") or not editor.is_free(node):
                    continue
                for index, value in enumerate(node.outputs):
                    if value is not None and (array := numbers(editor.shapes[value])) is not None:
                        _fold(editor, value, index, array)


def _fold(editor: Editor, value: Value, index: int, array: np.ndarray) -> None:
    node = value.producer
    if node is None or editor.has_alias(value):
        return
    if editor.is_output(value) and len(node.outputs) == 1:
        editor.bypass(node, editor.constant(array, f"{value.name}_value"), index)
    elif any(not _vanishes(editor, consumer) for consumer, _ in value.consumers):
        editor.replace_all_uses(value, editor.constant(array, f"{value.name}_value"))
    else:
        return
    editor.note("shape tensor(s) made constant")


def _vanishes(editor: Editor, node: Node) -> bool:
    found = [value for value in node.outputs if value is not None]
    return bool(found) and all(numbers(editor.shapes[value]) is not None for value in found)
