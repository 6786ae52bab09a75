"""Where the next headers lie, when those of a file repeat as the layers of its model do.

The header of a weight says where the next one begins, so that they would have to be read one after the other. But the
weights of a layer are as large as those of the layer before: where headers have been at 0, 10, 40, 50, 80, there will
be others at 90, 120, 130, ... A name that is a letter longer moves them a little.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["predict_offsets"]

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
