"""What the shape engine says of single nodes, each a claim that onnxruntime can be asked about."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import isfinite

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from graphkit.dtypes import BITS, FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.number_limits import exact_range
from graphkit.ops.tensor import Ratio, Tensor, TensorSequence
from graphkit.shapes import Expr, Shapes
from graphkit.shapes.constraints.evaluate_constraints import Values, size_column
from graphkit.symbolic.expr import Symbol
from graphkit.symbolic.relations import Requirement
from graphkit.verify.equivalence.reading import Reading

__all__ = ["STEPS", "TIMES", "Claim", "claims_of", "has_elements", "least_size", "sized_expressions"]

MAX_NUMBERS = 30  # of a constant, near which sizes are tried
MAX_CONSTANT = 1 << 12  # bytes of a constant that a node reads as it is
BYTES, STEPS = 1 << 20, 1 << 22  # of the tensors around a node, and of its work, where it can be as small
MAX_BYTES, MAX_STEPS = 1 << 27, 1 << 29  # above which the dims are compared that onnxruntime infers when it loads it
UNTOUCHED = 1 << 11  # bytes of zeros of which nothing is read, to count for one
TIMES = 32  # as much as at its least sizes


@dataclass(eq=False)
class Claim:
    """What the shape engine says of a node's outputs, given what it says of the inputs.

    Attributes:
        constants: The inputs that are small constants, as the model has them.
        limits: Up to which numbers its rule holds.
        equal: What must be equal for it to run.
        is_needed: Whether elements that are known depend on it.
    """

    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    constants: Mapping[int, TensorProto]
    limits: tuple[Requirement, ...]
    equal: tuple[Requirement, ...]
    is_needed: bool

    @cached_property
    def key(self) -> Hashable:
        """All that it depends on."""
        node = NodeProto()
        node.CopyFrom(self.node.proto)
        for name in ("name", "doc_string", "metadata_props", "input", "output"):
            node.ClearField(name)
        constants = tuple((at, tensor.SerializeToString(deterministic=True)) for at, tensor in self.constants.items())
        read = tuple(
            None if each is None or at in self.constants else _tensor_facts(each) for at, each in enumerate(self.inputs)
        )
        told = tuple(None if each is None else _tensor_facts(each) for each in self.outputs)
        versions = self.node.scope.opset(), self.node.scope.opset(self.node.domain)
        return node.SerializeToString(deterministic=True), versions, constants, read, told

    @cached_property
    def read(self) -> list[Tensor]:
        """The tensors that it reads, but for constants."""
        return [each for at, each in enumerate(self.inputs) if each is not None and at not in self.constants]

    @cached_property
    def told(self) -> list[Tensor]:
        """The tensors that it gives."""
        return [each for each in self.outputs if each is not None and each.dims is not None]

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """The symbols of what it reads."""
        return {each.name: each for expr in _tensor_expressions(self.read) for each in expr.walk_symbols()}

    @property
    def says_something(self) -> bool:
        """Whether it says of an output what is not a new unknown: a dim, or an element."""
        fresh = {
            name for expr in _tensor_expressions(self.told) for name in expr.symbols if name[:1] == "?"
        } - self.symbols.keys()
        parts = chain.from_iterable((*(each.dims or ()), *_tensor_elements(each)) for each in self.told)
        return any(not isinstance(each, Expr) or fresh.isdisjoint(each.symbols) for each in parts)

    @property
    def is_of_numbers(self) -> bool:
        """Whether no tensor has to be as long as a size."""
        return all(has_elements(each) or each.sizes() is not None for each in self.read)

    @property
    def numbers(self) -> set[int]:
        """Numbers near which it may change: those in it."""
        found = {int(factor) for expr in _tensor_expressions([*self.read, *self.told]) for _, factor in expr.terms}
        for tensor in self.constants.values():
            if tensor.data_type in INTEGERS:
                found.update(numpy_helper.to_array(tensor).ravel()[:MAX_NUMBERS].tolist())
        return {number + step for number in found for step in (-1, 0, 1)}

    def legal(self, values: Values) -> np.ndarray:
        """Return at which sizes the node may run, all numbers are as its rule takes them, and it is not too large."""
        legal = np.ones(values.count, bool)
        for tensor in (*self.read, *self.told):
            if tensor.dtype in INTEGERS or tensor.dtype in FLOATS:
                least, most = exact_range(tensor.dtype)
                for expr in sized_expressions(_exprs_of(tensor), values):
                    legal &= (values.of(expr) >= least) & (values.of(expr) <= most)
        for limit in self.limits:
            legal &= np.logical_and.reduce(
                [values.of(each) <= int(limit.right) for each in sized_expressions([limit.left], values)]
            )
        for equal in self.equal:
            if len(sides := [*sized_expressions((equal.left, equal.right), values)]) == 2:
                legal &= values.of(sides[0]) == values.of(sides[1])
        for usual, largest, weight in zip((BYTES, STEPS), (MAX_BYTES, MAX_STEPS), self.weights(values), strict=True):
            legal &= (weight <= usual) | ((weight <= TIMES * weight[0]) & (weight <= largest)) | self.is_large
        return legal

    @cached_property
    def is_large(self) -> bool:
        """Whether it takes too much to run it at any size."""
        bytes_of_least, steps = self.weights(
            Values({each.name: size_column([least_size(each)]) for each in self.symbols.values()})
        )
        return bool(bytes_of_least[0] > MAX_BYTES or steps[0] > MAX_STEPS)

    @property
    def reads_dims(self) -> bool:
        """Whether it reads nothing but the dims of its input."""
        return self.node.op_type in ("Shape", "Size")

    def weights(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Return about how many bytes its tensors have, and how many steps it takes: of the first sizes, the least."""
        counts, total = [], np.zeros(values.count)
        for tensor in (*self.read, *self.told):
            dims = (values.of(dim).astype(float) for dim in sized_expressions(tensor.dims or (), values))
            counts.append(np.prod([np.maximum(dim, 0) for dim in dims], axis=0) * np.ones(values.count))
            total += counts[-1] * (BITS.get(tensor.dtype, 64) / 8)
        if self.reads_dims:
            return total / UNTOUCHED, np.zeros(values.count)
        largest = sorted(counts, key=lambda count: -float(count.max()))[:3]  # rows*inner, inner*columns, rows*columns
        return total, np.sqrt(np.prod(largest, axis=0)) if len(largest) == 3 else np.sum(counts, axis=0)


