"""The least and the greatest element of an integer tensor, where it takes both: indices into a table.

Followed are what positions are made of: Range, CumSum over a mask, offsets, and what only moves elements. Masks are
thought of as all ones, and token ids as no padding: that is when positions reach furthest. What is not known to be
reached is not known at all: an index that never occurs is no hazard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.constraints.known import Known
from graphkit.graph.view import Node, Value
from graphkit.io.tensors import inline_array
from graphkit.shapes import Expr, const, is_known, lower, maximum, minimum
from graphkit.shapes.tensor import INTEGERS, Ratio

__all__ = ["Extent", "Extents"]

MAX_DEPTH = 64
MOVES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Flatten", "Expand", "Tile")
ENDLESS = (1 << 31) - 1


@dataclass(frozen=True)
class Extent:
    """Least and greatest element; uniform if every element is that number."""

    low: Expr
    high: Expr

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are equal."""
        return self.low == self.high


def _uniform(value: Expr | int) -> Extent:
    return Extent(Expr.of(value), Expr.of(value))


class Extents:
    """The extents of a model's tensors, each looked at once."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.found: dict[Value, Extent | None] = {}

    def of(self, value: Value | None, depth: int = 0) -> Extent | None:
        """Return the extent of a tensor's elements, None where it is not known."""
        if value is None or depth > MAX_DEPTH:
            return None
        if value not in self.found:
            self.found[value] = None  # against cycles
            self.found[value] = self._of(value, depth + 1)
        return self.found[value]

    def _of(self, value: Value, depth: int) -> Extent | None:
        if (given := self._elements(value)) is not None:
            return given
        node = value.producer
        if node is None or node.domain:
            return _uniform(1) if _is_mask(value) else None
        if node.op_type in MOVES:
            return self.of(node.input(0), depth)
        rule = _RULES.get(node.op_type)
        found = rule(self, node, depth) if rule is not None else None
        return found if found is not None and is_known(found.low) and is_known(found.high) else None

    def _elements(self, value: Value) -> Extent | None:
        tensor = self.known.tensor(value)
        if not tensor.may_have_data or tensor.dtype not in INTEGERS or not tensor.elements:
            return None
        elements = set(tensor.elements)
        exprs = [element for element in elements if isinstance(element, Expr) and is_known(element)]
        if len(exprs) < len(elements) or (len(exprs) > 8 and any(expr.constant is None for expr in exprs)):
            return None
        return Extent(minimum(*exprs), maximum(*exprs))

    def scalar(self, value: Value | None) -> Expr | None:
        """Return the one element of a tensor."""
        tensor = self.known.tensor(value) if value is not None else None
        elements = tensor.elements if tensor is not None and tensor.may_have_data else None
        if elements is None or len(elements) != 1 or isinstance(elements[0], Ratio):
            return None
        element = elements[0]
        if isinstance(element, float):
            return const(int(element)) if element.is_integer() else None
        return element

    def are_apart(self, node: Node) -> bool:
        """Whether the two inputs vary along different axes, so that each element of one meets each of the other."""
        left, right = (self.known.tensor(value).dims if value else None for value in node.inputs[:2])
        if left is None or right is None:
            return False
        return all(1 in (a, b) for a, b in zip(left[::-1], right[::-1], strict=False))


def _is_mask(value: Value) -> bool:
    return value.kind == "input" and not value.scope.path and "mask" in value.name


def _is_input(value: Value | None) -> bool:
    """Whether a value is an input of the graph, moved or cast at most."""
    for _ in range(MAX_DEPTH):
        if value is None or value.producer is None or not value.producer.is_op(*MOVES):
            break
        value = value.producer.input(0)
    return value is not None and value.kind == "input" and not value.scope.path


def _range(extents: Extents, node: Node, depth: int) -> Extent | None:  # noqa: ARG001 - one signature for all
    start, limit, delta = (extents.scalar(value) for value in node.inputs[:3])
    if start is None or limit is None or delta != 1:
        return None
    return Extent(start, limit - 1)


def _cum_sum(extents: Extents, node: Node, depth: int) -> Extent | None:
    found, axis = extents.of(node.input(0), depth), extents.scalar(node.input(1))
    dims = extents.known.tensor(node.inputs[0]).dims if node.inputs[0] is not None else None
    flags = [node.attributes[name].i for name in ("exclusive", "reverse") if name in node.attributes]
    if found is None or not found.is_uniform or axis is None or axis.constant is None or dims is None or any(flags):
        return None
    step = found.low.constant
    if step is None or step < 0 or not -len(dims) <= axis.constant < len(dims):
        return None
    return Extent(found.low, dims[axis.constant] * step)


