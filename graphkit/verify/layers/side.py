"""One side of a comparison: the tensors of a model's main graph, with the dims that they have for one feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.graph.topological_order import in_order, values_read
from graphkit.graph.types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.shapes import DimSpec, Shapes, infer
from graphkit.verify.layers.structure import known

__all__ = ["HELD", "Dims", "Pair", "Side"]

Dims = tuple[int | None, ...] | None
HELD = frozenset(
    (
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.STRING),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
)  # dtypes that onnxruntime gives to numpy and takes from it


@dataclass(frozen=True, eq=False)
class Side:
    """A model and its feed.

    Attributes:
        model: The model.
        feed: An array for each input without a default.
    """

    model: Model
    feed: Mapping[str, np.ndarray]

    @cached_property
    def shapes(self) -> Shapes:
        """The shapes for these inputs."""
        spec = DimSpec.of(inputs={name: array.shape for name, array in self.feed.items()})
        try:
            return infer(self.model, spec)
        except UsageError:  # the inputs contradict what is declared of them, which onnxruntime may take
            return infer(self.model)

    @cached_property
    def order(self) -> Mapping[Node, int]:
        """The nodes of the main graph, each after those that it reads, with their places."""
        return {node: place for place, node in enumerate(in_order(self.model.graph))}

    @cached_property
    def reads(self) -> Mapping[Node, tuple[Value, ...]]:
        """The values of the main graph that each of its nodes reads, its bodies included."""
        main = self.model.graph
        return {node: tuple(value for value in values_read(node) if value.scope is main) for node in main.nodes}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes of the main graph that read each value, or have a body that does."""
        found: dict[Value, list[Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the main graph that compute something of its inputs, each after those that it reads."""
        return tuple(node for node in self.order if not _is_constant(node))

    @cached_property
    def place(self) -> Mapping[Value, int]:
        """The inputs and computed tensors of the main graph, in topological order, with their places."""
        inputs = [value for value in self.model.graph.inputs if value.name in self.feed]
        computed = [value for node in self.nodes for value in node.outputs if value is not None]
        return {value: place for place, value in enumerate([*inputs, *computed])}

    @cached_property
    def unholdable(self) -> frozenset[Value]:
        """The tensors that cannot be looked at: sequences, maps, dtypes that numpy lacks, and unknown ones."""
        return frozenset(value for value in self.place if self.dtype(value) not in HELD)

    def dtype(self, value: Value) -> int:
        """Return the dtype of a tensor, 0 where it is not known."""
        known = self.shapes[value].dtype
        if known:
            return known
        declared = declared_type(value)
        return 0 if declared is None else declared.dtype

    def dims(self, value: Value) -> Dims:
        """Return the dims of a tensor, as far as they are known."""
        dims = self.shapes[value].dims
        return None if dims is None else tuple(dim.constant for dim in dims)

    @cached_property
    def hidden(self) -> int:
        """The nodes in bodies, which cannot be looked at."""
        return sum(len(scope.nodes) for scope in self.model.graph.walk()) - len(self.model.graph.nodes)


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of A and its match: a tensor of B, or the name of a dump.

    Attributes:
        a: The tensor.
        b: What it is in B.
        how: What they were matched by.
    """

    a: Value
    b: Value | str
    how: str

    @property
    def theirs(self) -> str:
        """The name in B."""
        return self.b if isinstance(self.b, str) else self.b.name


def _is_constant(node: Node) -> bool:
    return node.is_op("Constant", "Identity") and all(known(value) for value in node.outputs if value is not None)
