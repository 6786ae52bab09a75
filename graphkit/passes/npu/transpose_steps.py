"""A Transpose of many axes as Transposes of few: axes that stay together are one, and blocks move step by step."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["TransposeStep", "transpose_steps"]

MAX_AXES = 6  # more would be too many orders to search

Blocks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TransposeStep:
    """A Transpose of a tensor that is reshaped first.

    Attributes:
        dims: What it is reshaped to.
    """

    dims: tuple[int, ...]
    perm: tuple[int, ...]


def transpose_steps(dims: Sequence[int], perm: Sequence[int], rank: int) -> list[TransposeStep] | None:
    """Return Transposes of at most `rank` axes that together order the elements as one of more axes does.

    Returns:
        None where more than `MAX_AXES` axes move apart, or blocks of so few axes cannot give the order.
    """
    blocks, order = _together(dims, perm, rank)
    sizes = [math.prod(dims[axis] for axis in block) for block in blocks]
    if len(order) <= rank:
        return [TransposeStep(tuple(sizes), order)]
    moves = _moves(order, rank) if len(order) <= MAX_AXES else None
    if moves is None:
        return None
    steps = []
    current = tuple(range(len(order)))
    for cuts, move in moves:
        parts = _parts(current, cuts)
        steps.append(TransposeStep(tuple(math.prod(sizes[block] for block in part) for part in parts), move))
        current = tuple(block for index in move for block in parts[index])
    return steps


def _together(dims: Sequence[int], perm: Sequence[int], rank: int) -> tuple[Blocks, tuple[int, ...]]:
    """Return blocks of axes, as few as `rank` if that can be, and the order that they come in.

    Axes of 1 are left out from the first on, then neighbours that stay neighbours are one block.
    """
    left_out: set[int] = set()
    for axis, dim in enumerate(dims):
        if dim == 1 and len(dims) - len(left_out) > rank:
            left_out.add(axis)
    blocks = [[axis] for axis in range(len(dims)) if axis not in left_out]
    after = [axis for axis in perm if axis not in left_out]
    index = 0
    while index + 1 < len(blocks) and len(blocks) > rank:
        last, first = blocks[index][-1], blocks[index + 1][0]
        if after.index(first) == after.index(last) + 1:
            blocks[index] += blocks.pop(index + 1)
        else:
            index += 1
    heads = [block[0] for block in blocks]
    return tuple(map(tuple, blocks)), tuple(heads.index(axis) for axis in after if axis in heads)


@lru_cache(maxsize=256)
def _moves(order: tuple[int, ...], rank: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None:
    """Return the fewest moves of at most `rank` blocks, (where to cut, how to order the parts), that give an order."""
    start = tuple(range(len(order)))
    came: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {}
    pending = deque([start])
    while pending and order not in came:
        current = pending.popleft()
        for cuts, move, after in _neighbours(current, rank):
            if after != start and after not in came:
                came[after] = (current, cuts, move)
                pending.append(after)
    if order not in came:
        return None
    moves = []
    current = order
    while current != start:
        current, cuts, move = came[current]
        moves.append((cuts, move))
    return tuple(reversed(moves))


def _neighbours(
    current: tuple[int, ...], rank: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    for count in range(2, rank + 1):
        for cuts in itertools.combinations(range(1, len(current)), count - 1):
            parts = _parts(current, cuts)
            for move in itertools.permutations(range(count)):
                yield cuts, move, tuple(block for index in move for block in parts[index])


def _parts(current: tuple[int, ...], cuts: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [current[low:high] for low, high in itertools.pairwise((0, *cuts, len(current)))]
