"""Weights that differ: the constants that the two nodes read, and how one is the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.helper

from graphkit.graph.view import Node, Value
from graphkit.verify.layers.causes.case import Case, Cause, Kind
from graphkit.verify.layers.causes.order import arranged
from graphkit.verify.layers.structure import FLOATS, constant_array, known

__all__ = ["attributes", "weights"]

NUMBERS = (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
MOST = 1 << 23  # elements of a weight whose order is looked into
CLOSE = 1e-5


def attributes(case: Case) -> Iterator[Cause]:
    """Yield the attributes, such as an epsilon, in which the two nodes differ."""
    one, two = case.a.value.producer, case.b.value.producer if case.b is not None else None
    if one is None or two is None or one.operator != two.operator:
        return
    for name in sorted(one.attributes.keys() & two.attributes.keys()):
        mine, theirs = one.attributes[name], two.attributes[name]
        if mine.type == theirs.type and mine.type in NUMBERS and mine != theirs:
            first, second = (_number(each) for each in (mine, theirs))
            text = f"'{two.label}' ({two.operator}) of B has {name} {second}, and '{one.label}' of A has {first}."
            yield Cause("weights", text)


def _number(attribute: onnx.AttributeProto) -> str:
    number = onnx.helper.get_attribute_value(attribute)
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def weights(case: Case, *, only_named: bool = False) -> Iterator[Cause]:
    """Yield how the weights that B's node reads differ from those of A's; `only_named` for those of one name."""
    if case.b is None or case.a.value.producer is None or case.b.value.producer is None:
        return
    for one, two in _paired(case.a.value.producer, case.b.value.producer):
        first, second = known(one), known(two)
        if (
            first is None
            or second is None
            or first.data_type != second.data_type
            or only_named > (one.name == two.name)
        ):
            continue
        if first.dims == second.dims and case.a.side.model.payload(first) == case.b.side.model.payload(second):
            continue
        if first.data_type not in FLOATS:
            yield Cause("weights", f"'{two.name}' of B has other values than '{one.name}' of A.", one.name)
            continue
        x, y = constant_array(case.a.side.model, first), constant_array(case.b.side.model, second)
        kind, how = _how(x, y)
        yield Cause(kind, f"'{two.name}' of B is not '{one.name}' of A: {how}", one.name)


def _paired(one: Node, two: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the constants that two nodes read at the same place."""
    if one.operator == two.operator:
        for mine, theirs in zip(one.inputs, two.inputs, strict=False):
            if mine is not None and theirs is not None and known(mine) is not None and known(theirs) is not None:
                yield mine, theirs


def _how(x: np.ndarray, y: np.ndarray) -> tuple[Kind, str]:
    if not y.any():
        return "weights", "it is all zeros."
    if x.size > MOST:
        return "weights", "other values."
    x, y = x.astype(np.float64), y.astype(np.float64)
    size = max(float(np.abs(x).max(initial=0.0)), 1e-30)

    def equal(one: np.ndarray, two: np.ndarray) -> bool:
        return one.shape == two.shape and float(np.abs(one - two).max(initial=0.0)) <= CLOSE * size

    found = next(arranged(x, y, equal), None)
    if found is not None:
        return found.kind, found.text
    if x.shape != y.shape:
        return "weights", f"dims {list(y.shape)}, expected {list(x.shape)}."
    factor = float((x * y).sum()) / max(float((x * x).sum()), 1e-30)
    if equal(factor * x, y):
        return "scale", f"scale: it is {factor:.6g} times that."
    return "weights", f"up to {float(np.abs(x - y).max(initial=0.0)):.3g} apart."
