"""Bytes that a node moves, as an expression in the input dims: each input read once, each output written once.

Nothing counts for a node that gives its input another shape, which no runtime copies; an operator that picks elements
reads as many as it gives. Weights count as they are stored: int4 as half a byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from graphkit.analysis.costs.node_sizes import bytes_of
from graphkit.graph.operator_traits import RESHAPING, names
from graphkit.graph.view import Node, Value
from graphkit.shapes import Expr, Shapes, const

__all__ = ["VIEWS", "bytes_moved"]

VIEWS = RESHAPING | names("BitCast Dropout Identity")  # the output has the bytes of the first input
SHAPE_ONLY = names("Shape Size EyeLike RandomNormalLike RandomUniformLike")  # read nothing of the first input
PICKING = names("Compress Gather GatherElements GatherND Slice Split") | names("GatherBlockQuantized", "com.microsoft")


def bytes_moved(node: Node, shapes: Shapes) -> Expr:
    """Return the bytes that a node reads and writes.

    Raises:
        UnknownError: A size is not known.
    """
    if node.operator in VIEWS or node.is_op("Constant"):
        return const(0)
    outputs = node.results
    return _sum(tuple(bytes_of(value, shapes) for values in (_read(node, outputs), outputs) for value in values))


def _read(node: Node, outputs: Sequence[Value]) -> Iterator[Value]:
    """Yield what a node reads: for an operator that picks elements, as much as it gives in place of its first input."""
    for index, value in enumerate(node.inputs):
        if index == 0 and node.operator in PICKING:
            yield from outputs
        elif value is not None and not (index == 0 and node.operator in SHAPE_ONLY):
            yield value


@lru_cache(maxsize=8192)  # layers repeat
def _sum(sizes: tuple[Expr, ...]) -> Expr:
    return sum(sizes, start=const(0))
