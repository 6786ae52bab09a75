"""Bounds of the elements of integer tensors, as numbers, whatever the inputs are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import BITS, INTEGERS, integer_range
from graphkit.errors import ModelError
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.operators import MOVING
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.shapes.tensor import numbers

__all__ = ["Bounds", "IntegerBounds"]

MAX_CONSTANT = 1 << 20  # elements of a constant that are looked at

Bounds = tuple[int, int]


class IntegerBounds(ForwardAnalysis["Bounds | None"]):
    """Tells between which numbers the elements of a tensor are at any input; each tensor is looked at once.

    Numbers that int64 cannot hold are never told: what wraps around is not known.
    """

    def __init__(self, editor: Editor) -> None:
        super().__init__(None)
        self.editor = editor

    def transfer(self, value: Value) -> Bounds | None:
        """Return the least and the greatest element that a tensor can have, None where they are not known."""
        found = self._find(value)
        return found if found is not None and -(2**63) <= found[0] <= found[1] < 2**63 else None

    def _find(self, value: Value) -> Bounds | None:
        tensor = self.editor.shapes[value]
        if tensor.dtype not in INTEGERS:
            return None
        array = self._constant(value)
        if array is not None and array.size:
            return int(array.min()), int(array.max())
        node, limits = value.producer, None if BITS[tensor.dtype] == 64 else integer_range(tensor.dtype)
        found = self._computed(node) if node is not None and not node.domain and not value.output_index else None
        if found is None or (limits is not None and not limits[0] <= found[0] <= found[1] <= limits[1]):
            return limits  # what wraps around may be anything
        return found if tensor.dtype != TensorProto.UINT64 else None

    def _constant(self, value: Value) -> np.ndarray | None:
        tensor = self.editor.shapes[value]
        array = numbers(tensor)
        if array is None and value.constant is not None and 0 < (tensor.count() or 0) <= MAX_CONSTANT:
            with suppress(ModelError):  # its data file is missing
                array = self.editor.model.array(value.constant)
        return array

    def _computed(self, node: Node) -> Bounds | None:
        if node.is_op("ArgMax", "ArgMin"):
            return self._positions(node)
        if node.is_op("Concat", "Max", "Min"):
            return _union(self.of(value) for value in node.inputs)
        if node.is_op("Where"):
            return _union(self.of(value) for value in node.inputs[1:])
        if node.op_type in MOVING:
            return self.of(node.input(0))
        rule = RULES.get(node.op_type)
        operands = [self.of(value) for value in node.inputs]
        known = [operand for operand in operands if operand is not None]
        return rule(*known) if rule is not None and known and len(known) == len(operands) else None

    def _positions(self, node: Node) -> Bounds | None:
        dims, axis = self.editor.shapes.dims(node.input(0)), node.attr("axis", 0)
        if dims is None or axis is None or not -len(dims) <= axis < len(dims):
            return None
        size = dims[axis].constant
        return (0, max(size - 1, 0)) if size is not None else None


def _union(bounds: Iterable[Bounds | None]) -> Bounds | None:
    found = list(bounds)
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _product(one: Bounds, other: Bounds) -> Bounds:
    corners = [a * b for a in one for b in other]
    return min(corners), max(corners)


RULES: Mapping[str, Callable[..., Bounds]] = {
    "Cast": lambda data: data,
    "Neg": lambda data: (-data[1], -data[0]),
    "Abs": lambda data: (0 if data[0] <= 0 <= data[1] else min(map(abs, data)), max(map(abs, data))),
    "Add": lambda one, other: (one[0] + other[0], one[1] + other[1]),
    "Sub": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    "Mul": _product,
}
