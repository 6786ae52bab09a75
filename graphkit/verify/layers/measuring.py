"""Measure matched tensors: all of them in topological order, or those that a bisection needs; the first that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.graph.view import Value
from graphkit.matching.graph_side import Dims
from graphkit.runtime.limits import Limits
from graphkit.verify.comparator import BLOCK, Difference, compare, magnitude
from graphkit.verify.layers.compared_model import Pair, Reader, Side

__all__ = ["FLOOR", "Measured", "Progress", "allowed", "bisect", "first_differing", "measure", "plain", "sweep"]

FLOOR = -1e8  # at most so much stands for minus infinity in a mask: -1e9, the least float32, -inf


@dataclass(frozen=True, eq=False)
class Measured:
    """A pair of tensors, and how far the second is from the first.

    Attributes:
        pair: The tensors.
        difference: The difference of their elements; None where they have none that are numbers, and agree.
        cosine: Of the angle between them; None where one of them is all zeros, or they cannot be compared.
        agrees: Whether no element differs by more than the tolerance, times the largest magnitude of the first where
            that is above 1. Integers and booleans must be equal.
    """

    pair: Pair
    difference: Difference | None
    cosine: float | None
    agrees: bool


def measure(pair: Pair, array_a: np.ndarray, array_b: np.ndarray, tolerance: float) -> Measured:
    """Measure how far the array of B is from that of A."""
    difference = compare(array_a, array_b, any_width=True, floor=FLOOR)
    if difference.problem:
        return Measured(pair, difference, None, agrees=False)
    if array_a.dtype.kind in "OUS" or not array_a.size:
        return Measured(pair, None, None, agrees=True)
    most = tolerance * max(1.0, difference.magnitude) if array_a.dtype.kind == "f" else 0.0
    return Measured(pair, difference, _cosine(array_a.ravel(), array_b.ravel()), difference.absolute <= most)


def _cosine(array_a: np.ndarray, array_b: np.ndarray) -> float | None:
    product = squares_of_a = squares_of_b = 0.0
    for start in range(0, array_a.size, BLOCK):
        x, y = (array[start : start + BLOCK].astype(np.float64) for array in (array_a, array_b))
        known = np.isfinite(x) & np.isfinite(y) & ~((x <= FLOOR) & (y <= FLOOR))
        x, y = x[known], y[known]
        product, squares_of_a = product + float(x @ y), squares_of_a + float(x @ x)
        squares_of_b += float(y @ y)
    norm = float(np.sqrt(squares_of_a) * np.sqrt(squares_of_b))
    return min(product / norm, 1.0) if norm else None


def plain(array: np.ndarray) -> np.ndarray:
    """Return an array in float64, with 0 where numbers stand for minus infinity."""
    wide = array.astype(np.float64)
    wide[wide <= FLOOR] = 0.0
    return wide


def allowed(array: np.ndarray, tolerance: float) -> float:
    """Return the largest difference from an array that counts as none; 0 for integers."""
    return tolerance * max(1.0, magnitude(array, FLOOR)) if array.dtype.kind == "f" else 0.0


MOST_TENSORS = 256  # in one step
UNKNOWN_SIZE = 1 << 20  # bytes, of a tensor whose dims are not known
SHARE = 4  # of what the outputs of a run may take, one part in so many is asked for at a time

Progress = Callable[[str], None]


def sweep(
    pairs: Sequence[Pair], side: Side, reader: Reader, tolerance: float, limits: Limits, progress: Progress
) -> list[Measured]:
    """Return how far apart every pair is.

    Args:
        pairs: In topological order of A.
        side: The model A.
        reader: Gives the arrays of some pairs.
        tolerance: Of `measure`.
        limits: What a run may take.
        progress: Called before each step.
    """
    result: list[Measured] = []
    for step in _steps(pairs, side, limits):
        progress(f"comparing tensors {len(result) + 1:,} to {len(result) + len(step):,} of {len(pairs):,}")
        result += [measure(pair, *both, tolerance) for pair, both in zip(step, reader.read(step), strict=True)]
    return result


def _steps(pairs: Sequence[Pair], side: Side, limits: Limits) -> Iterator[list[Pair]]:
    step, size, most = list[Pair](), 0, limits.outputs() // SHARE
    for pair in pairs:
        needs = _bytes(side.dims(pair.a))
        if step and (size + needs > most or len(step) >= MOST_TENSORS):
            yield step
            step, size = [], 0
        step.append(pair)
        size += needs
    if step:
        yield step


def _bytes(dims: Dims) -> int:
    if dims is None or any(dim is None for dim in dims):
        return UNKNOWN_SIZE
    size = 8
    for dim in dims:
        size *= dim or 0
    return size


PARTS = 8  # that a bisection runs forward by
LEAST_PART = 16  # pairs


def _ancestors(pairs: Sequence[Pair], side: Side) -> dict[Pair, int]:
    """Return the pairs that each is computed from, itself included, as bits in their order."""
    number = {pair.a: place for place, pair in enumerate(pairs)}
    bits: dict[Value, int] = dict.fromkeys(side.place, 0)
    for value in side.place:
        node = value.producer
        for read in side.reads[node] if node is not None else ():
            bits[value] |= bits.get(read, 0)
        if value in number:
            bits[value] |= 1 << number[value]
    return {pair: bits[pair.a] for pair in pairs}


def first_differing(measured: Sequence[Measured], side: Side) -> list[Measured]:
    """Return the pairs that differ though all their sources agree, in topological order."""
    above = _ancestors([m.pair for m in measured], side)
    bad = sum(1 << place for place, m in enumerate(measured) if not m.agrees)
    return [m for place, m in enumerate(measured) if not m.agrees and not above[m.pair] & bad & ~(1 << place)]


def bisect(pairs: Sequence[Pair], side: Side, reader: Reader, tolerance: float, progress: Progress) -> list[Measured]:
    """Return the measurements that find a pair that differs though all its sources agree.

    Both models run forward, a part at a time, until something differs. In that part the search does as `git bisect`:
    what a pair that agrees is computed from counts as agreeing; in the end what the found one is computed from is
    measured, and the search goes on where that is wrong. Each run goes on from the last that agreed, so that few nodes
    run more than once.
    """
    return _Bisection(pairs, side, reader, tolerance, progress).run()


class _Bisection:
    def __init__(self, pairs: Sequence[Pair], side: Side, reader: Reader, tolerance: float, progress: Progress) -> None:
        self.pairs, self.side, self.reader, self.tolerance, self.progress = pairs, side, reader, tolerance, progress
        self.above = _ancestors(pairs, side)
        self.known: dict[Pair, Measured] = {}
        self.agreed = 0  # the pairs of the parts that agree, as bits

    def run(self) -> list[Measured]:
        bad = self._forward()
        while bad is not None:
            self.reader.back()
            origin = self._narrowed(bad)
            before = [pair for pair in _of(self.above[origin], self.pairs) if pair is not origin]
            bad = self._first_bad(_ends(before, self.above))
        return sorted(self.known.values(), key=lambda m: self.side.place[m.pair.a])

    def _forward(self) -> Pair | None:
        """Return a pair that differs in the first part where one does."""
        size = max(LEAST_PART, -(-len(self.pairs) // PARTS))
        for end in range(size, len(self.pairs) + size, size):
            bad = self._first_bad(_ends(self.pairs[:end], self.above))
            if bad is not None:
                return bad
            self.reader.keep()
            self.agreed = (1 << min(end, len(self.pairs))) - 1
        return None

    def _narrowed(self, bad: Pair) -> Pair:
        """Return the pair that differs where its sources are taken to agree."""
        suspects = self.above[bad] & ~self.agreed or self.above[bad]
        while suspects.bit_count() > 1:
            total = suspects.bit_count()
            candidates = [pair for pair in _of(suspects, self.pairs) if pair is not bad]
            middle = min(candidates, key=lambda pair: abs(2 * (self.above[pair] & suspects).bit_count() - total))
            if self._first_bad([middle]) is None:
                self.reader.keep()
                suspects &= ~self.above[middle]
            else:
                bad, suspects = middle, suspects & self.above[middle]
                self.reader.back()
        return bad

    def _first_bad(self, some: Sequence[Pair]) -> Pair | None:
        """Return the first of some pairs that differs."""
        fresh = [pair for pair in some if pair not in self.known]
        if fresh:
            count = f"tensor {len(self.known) + 1:,} of at most {len(self.pairs):,}"
            self.progress(f"comparing {count}: '{fresh[0].a.name}'")
            for pair, both in zip(fresh, self.reader.read(fresh), strict=True):
                self.known[pair] = measure(pair, *both, self.tolerance)
        return next((pair for pair in some if not self.known[pair].agrees), None)


def _of(bits: int, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs whose bits are set."""
    return (pair for pair, bit in zip(pairs, reversed(f"{bits:0{len(pairs)}b}"), strict=True) if bit == "1")


def _ends(pairs: Sequence[Pair], above: Mapping[Pair, int]) -> list[Pair]:
    """Return the pairs that no other of them is computed from."""
    inner = 0
    for pair in pairs:
        inner |= above[pair] ^ (1 << (above[pair].bit_length() - 1))  # its own bit is the last
    return [pair for pair in pairs if not inner >> (above[pair].bit_length() - 1) & 1]
