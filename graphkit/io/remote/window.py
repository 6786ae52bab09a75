"""The bytes of a file on a server, for the reader of its graph, who looks at few of them, here and there.

What it looks at is fetched, and what it will look at next is guessed. A guess that is wrong costs a request. The reader
follows the lengths that are in the file itself, at their places, so that no guess changes what is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import overload

from graphkit.io.remote.server import Parts, Span, join_spans

# Where the next headers lie, when those of a file repeat as the layers of its model do.
#
# The header of a weight says where the next one begins, so that they would have to be read one after the other. But the
# weights of a layer are as large as those of the layer before: where headers have been at 0, 10, 40, 50, 80, there will
# be others at 90, 120, 130, ... A name that is a letter longer moves them a little.


HISTORY = 400  # headers to look back at
SLACK = 64  # bytes by which two distances of one kind may differ


def predict_offsets(offsets: Sequence[int], end: int, count: int) -> list[tuple[int, int]]:
    """Return at most so many offsets, before the end, that follow if the last ones go on as they did before.

    What came before is found where the last distances were already, as many of them as possible. Beside each offset is
    the number of a known one like it, behind which there are others already.
    """
    known = offsets[-HISTORY:]
    steps = [after - before for before, after in itertools.pairwise(known)]
    start = _earlier_run_end(steps)
    if start is None:
        return []
    following: list[tuple[int, int]] = []
    at, period, skipped = offsets[-1], len(steps) - start, len(offsets) - len(known)
    for number in range(count):
        like = start + number % period
        at += steps[like]
        if at >= end:
            break
        following.append((at, skipped + (like + 1 if like + 1 < len(steps) else start)))
    return following


def _earlier_run_end(steps: Sequence[int]) -> int | None:
    """Return where the longest run of steps ends that are the last ones, too; the latest of several such places."""
    best, longest = None, 0
    for place in range(len(steps) - 1, 0, -1):
        length = 0
        while length < place and abs(steps[place - 1 - length] - steps[-1 - length]) <= SLACK:
            length += 1
        if length > longest:
            best, longest = place, length
    return best


TAIL = 64 << 10  # bytes at the end, where the inputs and outputs are
HEADER, BEFORE = 512, 96  # bytes that are fetched for a header, and more of them before and behind a guessed one
NEAR = 1 << 10  # bytes that the reader passes over without a jump: a small node
STEP, GROWTH, LONGEST = 512 << 10, 4, 4 << 20  # bytes to read on, how they grow, and up to which size
FEW, MANY = 4, 64  # guesses at a time, which double as long as they are right
GAP = 4 << 10  # bytes that cost less than a request


class Window:
    """The bytes of a file, as `bytes` has them.

    Args:
        size: How many they are.
        parts: Those that are here.
        fetch: What brings others there.
    """

    def __init__(self, size: int, parts: Parts, fetch: Callable[[Sequence[Span]], None]) -> None:
        self._size, self._parts, self._fetch = size, parts, fetch
        self._here = 0, 0  # the part that the reader is in
        self._furthest = 0  # the end of what it has looked at
        self._jumps: list[int] = []  # where it went on behind a weight, and how far it read from there
        self._reaches: list[int] = []
        self._step, self._has_tail = STEP // GROWTH, size <= STEP
        self._guesses, self._open, self._right = FEW, 0, 0  # how many to make, those made last, those that were right

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> bytes: ...
    def __getitem__(self, index: int | slice) -> int | bytes:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._size)
            if start < stop:
                self._look_at(start, stop)
            return self._parts.bytes(start, stop)
        start, stop = self._here
        if not start <= index < stop or index > self._furthest:
            self._look_at(index, index + 1)
        return self._parts.byte(index)

    def _look_at(self, start: int, stop: int) -> None:
        """Fetch what is not here of a part that the reader looks at."""
        is_jump = start > self._furthest + NEAR
        if is_jump:
            self._jumps.append(start)
            self._reaches.append(0)
            self._step = HEADER
        if not self._parts.missing_spans([(start, stop)]):
            self._right += is_jump
        elif stop <= self._furthest:
            self._fetch_near([(start, stop)])
        elif is_jump:
            self._fetch_near([(start, max(stop, start + HEADER)), *self._guess_headers()])
        else:
            end = self._parts.around(start)[1]
            self._step = min(GROWTH * self._step, LONGEST)
            self._fetch_near([(end if end > start - NEAR else start, max(stop, start + self._step))])
        self._furthest = max(self._furthest, stop)
        if self._jumps:
            self._reaches[-1] = self._furthest - self._jumps[-1]
        self._here = self._parts.around(start)

    def _guess_headers(self) -> list[Span]:
        """Return where the next headers may be, and the end of the file, once."""
        if self._open:
            self._guesses = min(2 * self._guesses, MANY) if self._right >= self._open else FEW
        guesses = predict_offsets(self._jumps, self._size, self._guesses)
        self._open, self._right = len(guesses), 0
        spans = [(at - BEFORE, at + max(HEADER, min(self._reaches[like], STEP)) + BEFORE) for at, like in guesses]
        if not self._has_tail:
            self._has_tail = True
            spans.append((self._size - TAIL, self._size))
        return spans

    def _fetch_near(self, spans: Sequence[Span]) -> None:
        """Fetch parts, and what is between two of them that are close."""
        missing = self._parts.missing_spans([(max(start, 0), min(stop, self._size)) for start, stop in spans])
        self._fetch(join_spans(missing, GAP))