def _tensor_facts(tensor: Tensor) -> Hashable:
    if isinstance(tensor, TensorSequence):
        return tuple(map(_tensor_facts, tensor.items)) if tensor.items is not None else (tensor.common, tensor.length)
    return tensor.dtype, tensor.dims, tensor.elements if tensor.may_have_data else None


def has_elements(tensor: Tensor) -> bool:
    """Whether something is said of the elements of a tensor."""
    return tensor.may_have_data and tensor.data is not None


def _tensor_elements(tensor: Tensor) -> Sequence[Expr | float]:
    found = tensor.elements or () if tensor.may_have_data else ()
    return [each.dividend if isinstance(each, Ratio) else each for each in found]


def _exprs_of(tensor: Tensor) -> list[Expr]:
    return [each for each in _tensor_elements(tensor) if isinstance(each, Expr)]


def _tensor_expressions(tensors: Iterable[Tensor]) -> Iterator[Expr]:
    for tensor in tensors:
        yield from tensor.dims or ()
        yield from _exprs_of(tensor)
        if isinstance(tensor, TensorSequence):
            yield from _tensor_expressions(tensor.items or ())


def sized_expressions(exprs: Iterable[Expr], values: Values) -> Iterator[Expr]:
    """Yield the expressions all of whose symbols have sizes."""
    return (expr for expr in exprs if expr.symbols <= values.columns.keys())


def claims_of(reading: Reading, shapes: Shapes) -> Iterator[Claim]:
    """Yield what is said of the nodes of a model that run, but for constants and nodes with bodies."""
    noted: dict[Node, tuple[list[Requirement], list[Requirement]]] = {}
    for place, requirements in enumerate((shapes.limits, shapes.equalities)):
        for each in requirements:
            noted.setdefault(each.node, ([], []))[place].append(each)
    told = [
        value for value in reading.values if (tensor := shapes.first.get(value)) is not None and has_elements(tensor)
    ]
    needed = {*walk_breadth_first(filter(None, map(_producing_node, told)), _producing_nodes)}
    for node in reading.nodes:
        outputs = tuple(None if value is None else shapes.first.get(value) for value in node.outputs)
        if node.constant is not None or node.bodies:
            continue
        inputs = tuple(None if value is None else shapes.first.get(value, Tensor(0, None)) for value in node.inputs)
        constants = {
            at: constant
            for at, value in enumerate(node.inputs)
            if (constant := _small_constant(reading.model, value)) is not None
        }
        notes = noted.get(node, ((), ()))
        claim = Claim(
            node=node,
            inputs=inputs,
            outputs=outputs,
            constants=constants,
            limits=tuple(notes[0]),
            equal=tuple(notes[1]),
            is_needed=node in needed,
        )
        if claim.told and claim.says_something:
            yield claim


def _producing_node(value: Value) -> Node | None:
    """Return the node that gives a value, of an input of a body the node around it."""
    return value.producer or value.scope.owner


def _producing_nodes(node: Node) -> Iterator[Node | None]:
    yield from map(
        _producing_node, (*node.operands, *(value for body in node.bodies.values() for value in body.outputs))
    )


def _small_constant(model: Model, value: Value | None) -> TensorProto | None:
    """Return a constant that is read as it is, with its bytes in it."""
    tensor = None if value is None else value.constant
    if tensor is None or (payload_size(tensor) or 0) > MAX_CONSTANT:
        return None
    copy = TensorProto()
    copy.CopyFrom(tensor)
    for name in ("name", "doc_string", "metadata_props"):
        copy.ClearField(name)
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            copy.raw_data = bytes(model.payload(tensor))
        except ModelError:  # its file is missing
            return None
        del copy.external_data[:]
        copy.ClearField("data_location")
    return copy


def least_size(symbol: Symbol) -> int:
    """Return the least size that a symbol may have, 0 where it has none."""
    return int(symbol.lower) if isfinite(symbol.lower) else 0
