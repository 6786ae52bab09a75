"""How an array differs from the one that it should be, as far as that is simple: transposed, permuted, shifted, scaled.

Each relation says in words what happened, and gives two arrays that are equal where it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphkit.verify.cause_search import Kind

__all__ = ["Relation", "array_relations", "describe_difference"]

MAX_RANK = 5  # of arrays whose axes are permuted
MAX_PARTS = 512  # steps and blocks along an axis
MAX_SHOWN = 8
MIN_OVERLAP = 2  # places along an axis that is shifted
MAX_ELEMENTS = 1 << 23  # of a weight whose order is looked into
Names = tuple[str, str]  # of what is right, and of what is not
CLOSE = 1e-5  # relative to the largest magnitude, of weights in another order


@dataclass(frozen=True, eq=False)
class Relation:
    """A simple relation of two arrays.

    Attributes:
        kind: What it is.
        text: That in a clause.
        expected, actual: What A and B have in common if it holds.
    """

    kind: Kind
    text: str
    expected: np.ndarray
    actual: np.ndarray

    def may_hold(self, allowed: float) -> bool:
        """Whether dims and a few elements agree, so that it is worth while to compare all."""
        few = tuple(slice(0, 2) for _ in self.expected.shape)
        is_alike = self.expected.shape == self.actual.shape
        return is_alike and bool((np.abs(self.expected[few] - self.actual[few]) <= allowed).all())


def array_relations(right: np.ndarray, wrong: np.ndarray, names: Names = ("A", "B")) -> Iterator[Relation]:
    """Yield the relations that two arrays may have, the simple ones first; the caller compares what each leaves."""
    if right.size == wrong.size:
        yield from _find_transpositions(right, wrong, *names)
    if right.shape != wrong.shape:
        yield from _find_cuts(right, wrong, *names)
        return
    yield from _find_rotations(right, wrong, *names)
    yield from _find_permutations(right, wrong, *names)


def _find_transpositions(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    for axes in itertools.permutations(range(x.ndim)) if x.ndim <= MAX_RANK else ():
        turned = x.transpose(axes)
        if axes != tuple(range(x.ndim)) and turned.shape == y.shape:
            yield Relation("transposed", f"transposed: {b} is {a} with its axes in the order {list(axes)}", turned, y)
    if x.shape != y.shape:
        text = f"dims: {b} has the elements of {a}, in order, as {list(y.shape)} instead of {list(x.shape)}"
        yield Relation("dims", text, x.reshape(y.shape), y)
    if x.ndim > 1:
        text = f"transposed: {b} has the elements of {a}, stored column by column"
        yield Relation("transposed", text, x.ravel(order="F").reshape(y.shape), y)


def _find_rotations(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    """Yield axes that are rotated or shifted; the last one, which may hold heads side by side, by one place alone."""
    for axis, n in enumerate(x.shape):
        steps = (1, n - 1) if axis == x.ndim - 1 or n > MAX_PARTS else range(1, n)
        for step in steps if n > 2 else ():
            where = f"i + {step}" if 2 * step <= n else f"i - {n - step}"
            text = f"rotated: along axis {axis}, {b} has at i what {a} has at {where}, modulo {n}"
            yield Relation("shifted", text, np.roll(x, -step, axis), y)
    for axis, n in enumerate(x.shape):
        for step, where in ((1, "i + 1"), (-1, "i - 1")) if n > MIN_OVERLAP else ():
            ends = slice(1, None), slice(None, -1)
            first, last = ends if step > 0 else ends[::-1]
            text = f"off by one: along axis {axis}, {b} has at i what {a} has at {where}"
            yield Relation("shifted", text, np.moveaxis(x, axis, 0)[first], np.moveaxis(y, axis, 0)[last])


def _find_permutations(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    """Yield axes along which the blocks of B are those of A in another order."""
    for axis, n in enumerate(x.shape):
        for parts in (count for count in range(2, min(n, MAX_PARTS) + 1) if n % count == 0):
            blocks = [np.moveaxis(array, axis, 0).reshape(parts, -1) for array in (x, y)]
            weights = np.random.default_rng(0).standard_normal(blocks[0].shape[1])
            order_x, order_y = (np.argsort(block @ weights, kind="stable") for block in blocks)
            sources = order_x[np.argsort(order_y)]
            if np.array_equal(sources, np.arange(parts)):
                continue
            shown = ", ".join(map(str, sources[:MAX_SHOWN])) + (", ..." if parts > MAX_SHOWN else "")
            what = f"the {parts} blocks of {n // parts} in {b}" if parts < n else f"the {parts} slices of {b}"
            name = "permuted heads" if parts < n and x.ndim < 4 else "permuted"
            text = f"{name}: along axis {axis}, {what} are those [{shown}] of {a}"
            yield Relation("permuted", text, blocks[0][sources], blocks[1])


def _find_cuts(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    """Yield places at which one is the other with some of its ends missing."""
    axes = [axis for axis in range(x.ndim) if x.ndim == y.ndim and x.shape[axis] != y.shape[axis]]
    if len(axes) != 1:
        return
    parts_x, parts_y = np.moveaxis(x, axes[0], 0), np.moveaxis(y, axes[0], 0)
    missing = len(parts_x) - len(parts_y)
    short, names = (len(parts_y), f"{b} is {a}") if missing > 0 else (len(parts_x), f"{a} is {b}")
    is_row = axes[0] == 0 and x.ndim > 1  # of a batch
    more = f"; {'a row is missing' if is_row else 'off by one'}" if abs(missing) == 1 else ""
    for start in range(abs(missing) + 1 if short else 0):
        text = f"dims: along axis {axes[0]}, {names} from {start} to {start + short}, of {short + abs(missing)}{more}"
        part = slice(start, start + short)
        yield Relation("dims", text, *((parts_x[part], parts_y) if missing > 0 else (parts_x, parts_y[part])))


def describe_difference(right: np.ndarray, wrong: np.ndarray, names: Names = ("A", "B")) -> str:
    """Return how a weight differs from the one that it should be, in a clause."""
    if right.shape == wrong.shape and not wrong.any():
        return "it is all zeros"
    if right.dtype.kind != "f" or wrong.dtype.kind != "f" or right.size > MAX_ELEMENTS:
        return "other values" if right.shape == wrong.shape else f"dims {list(wrong.shape)}, not {list(right.shape)}"
    x, y = right.astype(np.float64), wrong.astype(np.float64)
    allowed = CLOSE * max(float(np.abs(x).max(initial=0.0)), 1e-30)

    def is_close(expected: np.ndarray, actual: np.ndarray) -> bool:
        return bool(np.abs(expected - actual).max(initial=0.0) <= allowed)

    apart = f"up to {float(np.abs(x - y).max(initial=0.0)):.3g} apart" if x.shape == y.shape else ""
    if apart:
        if is_close(x, y):
            return apart
        factor = float((x * y).sum()) / max(float((x * x).sum()), 1e-30)
        if is_close(factor * x, y):
            return f"scale: it is {factor:.6g} times that"
        if len(y) > 1 and not is_close(x[1:], x[:-1]) and is_close(y[1:], y[:-1]):
            return "all its rows are the same"
    for relation in array_relations(x, y, names):
        if relation.may_hold(allowed) and is_close(relation.expected, relation.actual):
            return relation.text
    return apart or f"dims {list(y.shape)}, not {list(x.shape)}"
