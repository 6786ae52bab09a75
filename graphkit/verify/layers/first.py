"""The first tensors that differ: of all that were measured, or found by bisection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphkit.graph.view import Value
from graphkit.verify.layers.measure import Measured, measure
from graphkit.verify.layers.pairs import Pair, Reader
from graphkit.verify.layers.side import Side
from graphkit.verify.layers.sweep import Progress

__all__ = ["bisect", "first_differing"]

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
    """Return the pairs that differ though whatever they are computed from agrees, in topological order."""
    above = _ancestors([one.pair for one in measured], side)
    bad = sum(1 << place for place, one in enumerate(measured) if not one.agrees)
    return [one for place, one in enumerate(measured) if not one.agrees and not above[one.pair] & bad & ~(1 << place)]


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
            found = self._narrowed(bad)
            before = [pair for pair in _of(self.above[found], self.pairs) if pair is not found]
            bad = self._first_bad(_ends(before, self.above))
        return sorted(self.known.values(), key=lambda one: self.side.place[one.pair.a])

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
        left = self.above[bad] & ~self.agreed or self.above[bad]
        while left.bit_count() > 1:
            total = left.bit_count()
            candidates = [pair for pair in _of(left, self.pairs) if pair is not bad]
            middle = min(candidates, key=lambda pair: abs(2 * (self.above[pair] & left).bit_count() - total))
            if self._first_bad([middle]) is None:
                self.reader.keep()
                left &= ~self.above[middle]
            else:
                bad, left = middle, left & self.above[middle]
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