def _both(extents: Extents, node: Node, depth: int) -> tuple[Extent, Extent] | None:
    """Return the extents of two inputs whose extremes meet."""
    left, right = extents.of(node.input(0), depth), extents.of(node.input(1), depth)
    if left is None or right is None:
        return None
    return (left, right) if left.is_uniform or right.is_uniform or extents.are_apart(node) else None


def _add(extents: Extents, node: Node, depth: int) -> Extent | None:
    pair = _both(extents, node, depth)
    return None if pair is None else Extent(pair[0].low + pair[1].low, pair[0].high + pair[1].high)


def _subtract(extents: Extents, node: Node, depth: int) -> Extent | None:
    pair = _both(extents, node, depth)
    return None if pair is None else Extent(pair[0].low - pair[1].high, pair[0].high - pair[1].low)


def _multiply(extents: Extents, node: Node, depth: int) -> Extent | None:
    pair = _both(extents, node, depth)
    if pair is None:
        return None
    factor, other = pair if pair[0].is_uniform else pair[::-1]
    if not factor.is_uniform or lower(factor.low) < 0:
        return None
    return Extent(factor.low * other.low, factor.low * other.high)


def _extreme(function: Callable[[Expr, Expr], Expr]) -> Callable[[Extents, Node, int], Extent | None]:
    def extreme(extents: Extents, node: Node, depth: int) -> Extent | None:
        pair = _both(extents, node, depth) if len(node.inputs) == 2 else None
        if pair is None or not (pair[0].is_uniform or pair[1].is_uniform):
            return None
        return Extent(function(pair[0].low, pair[1].low), function(pair[0].high, pair[1].high))

    return extreme


def _clip(extents: Extents, node: Node, depth: int) -> Extent | None:
    found = extents.of(node.input(0), depth)
    for index, function in ((1, maximum), (2, minimum)):
        if found is not None and node.input(index) is not None:
            limit = extents.scalar(node.input(index))
            found = None if limit is None else Extent(function(found.low, limit), function(found.high, limit))
    return found


def _where(extents: Extents, node: Node, depth: int) -> Extent | None:
    condition = extents.of(node.input(0), depth)
    chosen = condition.low.constant if condition is not None and condition.is_uniform else None
    return None if chosen is None else extents.of(node.input(1 if chosen else 2), depth)


def _equal(extents: Extents, node: Node, depth: int) -> Extent | None:
    left, right = extents.of(node.input(0), depth), extents.of(node.input(1), depth)
    if left is not None and right is not None and left.is_uniform and right.is_uniform:
        difference = (left.low - right.low).constant
        return None if difference is None else _uniform(int(difference == 0))
    is_of_ids = any(_is_input(value) for value in node.inputs)
    is_with_padding = any(found is not None and found.is_uniform for found in (left, right))
    return _uniform(0) if is_of_ids and is_with_padding else None


def _not(extents: Extents, node: Node, depth: int) -> Extent | None:
    found = extents.of(node.input(0), depth)
    value = found.low.constant if found is not None and found.is_uniform else None
    return None if value is None else _uniform(int(not value))


def _constant_of_shape(extents: Extents, node: Node, depth: int) -> Extent | None:  # noqa: ARG001
    tensor = node.attributes["value"].t if "value" in node.attributes else TensorProto(data_type=TensorProto.FLOAT)
    if tensor.data_type not in INTEGERS:
        return None
    fill = inline_array(tensor)
    return _uniform(int(fill.ravel()[0])) if fill is not None and fill.size else None


def _slice(extents: Extents, node: Node, depth: int) -> Extent | None:
    """A Range without its first elements."""
    found, source = extents.of(node.input(0), depth), node.input(0)
    if found is None or found.is_uniform:
        return found
    start, end = extents.scalar(node.input(1)), extents.scalar(node.input(2))
    step = extents.scalar(node.input(4)) if node.input(4) is not None else const(1)
    while source is not None and source.producer is not None and source.producer.is_op("Unsqueeze", "Cast"):
        source = source.producer.input(0)
    is_range = source is not None and source.producer is not None and source.producer.is_op("Range")
    if not is_range or start is None or end is None or step != 1 or lower(start) < 0:
        return None
    axis = extents.scalar(node.input(3)) if node.input(3) is not None else const(0)
    dims = extents.known.tensor(node.inputs[0]).dims if node.inputs[0] is not None else None
    is_along = axis is not None and dims is not None and dims[int(axis)] == found.high - found.low + 1
    is_to_the_end = (end.constant or 0) >= ENDLESS
    return Extent(found.low + start, found.high) if is_along and is_to_the_end else None


_RULES: Mapping[str, Callable[[Extents, Node, int], Extent | None]] = {
    "Range": _range,
    "CumSum": _cum_sum,
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Min": _extreme(minimum),
    "Max": _extreme(maximum),
    "Clip": _clip,
    "Where": _where,
    "Equal": _equal,
    "Not": _not,
    "ConstantOfShape": _constant_of_shape,
    "Slice": _slice,
}
