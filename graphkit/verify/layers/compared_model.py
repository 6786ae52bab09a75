"""One side of a comparison: the tensors and dims of a model's main graph, and which of its nodes compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.graph.dataflow import in_order, values_read
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.shapes import DimSpec, Shapes, infer

__all__ = [
    "FLOATS",
    "HELD",
    "Dims",
    "Pair",
    "Side",
    "constant_array",
    "corresponds",
    "known",
    "same_operator",
    "same_values",
]

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


COMMUTATIVE = ("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")


def same_operator(one: Node, two: Node) -> bool:
    """Whether two nodes have one operator and as many inputs."""
    return one.operator == two.operator and len(one.inputs) == len(two.inputs)


Constants = Callable[[Value, Value], bool]


def same_type(one: Value, two: Value) -> bool:
    """Whether two constants have one dtype and the same dims."""
    first, second = known(one), known(two)
    if first is None or second is None:
        return False
    return (first.data_type, first.dims) == (second.data_type, second.dims)


def same_values(a: Model, b: Model) -> Constants:
    """Return whether a constant of one model has the bytes of one of another."""

    def same(one: Value, two: Value) -> bool:
        tensors = known(one), known(two)
        if tensors[0] is None or tensors[1] is None or not same_type(one, two):
            return False
        if TensorProto.STRING in (tensors[0].data_type, tensors[1].data_type):
            return list(tensors[0].string_data) == list(tensors[1].string_data)
        return a.payload(tensors[0]) == b.payload(tensors[1])

    return same


def corresponds(one: Node, two: Node, matched: Mapping[Value, Value], constants: Constants = same_type) -> bool:
    """Whether two nodes compute the same, given which tensors match, and when constants do."""
    if not same_operator(one, two) or len(one.outputs) != len(two.outputs) or _attributes(one) != _attributes(two):
        return False
    if _pairwise(one.inputs, two.inputs, matched, constants):
        return True
    return one.is_op(*COMMUTATIVE) and _pairwise(one.inputs, two.inputs[::-1], matched, constants)


def _attributes(node: Node) -> dict[str, bytes]:
    return {name: attribute.SerializeToString(deterministic=True) for name, attribute in node.attributes.items()}


def _pairwise(
    ones: Sequence[Value | None], twos: Sequence[Value | None], matched: Mapping[Value, Value], constants: Constants
) -> bool:
    return all(_alike(x, y, matched, constants) for x, y in zip(ones, twos, strict=True))


def _alike(one: Value | None, two: Value | None, matched: Mapping[Value, Value], constants: Constants) -> bool:
    if one is None or two is None:
        return one is two
    if known(one) is not None and known(two) is not None:
        return constants(one, two)
    return matched.get(one) is two


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def known(value: Value) -> TensorProto | None:
    """Return the tensor that a value always equals, None where it is no constant."""
    met: set[Value] = set()
    while value.producer is not None and value.producer.is_op("Identity") and value not in met:
        met.add(value)
        source = value.producer.input(0)
        if source is None:
            return None
        value = source
    return value.constant


def constant_array(model: Model, tensor: TensorProto) -> np.ndarray:
    """Return a constant's array, a view of its file where it is external."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(model.payload(tensor), dtype).reshape(tuple(tensor.dims))
