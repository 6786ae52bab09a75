"""A missing term: the difference is another tensor, such as a residual that is not added."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.graph.view import Value
from graphkit.verify.layers.causes.case import Case, Cause, Part
from graphkit.verify.layers.measure import plain

__all__ = ["terms"]


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
