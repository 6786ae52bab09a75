"""B is a multiple of A, has a constant offset, or lacks a term: the simple arithmetic between two tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.verify.layers.causes.case import Case, Cause, Part
from graphkit.verify.layers.measuring import plain
from graphkit.verify.layers.structure import FLOATS, constant_array, known

__all__ = ["offset", "scale", "terms"]


def offset(case: Case) -> Iterator[Cause]:
    """Yield the constant offset that explains a difference, with the initializer that has these values."""
    if case.x.shape != case.y.shape or not case.x.size:
        return
    mean = float(case.difference.mean())
    if (case.is_integer or case.x.size > 1) and case.explains(case.difference - mean):
        yield _even(case, mean)
        return
    for axis in reversed(range(case.x.ndim)):
        column = case.difference.mean(axis=tuple(other for other in range(case.x.ndim) if other != axis), keepdims=True)
        if not case.explains(case.difference - column):
            continue
        named = _added_constant(case, column.ravel())
        if named is not None:
            yield named
            return
        if column.size < case.x.size:
            text = f"constant offset: along axis {axis}, B differs from A by the same numbers everywhere"
            yield Cause("offset", f"{text}, up to {case.largest:.4g}; no initializer of either has them.")
            return


def _even(case: Case, mean: float) -> Cause:
    if case.is_integer:
        more = f"{abs(mean):g} {'less' if mean > 0 else 'more'}"
        close = "; positions, or a length, are off by one" if abs(mean) == 1 else ""
        return Cause("offset", f"constant offset: B has {more} than A in every element{close}.")
    named = _added_constant(case, np.array([mean]))
    if named is not None:
        return named
    more = f"{abs(mean):.4g} {'less' if mean > 0 else 'more'}"
    return Cause(
        "offset", f"constant offset: B has {more} than A in every element; no initializer of either has this value."
    )


def _added_constant(case: Case, column: np.ndarray) -> Cause | None:
    """Return the cause where a constant of one of the models has these values."""
    for part, sign, name in ((case.a, 1.0, "A"), (case.b, -1.0, "B"), (case.b, 1.0, "B"), (case.a, -1.0, "A")):
        found = None if part is None else _equal(part, sign * column, case)
        if found is not None:
            return Cause("offset", f"constant offset: {_told(case, found, column, sign, name)}.", found.name)
    return None


def _equal(part: Part, column: np.ndarray, case: Case) -> Value | None:
    return next((value for value, array in part.floats(column.size) if case.explains(array.ravel() - column)), None)


def _told(case: Case, found: Value, column: np.ndarray, sign: float, owner: str) -> str:
    more, less = (("A", case.a), ("B", case.b)) if sign > 0 else (("B", case.b), ("A", case.a))
    if owner != more[0]:  # it is known only where it is missing
        return f"{more[0]} has the initializer '{found.name}' of {owner} once more than {owner}"
    same = None if less[1] is None else _equal(less[1], sign * column, case)  # of the same name may be other numbers
    if same is not None and same.name == found.name:
        return f"{more[0]} adds the initializer '{found.name}' twice, {less[0]} once"
    return f"{more[0]} adds its initializer '{found.name}', and {less[0]} does not"


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
            named = _factor_constant(case, factors.ravel())
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


def _factor_constant(case: Case, factors: np.ndarray) -> Cause | None:
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


def terms(case: Case) -> Iterator[Cause]:
    """Yield the tensors nearby that are the difference, or that B has instead."""
    if case.is_integer or case.x.shape != case.y.shape:
        return
    parts = [(case.a, 1.0, "A", "B"), *([(case.b, -1.0, "B", "A")] if case.b is not None else [])]
    for part, sign, more, less in parts:
        for value, array in _fitting(part, case.x):
            if case.explains(case.difference - sign * array):
                yield Cause("term", f"{more} adds its tensor '{value.name}'{_what(value)}, and {less} {_how(case)}.")
                return
            if case.explains(case.difference + sign * array):
                yield Cause("term", f"{less} adds the tensor '{value.name}' of {more} once more than {more}.")
                return
    for value, array in _fitting(case.a, case.x):
        if array.shape == case.y.shape and case.explains(case.y - array):
            yield Cause("term", f"B has what A has in '{value.name}': what A computes from that is left out.")
            return


def _how(case: Case) -> str:
    return "does not" if case.b is None or case.a.value.producer is not None else "does not too"


def _what(value: Value) -> str:
    node = value.producer
    return " (a residual)" if len(value.consumers) > 1 and node is not None else ""


def _fitting(part: Part, x: np.ndarray) -> Iterator[tuple[Value, np.ndarray]]:
    """Yield the tensors nearby that may be a term of one: floats that broadcast to it, and are not all zero."""
    for value, array in part.arrays.items():
        if array.dtype.kind == "f" and array.size and array.any() and _broadcasts(array.shape, x.shape):
            yield value, plain(array)


def _broadcasts(dims: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(dims) <= len(to) and all(d in (1, t) for d, t in zip(dims[::-1], to[::-1], strict=False))
