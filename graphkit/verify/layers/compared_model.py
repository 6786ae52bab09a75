"""One side of a comparison: the tensors and dims of a model's main graph, and which of its nodes compute the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphkit.errors import UsageError
from graphkit.graph.dataflow import values_read
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Value
from graphkit.matching.value_matching import Dims, GraphSide
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import DimSpec, Shapes, infer
from graphkit.verify.layers.legal_feeds import ArrayFile

__all__ = ["FLOATS", "HELD", "Pair", "Reader", "Side", "Steps", "constant_array"]

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


class Reader:
    """Gives the arrays of pairs.

    Args:
        pairs: What may be asked for.
        a: The model A.
        b: The model B, or its dumps.
        all_asked: Whether all of them will be.

    Attributes:
        steps: How often it was asked.
    """

    def __init__(self, pairs: Sequence[Pair], a: Side, b: Side | ArrayFile, *, all_asked: bool = True) -> None:
        self.steps = 0
        self.one = Steps(a, a.feed, [pair.a for pair in pairs], all_asked=all_asked)
        self.two: Steps | ArrayFile
        if isinstance(b, ArrayFile):
            self.two = b
        else:
            theirs = [pair.b for pair in pairs if isinstance(pair.b, Value)]
            self.two = Steps(b, b.feed, theirs, all_asked=all_asked)

    def read(self, some: Sequence[Pair]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return the arrays of some pairs."""
        self.steps += 1
        mine = self.one.values([pair.a for pair in some])
        if isinstance(self.two, ArrayFile):
            return zip(mine, map(self.two.beside, [pair.theirs for pair in some], mine), strict=True)
        return zip(mine, self.two.values([pair.b for pair in some if isinstance(pair.b, Value)]), strict=True)

    def keep(self) -> None:
        """Remember the tensors computed for them, to go on from there."""
        for steps in (self.one, self.two):
            if isinstance(steps, Steps):
                steps.keep()

    def back(self) -> None:
        """Go on from the tensors remembered last."""
        for steps in (self.one, self.two):
            if isinstance(steps, Steps):
                steps.back()


class Steps:
    """The tensors of a model's main graph, for one feed.

    Args:
        side: The model.
        feed: An array for each input without a default.
        pending: The tensors that may be asked for, in any order; others need more time. Whatever reads a tensor that
            cannot be held, such as a sequence, runs in the same step.
        all_asked: Whether all of them will be, so that one that is computed is held until then.
        given: Arrays that take the place of tensors.
    """

    def __init__(
        self,
        side: Side,
        feed: Mapping[str, np.ndarray],
        pending: Sequence[Value],
        *,
        all_asked: bool = True,
        given: Mapping[Value, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.model, self.graph, self.unholdable = side.model, side.model.graph, side.unholdable
        self.order, self.reads, self.readers = side.order, side.reads, side.readers
        self.fed = {value: feed[value.name] for value in self.graph.inputs if value.name in feed} | dict(given)
        self.held = dict(self.fed)
        self.relevant = self._needed_nodes(pending, frozenset())
        self.pending = set(pending) if all_asked else set()
        self.done: set[Node] = set()
        self.keep()

    def keep(self) -> None:
        """Remember the tensors that are held, and the nodes that are done."""
        self._kept = dict(self.held), set(self.done)

    def back(self) -> None:
        """Return to the state remembered last."""
        self.held, self.done = dict(self._kept[0]), set(self._kept[1])

    def values(self, tensors: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of some tensors.

        Raises:
            ModelError: The nodes that they need do not load, or fail.
        """
        fresh = [value for value in tensors if value not in self.held]
        constants = {value: self.model.array(value.tensor) for value in fresh if value.tensor is not None}
        nodes = self._nodes_together(
            self._needed_nodes([value for value in fresh if value not in constants], self.held.keys())
        )
        arrays = {**constants, **(self._run(nodes, tensors) if nodes else {})}
        result = [self.held[value] if value in self.held else arrays[value] for value in tensors]
        self.done |= nodes
        self.pending -= set(tensors)
        self.held.update((value, array) for value, array in arrays.items() if value not in constants)
        self.held = {**self.fed, **{value: array for value, array in self.held.items() if self._is_needed(value)}}
        return result

    def _is_needed(self, value: Value) -> bool:
        """Whether a value is asked for later, or read by a node that is still to run."""
        later = self.readers.get(value, ())
        return value in self.pending or any(node in self.relevant and node not in self.done for node in later)

    def _needed_nodes(self, ends: Iterable[Value], known: Iterable[Value]) -> set[Node]:
        """Return the nodes that some values need, where others are known."""
        stop, nodes = set(known), set[Node]()
        todo = [value.producer for value in ends if value.producer is not None and value not in stop]
        while todo:
            node = todo.pop()
            if node in nodes or node.scope is not self.graph:
                continue
            nodes.add(node)
            todo += [read.producer for read in self.reads[node] if read.producer is not None and read not in stop]
        return nodes

    def _nodes_together(self, nodes: set[Node]) -> set[Node]:
        """Return these nodes, and those that must run with them: the readers of tensors that cannot be held."""
        while True:
            loose = {
                reader
                for node in nodes
                for value in node.outputs
                if value in self.unholdable and value is not None
                for reader in self.readers.get(value, ())
                if reader in self.relevant and reader not in nodes
            }
            if not loose:
                return nodes
            read = [value for node in loose for value in self.reads[node]]
            nodes = (
                nodes
                | loose
                | self._needed_nodes([value for value in read if value not in self.held], self.held.keys())
            )

    def _run(self, nodes: set[Node], tensors: Sequence[Value]) -> dict[Value, np.ndarray]:
        computed = [value for node in nodes for value in node.outputs if value is not None]
        before = self.done
        self.done = before | nodes  # what only these nodes read is not held
        requested = set(tensors)
        outputs = [v for v in computed if v not in self.unholdable and (v in requested or self._is_needed(v))]
        self.done = before
        read = {value for node in nodes for value in self.reads[node]} - set(computed)
        inputs = {value.name: self.held[value] for value in read if value in self.held}
        part = self._make_part(sorted(nodes, key=self.order.__getitem__), read, inputs, outputs)
        with IsolatedSession(part, prepack=False) as session:
            arrays = session.run(inputs)
        return {value: arrays[value.name] for value in outputs}

    def _make_part(
        self, nodes: Sequence[Node], read: set[Value], inputs: Mapping[str, np.ndarray], outputs: Sequence[Value]
    ) -> Model:
        """Return a model of some nodes."""
        whole = self.model.proto
        proto = onnx.ModelProto(ir_version=whole.ir_version)
        proto.opset_import.extend(whole.opset_import)
        proto.functions.extend(whole.functions)
        graph = proto.graph
        graph.name = whole.graph.name
        graph.node.extend(node.proto for node in nodes)
        weights = [value for value in read if value.name not in inputs]
        graph.initializer.extend(value.tensor for value in weights if value.tensor is not None)
        graph.sparse_initializer.extend(value.sparse for value in weights if value.sparse is not None)
        for name, array in inputs.items():
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
        graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in outputs)
        return self.model.with_proto(proto)
