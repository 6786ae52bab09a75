"""Measure all matched tensors, some at a time, in topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphkit.runtime.limits import Limits
from graphkit.verify.layers.measure import Measured, measure
from graphkit.verify.layers.pairs import Pair, Reader
from graphkit.verify.layers.side import Dims, Side

__all__ = ["Progress", "sweep"]

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
