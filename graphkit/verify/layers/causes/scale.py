"""A scale: B is a multiple of A, as a whole or by column."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.verify.layers.causes.case import Case, Cause, Part
from graphkit.verify.layers.constants import FLOATS, constant_array, known

__all__ = ["scale"]

CLOSE = 1e-3  # relative, of factors


class _Factor(NamedTuple):
    """A number that a node multiplies by."""

    value: Value
    factor: float
    node: Node


def scale(case: Case) -> Iterator[Cause]:
    """Yield the scale that explains a difference, with the initializer that it comes from."""
    if case.is_integer or case.x.shape != case.y.shape or case.x.size < 2:
        return
    squares = float((case.x * case.x).sum())
    factor = float((case.x * case.y).sum()) / squares if squares else 0.0
    if factor and case.explains(case.y - factor * case.x):
        yield _whole(case, factor)
        return
    for axis in reversed(range(case.x.ndim)):
        others = tuple(other for other in range(case.x.ndim) if other != axis)
        below = (case.x * case.x).sum(axis=others, keepdims=True)
        factors = (case.x * case.y).sum(axis=others, keepdims=True) / np.where(below > 0, below, 1.0)
        if case.explains(case.y - factors * case.x):
            named = _named(case, factors.ravel())
            if named is not None or factors.size < case.x.size:
                text = f"scale: along axis {axis}, B is a multiple of A by the same factors everywhere"
                yield named or Cause("scale", f"{text}; no initializer of either has them.")
            return


def _whole(case: Case, factor: float) -> Cause:
    text = f"scale: B is {factor:.6g} times A"
    parts = [("A", case.a), *([("B", case.b)] if case.b is not None else [])]
    for owner, part in parts:
        for one in _factors(part):
            name, what = one.value.name, f"{one.node.op_type} by '{one.value.name}' of {owner}"
            if math.isclose(one.factor, factor, rel_tol=CLOSE):
                is_known = owner == "A" or any(math.isclose(x.factor, factor, rel_tol=CLOSE) for x in _factors(case.a))
                return Cause("scale", f"{text}: {_more(what, is_known)}.", name)
            if math.isclose(one.factor * factor, 1.0, rel_tol=CLOSE):
                return Cause("scale", f"{text}: B lacks the {what}, or A applies it twice.", name)
    return Cause("scale", f"{text}; no constant nearby has that factor.")


def _more(what: str, is_known: bool) -> str:
    return f"B applies the {what} twice" if is_known else f"B applies the {what}, and A does not"


def _factors(part: Part) -> Iterator[_Factor]:
    """Yield the single numbers that nodes nearby, readers included, multiply or divide by."""
    readers = [node for node, _ in part.value.consumers]
    for node in (*part.nodes, *readers):
        for place, value in enumerate(node.inputs if node.is_op("Mul", "Div") else ()):
            tensor = known(value) if value is not None else None
            if value is None or tensor is None or tensor.data_type not in FLOATS or (node.is_op("Div") and not place):
                continue
            array = constant_array(part.side.model, tensor)
            if array.size == 1 and (number := float(array.ravel()[0])):
                yield _Factor(value, 1 / number if node.op_type == "Div" else number, node)


def _named(case: Case, factors: np.ndarray) -> Cause | None:
    for owner, part in (("A", case.a), ("B", case.b)):
        for value, array in part.floats(factors.size) if part is not None else ():
            flat = array.ravel().astype(np.float64)
            if np.allclose(flat, factors, rtol=CLOSE, atol=1e-6):
                text = f"B multiplies by the initializer '{value.name}' of {owner} once more than A"
                return Cause("scale", f"scale: {text}.", value.name)
            if np.allclose(flat * factors, 1.0, rtol=CLOSE, atol=1e-6):
                text = f"B does not multiply by the initializer '{value.name}' of {owner}"
                return Cause("scale", f"scale: {text}.", value.name)
    return None
