"""The sizes of one node's inputs and outputs, as the rules of costs read them, and the bytes that it moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from graphkit.dtypes import BITS, dtype_name
from graphkit.graph.operator_traits import RESHAPING, operator_set
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims, TensorSequence
from graphkit.shapes import Expr, Shapes, UnknownError, ceil_div, const

__all__ = ["VIEWS", "NodeSizes", "Rule", "bytes_moved", "bytes_of", "product"]


class NodeSizes:
    """A node with the dims of its inputs and outputs. An unknown dim raises UnknownError with the reason."""

    def __init__(self, node: Node, shapes: Shapes) -> None:
        self.node, self.shapes = node, shapes

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return self.node.input(index) is not None

    def dims(self, index: int = 0) -> Dims:
        """Return the dims of an input."""
        return self._dims(self.node.input(index), f"input {index}")

    def output(self, index: int = 0) -> Dims:
        """Return the dims of an output."""
        outputs = self.node.outputs
        return self._dims(outputs[index] if index < len(outputs) else None, f"output {index}")

    def _dims(self, value: Value | None, what: str) -> Dims:
        if value is None:
            raise UnknownError(f"its {what} is left out")
        dims = self.shapes.dims(value)
        if dims is None:
            raise UnknownError(self.shapes.reason(value) or f"the rank of its {what} is not known")
        return dims

    def ranked(self, index: int, *ranks: int) -> Dims:
        """Return the dims of an input that must have one of these ranks."""
        dims = self.dims(index)
        if len(dims) not in ranks:
            raise UnknownError(f"its input {index} has rank {len(dims)}")
        return dims

    def elements(self, index: int = 0) -> Expr:
        """Return the number of elements of an input."""
        return product(self.dims(index))

    def results(self, index: int = 0) -> Expr:
        """Return the number of elements of an output."""
        return product(self.output(index))

    def number(self, name: str, default: int | type[int]) -> int:
        """Return the value of an integer attribute."""
        value = self.node.attr(name, default)
        if value is None:
            raise UnknownError(f"its attribute '{name}' is not known")
        return value


Rule = Callable[[NodeSizes], Expr]


def product(dims: Iterable[Expr]) -> Expr:
    """Return the product of dims."""
    return _multiply_dims(tuple(dims))


@lru_cache(maxsize=8192)  # layers repeat
def _multiply_dims(dims: Dims) -> Expr:
    return math.prod(dims, start=const(1))


def bytes_of(value: Value, shapes: Shapes) -> Expr:
    """Return the bytes of a tensor, its elements packed as ONNX stores them.

    Raises:
        UnknownError: Its dtype has no fixed size, or its dtype or its rank is not known.
    """
    tensor = shapes[value]
    if isinstance(tensor, TensorSequence):
        raise UnknownError(f"'{value.name}' is a sequence")
    if tensor.dims is None:
        raise UnknownError(shapes.reason(value) or f"the rank of '{value.name}' is not known")
    bits = BITS.get(tensor.dtype)
    if bits is None:
        dtype = dtype_name(tensor.dtype) if tensor.dtype else "unknown"
        raise UnknownError(f"the dtype of '{value.name}' is {dtype}, which has no fixed size")
    return _count_bytes(tensor.dims, bits)


@lru_cache(maxsize=8192)
def _count_bytes(dims: Dims, bits: int) -> Expr:
    count = product(dims)
    return count * (bits // 8) if bits % 8 == 0 else ceil_div(count * bits, 8)


VIEWS = RESHAPING | operator_set("BitCast Dropout Identity")  # the output has the bytes of the first input
SHAPE_ONLY = operator_set("Shape Size EyeLike RandomNormalLike RandomUniformLike")  # read nothing of the first input
PICKING = operator_set("Compress Gather GatherElements GatherND Slice Split") | operator_set(
    "GatherBlockQuantized", "com.microsoft"
)


def bytes_moved(node: Node, shapes: Shapes) -> Expr:
    """Return the bytes that a node reads and writes: each input read once, each output written once.

    Nothing counts for a node that gives its input another shape, which no runtime copies; an operator that picks
    elements reads as many as it gives. Weights count as they are stored: int4 as half a byte.

    Raises:
        UnknownError: A size is not known.
    """
    if node.operator in VIEWS or node.is_op("Constant"):
        return const(0)
    outputs = node.results
    return _sum_sizes(
        tuple(bytes_of(value, shapes) for values in (_values_read(node, outputs), outputs) for value in values)
    )


def _values_read(node: Node, outputs: Sequence[Value]) -> Iterator[Value]:
    """Yield what a node reads: for an operator that picks elements, as much as it gives in place of its first input."""
    for index, value in enumerate(node.inputs):
        if index == 0 and node.operator in PICKING:
            yield from outputs
        elif value is not None and not (index == 0 and node.operator in SHAPE_ONLY):
            yield value


@lru_cache(maxsize=8192)  # layers repeat
def _sum_sizes(sizes: tuple[Expr, ...]) -> Expr:
    return sum(sizes, start=const(0))
