"""Where the next headers lie, when those of a file repeat as the layers of its model do.

The header of a weight says where the next one begins, so that they would have to be read one after the other. But the
weights of a layer are as large as those of the layer before: where headers have been at 0, 10, 40, 50, 80, there will
be others at 90, 120, 130, ... A name that is a letter longer moves them a little.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["predicted"]

LONGEST = 128  # headers of a layer
SLACK = 64  # bytes by which the distances of two headers of one kind may differ


def predicted(offsets: Sequence[int], end: int, count: int) -> list[tuple[int, int]]:
    """Return at most so many offsets, before the end, that follow if the last ones repeat; none where they do not.

    Beside each is the number of a known one like it, behind which there are others already.
    """
    known = offsets[-3 * LONGEST :]
    steps = [after - before for before, after in itertools.pairwise(known)]
    period = _period(steps)
    if period is None or count < 1:
        return []
    found: list[tuple[int, int]] = []
    at, last = offsets[-1], steps[-period:]
    while len(found) < count:
        at += last[len(found) % period]
        if at >= end:
            break
        found.append((at, len(offsets) - 2 * period + len(found) % period))
    return found


def _period(steps: Sequence[int]) -> int | None:
    """Return the number of steps after which they repeat for the longest time, the smallest of several such numbers."""
    best, longest = None, 0
    for period in range(1, min(LONGEST, len(steps) // 2) + 1):
        repeated = 0
        while repeated + period < len(steps) and abs(steps[-1 - repeated] - steps[-1 - repeated - period]) <= SLACK:
            repeated += 1
        if repeated >= period and repeated > longest:
            best, longest = period, repeated
    return best
