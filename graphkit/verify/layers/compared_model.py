"""One side of a comparison: the tensors and dims of a model's main graph, and which of its nodes compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.graph.dataflow import values_read
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.matching.graph_side import Dims, GraphSide
from graphkit.model import Model
from graphkit.shapes import DimSpec, Shapes, infer

__all__ = [
    "FLOATS",
    "HELD",
    "Pair",
    "Side",
    "constant_array",
]

HELD = frozenset(
    (
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.STRING),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
)  # dtypes that onnxruntime gives to numpy and takes from it


@dataclass(frozen=True, eq=False)
class Side(GraphSide):
    """A model and its feed.

    Attributes:
        model: The model.
        feed: An array for each input without a default.
    """

    model: Model
    feed: Mapping[str, np.ndarray]

    @property
    def spec(self) -> DimSpec:
        """The shapes of these inputs."""
        return DimSpec.of(inputs={name: array.shape for name, array in self.feed.items()})

    @cached_property
    def shapes(self) -> Shapes:
        """The shapes for these inputs."""
        try:
            return infer(self.model, self.spec)
        except UsageError:  # the inputs contradict what is declared of them, which onnxruntime may take
            return infer(self.model)

    @property
    def inputs(self) -> Sequence[Value]:
        """The inputs that are fed."""
        return [value for value in self.model.graph.inputs if value.name in self.feed]

    @cached_property
    def reads(self) -> Mapping[Node, tuple[Value, ...]]:
        """The values of the main graph that each of its nodes reads, its bodies included."""
        main = self.model.graph
        return {node: tuple(value for value in values_read(node) if value.scope is main) for node in main.nodes}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes of the main graph that read each value, or have a body that does."""
        readers: dict[Value, list[Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                readers.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in readers.items()}

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


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def constant_array(model: Model, tensor: TensorProto) -> np.ndarray:
    """Return a constant's array, a view of its file where it is external."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(model.payload(tensor), dtype).reshape(tuple(tensor.dims))
