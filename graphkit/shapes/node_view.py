"""A read-only view of a node for a rule: the known facts of its inputs, and its attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto

from graphkit.graph.attributes import T, attribute_value
from graphkit.graph.view import Node, Value
from graphkit.shapes.expr import Expr
from graphkit.shapes.tensor import Array, Dims, Element, Tensor, number

__all__ = ["NodeView", "UnknownError"]


class UnknownError(Exception):
    """The reason why a rule cannot know something; the engine catches it."""


class NodeView:
    """A node, its attributes, and the known facts of its inputs."""

    def __init__(self, node: Node, inputs: Sequence[Tensor | None], attributes: Mapping[str, AttributeProto]) -> None:
        self.node, self.inputs, self.attributes = node, inputs, attributes

    # Inputs

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self.node.scope.opset()

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int = 0) -> Tensor:
        """Return an input."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise UnknownError(f"input {index} is missing")
        return found

    def name(self, index: int) -> str:
        """Return the name of an input."""
        value = self.node.input(index)
        return f"'{value.name}'" if isinstance(value, Value) else f"input {index}"

    def dims(self, index: int = 0) -> Dims:
        """Return the dims of an input, whose rank must be known."""
        found = self.tensor(index)
        if found.dims is None:
            raise UnknownError(found.reason or f"the rank of {self.name(index)} is unknown")
        return found.dims

    def data(self, index: int) -> Array | None:
        """Return the elements of an input, None if it is left out or they are not known."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return None if found is None else found.data

    def values(self, index: int) -> list[Element]:
        """Return the elements of an input, which must be known."""
        data = self.data(index)
        if data is None:
            reason = self.tensor(index).reason
            raise UnknownError(f"the value of {self.name(index)} is unknown" + (f": {reason}" if reason else ""))
        elements: list[Element] = data.ravel().tolist()
        return elements

    def numbers(self, index: int) -> list[int]:
        """Return the elements of an integer input, which must be numbers."""
        found = [number(element) for element in self.values(index)]
        if None in found:
            raise UnknownError(f"the value of {self.name(index)} is not a constant")
        return [n for n in found if n is not None]

    def exprs(self, index: int) -> list[Expr]:
        """Return the elements of an integer input as expressions."""
        return [Expr.of(element) for element in self.values(index)]  # type: ignore[arg-type]

    def scalar(self, index: int) -> Element:
        """Return the only element of an input."""
        values = self.values(index)
        if len(values) != 1:
            raise UnknownError(f"{self.name(index)} is not a single number")
        return values[0]

    # Attributes

    def attr(self, name: str, default: T | type[T]) -> T:
        """Return the value of an attribute, which must be known, as `attribute_value` does."""
        attribute = self.attributes.get(name)
        found = attribute_value(attribute, default)
        if found is None:
            raise UnknownError(f"its attribute '{name}' is {'missing' if attribute is None else 'of another kind'}")
        return found

    def axes(self, index: int, since: int) -> Sequence[int] | None:
        """Return axes, None if they are not given: an input since an opset, an attribute before."""
        if self.opset >= since and not self.node.domain:
            return self.numbers(index) if self.has(index) else None
        return self.attr("axes", ()) if "axes" in self.attributes else None

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= value < rank:
            raise UnknownError(f"axis {value} is out of range")
        return value % rank
