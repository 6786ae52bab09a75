"""The first tensors that differ: of all that were measured, or found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphkit.graph.view import Value
from graphkit.verify.layers.measure import distance
from graphkit.verify.layers.side import Side
from graphkit.verify.layers.sweep import Measured, Pair, Progress, Read

__all__ = ["bisect", "first_differing"]


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
    bad = sum(1 << place for place, one in enumerate(measured) if not one.distance.agrees)
    return [
        one
        for place, one in enumerate(measured)
        if not one.distance.agrees and not above[one.pair] & bad & ~(1 << place)
    ]


def bisect(pairs: Sequence[Pair], side: Side, read: Read, tolerance: float, progress: Progress) -> list[Measured]:
    """Return what was measured to find a pair that differs, though whatever it is computed from agrees.

    As `git bisect` does: what a pair that agrees is computed from counts as agreeing; in the end what the found one is
    computed from is measured, and the search goes on where that is wrong.
    """
    above = _ancestors(pairs, side)
    known: dict[Pair, Measured] = {}

    def agrees(some: Sequence[Pair]) -> bool:
        fresh = [pair for pair in some if pair not in known]
        if fresh:
            progress(f"comparing '{fresh[0].a.name}'")
            known.update(
                (p, Measured(p, distance(*both, tolerance))) for p, both in zip(fresh, read(fresh), strict=True)
            )
        return all(known[pair].distance.agrees for pair in some)

    ends = _ends(pairs, above)
    agrees(ends)
    bad = next((pair for pair in ends if not known[pair].distance.agrees), None)
    while bad is not None:
        bad = _narrow(pairs, above, bad, agrees)
        before = _direct(pairs, above, bad)
        bad = None if agrees(before) else next(pair for pair in before if not known[pair].distance.agrees)
    return sorted(known.values(), key=lambda one: side.place[one.pair.a])


def _narrow(
    pairs: Sequence[Pair], above: Mapping[Pair, int], bad: Pair, agrees: Callable[[Sequence[Pair]], bool]
) -> Pair:
    """Return the pair that differs where what it is computed from is taken to agree."""
    left = above[bad]
    while left.bit_count() > 1:
        total = left.bit_count()
        candidates = [pair for pair in _of(left, pairs) if pair is not bad]
        middle = min(candidates, key=lambda pair: abs(2 * (above[pair] & left).bit_count() - total))
        if agrees([middle]):
            left &= ~above[middle]
        else:
            bad, left = middle, left & above[middle]
    return bad


def _of(bits: int, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs whose bits are set."""
    return (pair for pair, bit in zip(pairs, reversed(f"{bits:0{len(pairs)}b}"), strict=True) if bit == "1")


def _ends(pairs: Sequence[Pair], above: Mapping[Pair, int]) -> list[Pair]:
    """Return the pairs that no other of them is computed from."""
    inner = 0
    for pair in pairs:
        inner |= above[pair] ^ (1 << (above[pair].bit_length() - 1))  # its own bit is the last
    return [pair for pair in pairs if not inner >> (above[pair].bit_length() - 1) & 1]


def _direct(pairs: Sequence[Pair], above: Mapping[Pair, int], one: Pair) -> list[Pair]:
    """Return the pairs that one is computed from without another between."""
    return _ends([pair for pair in _of(above[one], pairs) if pair is not one], above)
