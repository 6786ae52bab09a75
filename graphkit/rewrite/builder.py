"""Build the nodes that take the place of another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.graph.view import Node
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput

__all__ = ["Builder"]


class Builder:
    """The nodes that take the place of one, with names made from its output.

        builder = Builder(editor, node)
        square = builder.add("Mul", base, base, role="square")
        builder.add("Mul", square, base)
        builder.replace()  # the last node gives the output

    Attributes:
        label: The name of the output, with which the new names begin.
        nodes: The nodes so far, in order.
    """

    def __init__(self, editor: Editor, node: Node) -> None:
        out = node.outputs[0] if node.outputs else None
        self.editor, self.node, self.label = editor, node, node.label if out is None else out.name
        self.nodes: list[NewNode] = []

    def add(
        self, op_type: str, *inputs: NodeInput, role: str = "", like: Node | None = None, **attributes: object
    ) -> str:
        """Add a node, and return the name of its output."""
        name = self.name(role or op_type.lower())
        self.nodes.append(NewNode(op_type, inputs, [name], attributes, like=like))
        return name

    def name(self, role: str) -> str:
        """Return a new name."""
        return self.editor.unique_name(f"{self.label}_{role}")

    def constant(self, array: np.ndarray, role: str) -> str:
        """Return the name of a constant."""
        return self.editor.constant(array, f"{self.label}_{role}")

    def integers(self, numbers: Sequence[int], role: str) -> str:
        """Return the name of an int64 constant of rank 1."""
        return self.editor.integers(numbers, f"{self.label}_{role}")

    def finish(self) -> list[NewNode]:
        """Return the nodes: the last one gives the output, and is like the node unless another one is."""
        *nodes, last = self.nodes
        like = None if any(node.like is self.node for node in nodes) else self.node
        return [*nodes, NewNode(last.op_type, last.inputs, [self.label], last.attributes, like=like)]

    def replace(self) -> None:
        """Put the nodes in the place of the node."""
        self.editor.replace(self.node, *self.finish())
