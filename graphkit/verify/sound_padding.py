"""Whether what an export gives for a sound depends on how many zeros follow it, which its mask does not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from graphkit.errors import ModelError
from graphkit.verify.one_sequence import OneSequence

__all__ = ["padding_note"]


def padding_note(
    reference: OneSequence,
    user: Mapping[str, np.ndarray],
    token: int,
    longest: int,
    differ: Callable[[np.ndarray, np.ndarray], bool],
) -> Iterator[str]:
    """Yield a sentence if a sound without zeros behind it gives other logits, as where time is normalized over.

    Args:
        reference: The original, of whose sound a part is valid.
        user: The sound, longer than that part.
        token: What the decoder starts with.
        longest: How long the sound is with its zeros.
        differ: Whether an array is not another, that being the second.
    """
    valid = reference.valid
    if valid is None or valid >= longest or reference.originals.step is None:
        return
    found = []
    try:
        for reference.is_cut in (False, True):
            reference.start([], user)
            found.append(reference.step(token))
    except ModelError:  # it does not run at that length
        return
    finally:
        reference.is_cut = False
    padded, cut = found
    if padded.shape == cut.shape and differ(cut, padded):
        apart = float(np.abs(cut.astype(np.float64) - padded.astype(np.float64)).max())
        yield (
            f"The original depends on how far a sound is padded, whatever its mask says: the first logits of one of "
            f"{valid:,} places differ by {apart:.1e} without padding. Host and models give what it gives for sounds "
            f"that zeros make {longest:,} places long."
        )
