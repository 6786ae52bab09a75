"""Token ids for a run: drawn from the whole vocabulary, with the special ones where models look for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from graphkit.verify.input_elements import Draw

__all__ = ["special_tokens", "with_specials"]

USUAL_SPECIALS = (0, 1, 2, 3)  # padding, start, end, unknown, in one order or another
MAX_ROWS = 512  # that get special tokens
PLACES = 6  # first, middle, last, twice, at both ends, not at all


def special_tokens(vocabulary: int, compared: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the ids that models treat in their own way: the first ones, the last one, and those of comparisons."""
    found = dict.fromkeys((vocabulary - 1, *compared, *USUAL_SPECIALS))
    return tuple(token for token in found if 0 <= token < vocabulary)


def with_specials(ids: np.ndarray, specials: Sequence[int], draw: Draw) -> np.ndarray:
    """Return ids in which each row has a special token at one of its places, and no row another one by chance."""
    made: np.ndarray = ids.copy()
    if not made.size or not made.ndim or not specials:
        return made
    usual = next((token for token in range(int(ids.max()), -1, -1) if token not in specials), None)
    if usual is not None:
        made[np.isin(made, specials)] = usual
    for index, row in enumerate(made.reshape(-1, made.shape[-1])[:MAX_ROWS]):
        turn = draw.number + index
        token, place, size = specials[turn % len(specials)], turn % PLACES, len(row)
        spots = ([0], [size // 2], [size - 1], [size // 3, size - 1], [0, size - 1], [])[place]
        row[spots] = token
    return made
