"""The Shape nodes of a model, and the nodes that need each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.blocks import Block, Prose, table
from graphkit.render.result import Result

__all__ = ["Feeds", "RemainingShape", "RemainingShapes", "remaining_shapes"]

SHOWN = 3  # consumers of one Shape that are named
SHOWN_NODES = 12  # in a text


@dataclass(frozen=True)
class Feeds:
    """An input that a Shape reaches, directly or through shape computations.

    Attributes:
        node: Path of the node, which does not compute a shape itself.
        input: Name of the input if its value is read, else its index.
    """

    node: str
    op: str
    input: str

    def __str__(self) -> str:
        return f"{self.op} {self.node} ({self.input})"


@dataclass(frozen=True)
class RemainingShape:
    """A Shape or Size node.

    Attributes:
        measures: The tensor whose shape it reads.
        feeds: The inputs that it reaches.
    """

    node: str
    measures: str
    feeds: tuple[Feeds, ...]


@dataclass(frozen=True)
class RemainingShapes(Result):
    """The Shape nodes of a model, and why they are there."""

    title: ClassVar[str] = "Remaining shapes"
    shapes: tuple[RemainingShape, ...]

    def blocks(self) -> Iterator[Block]:
        if not self.shapes:
            yield Prose("No node reads the shape of a tensor.")
            return
        yield table(
            "Node:code | Reads shape of:code | Feeds:number | Such as:note",
            [
                (
                    shape.node,
                    shape.measures,
                    len(shape.feeds),
                    f"feeds {', '.join(map(str, shape.feeds[:SHOWN]))}" if shape.feeds else "feeds nothing",
                )
                for shape in self.shapes[:SHOWN_NODES]
            ],
        )
        if len(self.shapes) > SHOWN_NODES:
            yield Prose(f"... and {len(self.shapes) - SHOWN_NODES:,} more in the JSON report.")


def remaining_shapes(model: ModelLike, *, without: Collection[str] = ()) -> RemainingShapes:
    """List the Shape and Size nodes of a model with the nodes that need them.

    Args:
        model: The model, or its path.
        without: Paths of bodies to leave out.

    Returns:
        Each Shape and Size node, with the inputs that it reaches.

    Example:
        >>> print(graphkit.remaining_shapes(graphkit.load("example:causal-attention")).shapes[0].feeds[0])
        Range /Range (limit)
    """
    model = as_model(model)
    left = [scope for scope in model.graph.walk() if scope.path in without]
    nodes = [node for node in all_nodes(model.scopes) if node.is_op("Shape", "Size")]
    nodes = [node for node in nodes if not any(body.contains(node.scope) for body in left)]
    return RemainingShapes(tuple(_remaining(model, node) for node in nodes))


def _remaining(model: Model, node: Node) -> RemainingShape:
    source = node.input(0)
    return RemainingShape(node.path, source.name if source is not None else "?", tuple(_feeds(model, node)))


def _feeds(model: Model, node: Node) -> Iterator[Feeds]:
    """Yield the inputs that a node's outputs reach through nodes that compute shapes."""
    seen: set[Value] = set()
    pending = [value for value in node.outputs if value is not None]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in value.scope.outputs:
            owner = value.scope.owner
            if owner is None:
                yield Feeds(value.name, "output", "output")
            elif owner.is_op("If"):
                pairs = zip(owner.outputs, value.scope.outputs, strict=False)
                pending += [outer for outer, inner in pairs if inner is value and outer is not None]
            else:
                yield Feeds(owner.path, owner.operator, "output")
        for consumer, index in value.consumers:
            if model.shape_tensors.works_on_shapes(consumer):
                pending += [output for output in consumer.outputs if output is not None]
            else:
                yield Feeds(consumer.path, consumer.operator, value_inputs(consumer).get(index, f"input {index}"))
