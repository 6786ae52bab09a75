"""Products of quantised numbers, read as products of floats with a dequantised weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value, unwrapped
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.match import MatchFailure

__all__ = ["DYNAMIC", "PRODUCTS", "Data", "Factors", "Result", "data_of", "result_of"]

PRODUCTS = ("MatMulInteger", "ConvInteger")
DYNAMIC, STATIC = "DynamicQuantizeLinear", "QuantizeLinear"


@dataclass(frozen=True, eq=False)
class Data:
    """Quantised data: floats, and the value that holds their scale."""

    floats: Value
    scale: Value


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of a sum of integers: scales of data, and constants."""

    scales: tuple[Value, ...] = ()
    constants: tuple[TensorProto, ...] = ()

    def __add__(self, other: Factors) -> Factors:
        return Factors(self.scales + other.scales, self.constants + other.constants)


@dataclass(frozen=True, eq=False)
class Result:
    """The float result of a sum of integers: the node that gives it, and the constants that go into the weight."""

    node: Node
    value: Value
    dtype: int
    constants: tuple[TensorProto, ...]


def data_of(value: Value | None, zero: Value | None) -> Data | None:
    """Return the data that was quantised with that zero point, None where it was not."""
    node = value.producer if value is not None else None
    if node is None or not node.is_op(DYNAMIC, STATIC) or node.outputs[0] is not value:
        return None
    floats, scale = node.input(0), node.input(1)
    point = node.input(2)
    if node.is_op(DYNAMIC):
        scale, point = (*node.outputs, None, None)[1:3]
    if floats is None or scale is None or point is not zero or (node.is_op(STATIC) and not _is_one_number(scale)):
        return None
    return Data(floats, scale)


def result_of(editor: Editor, product: Node, data: Sequence[Data]) -> Result:
    """Follow a sum of integers through its Cast to the last Mul with a scale of its data.

    Raises:
        MatchFailure: It is used otherwise.
    """
    node = _only_reader(editor, product.outputs[0])
    if node is None or not node.is_op("Cast") or (dtype := node.attr("to", 0)) not in FLOATS or not dtype:
        raise MatchFailure("it is not cast to floats, and by that alone")
    open_scales, constants = [each.scale for each in data], list[TensorProto]()
    while open_scales:
        out = node.outputs[0]
        node = _only_reader(editor, out)
        if node is None or not node.is_op("Mul"):
            raise MatchFailure("it is not multiplied with the scale of its data")
        found = _factors(next((value for value in node.inputs if value is not out), None), open_scales)
        if found is None or any(found.scales.count(scale) > open_scales.count(scale) for scale in found.scales):
            raise MatchFailure("it is multiplied with something else than scales")
        for scale in found.scales:
            open_scales.remove(scale)
        constants += found.constants
    value = node.outputs[0]
    if value is None:
        raise MatchFailure("nothing reads it")
    return Result(node, value, dtype, tuple(constants))


def _is_one_number(value: Value) -> bool:
    return value.constant is not None and all(size == 1 for size in value.constant.dims)


def _only_reader(editor: Editor, value: Value | None) -> Node | None:
    return editor.only_reader(value) if value is not None else None


def _factors(value: Value | None, scales: Sequence[Value]) -> Factors | None:
    """Return the scales and constants that a value is the product of, None where it is something else."""
    if value is None:
        return None
    if value in scales:
        return Factors(scales=(value,))
    value = unwrapped(value, ("Identity",))
    if value.constant is not None:
        return Factors(constants=(value.constant,))
    node = value.producer
    if node is None or not node.is_op("Mul"):
        return None
    parts = [_factors(part, scales) for part in node.inputs]
    return sum((part for part in parts if part is not None), Factors()) if None not in parts else None
