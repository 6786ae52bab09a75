"""What is known of a node's inputs at all sizes at which the nodes before it run."""

from __future__ import annotations

from graphkit.graph.view import Node, Value
from graphkit.shapes import Expr, Shapes, Tensor, is_known
from graphkit.shapes.node_view import NodeView
from graphkit.shapes.tensor import unknown

__all__ = ["Known"]


class Known:
    """A table of tensors, and a view of each node for rules.

    The first pass of an inference assumes nothing that only later nodes need. The last pass stands in for tensors that
    the first one does not know.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.found: dict[Value, Tensor] = {}

    def tensor(self, value: Value) -> Tensor:
        """Return what is known of a value."""
        found = self.found.get(value)
        if found is None:
            found = self.found[value] = self._tensor(value)
        return found

    def _tensor(self, value: Value) -> Tensor:
        first = self.shapes.first.get(value)
        if first is not None and first.is_known and (not first.may_have_data or _is_known_data(first)):
            return first
        last = self.shapes.table.get(value)
        return last or first or unknown("nothing leads to it")

    def view(self, node: Node) -> NodeView | None:
        """Return a view of a node for its rule; None if an attribute comes from a function's call."""
        if any(attribute.ref_attr_name for attribute in node.attributes.values()):
            return None
        inputs = [None if value is None else self.tensor(value) for value in node.inputs]
        return NodeView(node, inputs, node.attributes)


def _is_known_data(tensor: Tensor) -> bool:
    data = tensor.data if tensor.is_shape_like else None
    return data is None or all(is_known(element) for element in data.ravel().tolist() if isinstance(element, Expr))
