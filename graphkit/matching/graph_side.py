"""One of two graphs that are matched: its nodes, and the values that may match, in topological order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

from onnx import TensorProto

from graphkit.graph.dataflow import in_order
from graphkit.graph.traversal import chain_end
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model

__all__ = ["Dims", "GraphSide", "known_tensor", "source_of"]

Dims = tuple[int | None, ...] | None


class GraphSide(ABC):
    """A graph of a model.

    Attributes:
        model: The model.
    """

    model: Model

    @property
    def scope(self) -> Scope:
        """The graph."""
        return self.model.graph

    @property
    def inputs(self) -> Sequence[Value]:
        """The inputs that may match."""
        return self.scope.inputs

    @abstractmethod
    def dims(self, value: Value) -> Dims:
        """Return the dims of a tensor, as far as they are known."""

    @cached_property
    def order(self) -> Mapping[Node, int]:
        """The nodes of the graph, each after those that it reads, with their places."""
        return {node: place for place, node in enumerate(in_order(self.scope))}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph that compute something of its inputs, each after those that it reads."""
        return tuple(node for node in self.order if not _is_constant(node))

    @cached_property
    def place(self) -> Mapping[Value, int]:
        """The inputs and computed tensors of the graph, in topological order, with their places."""
        computed = [value for node in self.nodes for value in node.outputs if value is not None]
        return {value: place for place, value in enumerate([*self.inputs, *computed])}


def _is_constant(node: Node) -> bool:
    return node.is_op("Constant", "Identity") and all(
        known_tensor(value) for value in node.outputs if value is not None
    )


def known_tensor(value: Value) -> TensorProto | None:
    """Return the tensor that a value always equals, None where it is no constant."""
    return source_of(value).constant


def source_of(value: Value) -> Value:
    """Return the value that another one is, by Identity nodes alone."""

    def before(value: Value) -> Value | None:
        return value.producer.input(0) if value.producer is not None and value.producer.is_op("Identity") else None

    return chain_end(value, before)
