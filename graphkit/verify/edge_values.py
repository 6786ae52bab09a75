"""Elements at which operators change their behaviour: edges of dtypes, ties, and numbers that a graph compares with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from graphkit.graph.view import Node, all_nodes
from graphkit.io.tensors import inline_array
from graphkit.model import Model
from graphkit.verify.draws import Draw

__all__ = ["Marks", "drawn", "edges_of", "marks_of"]

FLOATS = (0.0, 1.0, -1.0, 0.5, -0.5, 5.0, -3.0, -0.0, 1.5, 2.5, -2.5, 3.0, 6.0, -5.0, 7.0, 10.0, -10.0, 0.1, 1e-3, 1e-6)
LARGE_FLOATS = (1e30, -1e30, 65504.0, -65504.0, 1e-30, 16777217.0, 89.0, -104.0, np.inf, -np.inf, 1e4, -1e4, 2.0**63)
NOT_FINITE = (np.nan, np.inf, -np.inf)
INTEGERS = (0, -1, 1, -2, 2, 3, -3, 7, -7, 10, 51, 100, -100, 255, 256, 1000)
LARGE_INTEGERS = (
    2**62 + 1, -(2**62) - 1, 2**31, -(2**31) - 1, 2**24 + 1, -(2**24) - 1, 2**32 + 1, 2**53 + 1, 2**63 - 1, -(2**63),
    2**31 - 1, -(2**31), 32767, -32768, 65535, 127, -128,
)  # fmt: skip
COMPARING = (
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Clip",
    "Min",
    "Max",
    "Mod",
    "ThresholdedRelu",
)
MAX_MARKS = 24
MAX_MARK_ELEMENTS = 8
T = TypeVar("T")


@dataclass(frozen=True)
class Marks:
    """Numbers that the nodes of models compare with."""

    integers: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()

    def __or__(self, other: Marks) -> Marks:
        """Return both."""
        return Marks(_distinct((*self.integers, *other.integers)), _distinct((*self.floats, *other.floats)))


def marks_of(model: Model) -> Marks:
    """Return the numbers that the nodes of a model compare with, as far as they are small constants."""
    numbers = [number for node in all_nodes(model.scopes) if node.is_op(*COMPARING) for number in _numbers(node)]
    integers = _distinct(int(one) for one in numbers if isinstance(one, int) or float(one).is_integer())
    return Marks(integers[:MAX_MARKS], _distinct(float(one) for one in numbers)[:MAX_MARKS])


def _numbers(node: Node) -> Iterator[int | float]:
    for value in node.inputs:
        array = inline_array(value.constant) if value is not None else None
        if array is not None and array.dtype.kind in "fiu" and array.size <= MAX_MARK_ELEMENTS:
            yield from (one for one in array.ravel().tolist() if np.isfinite(one) and abs(one) < 2**62)
    for name in ("alpha", "min", "max"):
        if isinstance(number := node.attr(name, float), float) and np.isfinite(number):
            yield number


def _distinct(numbers: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(numbers))


def edges_of(dtype: np.dtype, draw: Draw, marks: Marks) -> np.ndarray:
    """Return the edges of a dtype, each once, the most telling first."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        return _integer_edges(dtype, draw, marks)
    if draw.kind == "not finite":
        return np.array(NOT_FINITE, dtype)
    if draw.kind == "extremes":
        with np.errstate(over="ignore"):
            large: np.ndarray = np.clip(np.array(LARGE_FLOATS), np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
            return large
    with np.errstate(over="ignore"):
        near = [one for mark in marks.floats for one in (mark, np.nextafter(mark, -np.inf), mark + 1, mark - 1)]
        return np.array((*FLOATS, *near)).astype(dtype)


def _integer_edges(dtype: np.dtype, draw: Draw, marks: Marks) -> np.ndarray:
    info = np.iinfo(dtype)
    ends = (int(info.max), int(info.min))
    chosen = (*ends, *LARGE_INTEGERS) if draw.kind == "extremes" else (*INTEGERS, *_around(marks.integers))
    fitting = (one for one in chosen if info.min <= one <= info.max and (draw.divides or one not in (0, -1)))
    return np.array(_distinct(fitting), dtype)


def _around(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        yield from (number, number - 1, number + 1)


def drawn(usual: np.ndarray, edges: np.ndarray, rng: np.random.Generator, draw: Draw) -> np.ndarray:
    """Return an array with edges among its usual elements.

    Small edges may stand anywhere, with rows of one element, and with the greatest at both ends. Extremes, NaN and
    infinities stay in two rows of a batch, so that what the other rows give still tells something.
    """
    made: np.ndarray = usual.copy()
    if not made.size:
        return made
    if made.size < len(edges):  # each run shows others
        first = draw.number * made.size
        picked = edges[(first + np.arange(made.size)) % len(edges)]
        made[...] = picked.reshape(made.shape)
        return made
    if draw.kind == "edges":
        made = np.where(rng.random(made.shape) < 0.6, rng.choice(edges, made.shape), made)
        made.reshape(-1)[rng.permutation(made.size)[: len(edges)]] = edges
        _tie(made, edges)
    elif made.ndim > 1 and made.shape[0] > 2:
        enough = max(2, -(-len(edges) // made[0].size))
        rows = made[1 : max(min(1 + enough, made.shape[0] - 1), 2)]
        rows[...] = edges[(draw.number + np.arange(rows.size)) % len(edges)].reshape(rows.shape)
        rows[-1] = np.where(rng.random(rows[-1].shape) < 0.5, rows[-1], made[0])
    else:
        made.reshape(-1)[rng.permutation(made.size)[: len(edges)]] = edges
    return made


def _tie(made: np.ndarray, edges: np.ndarray) -> None:
    """Let a row have one element throughout, and in another one the greatest and the least occur twice."""
    if not made.ndim or made.shape[-1] < 2:
        return
    rows = made.reshape(-1, made.shape[-1])
    if len(rows) > 1:
        rows[1 % len(rows)] = edges[0]
    for row in rows[2:3] if len(rows) > 2 else rows[:1]:
        row[0] = row[-1] = row.max()
        if len(row) > 3:
            row[1] = row[-2] = row.min()
