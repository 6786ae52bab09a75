"""Masks that a host makes: moved to the slots of a cache, and told by the formula that they follow."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.host.masks import slots_mask, source_mask
from graphkit.workflows.lower_sizes import Setting

__all__ = ["MASKED", "columns_of", "in_slots", "is_bias_and_mask", "raised", "window_of"]

MASKED = -1e4  # what is added to scores that do not count is at most this, in any export


def raised(mask: np.ndarray, setting: Setting) -> np.ndarray:
    """Return a mask with the floor where nothing counts."""
    return np.where(mask <= MASKED, np.float32(setting.floor), mask).astype(mask.dtype)


def in_slots(found: np.ndarray, axis: int, past: int, setting: Setting) -> np.ndarray:
    """Return an additive mask moved to the slots: the past first, the new token last, the floor between."""
    if found.shape[axis] != past + 1:
        raise UsageError(f"a mask has {found.shape[axis]} keys after {past} tokens, not {past + 1}")
    moved = np.moveaxis(found, axis, -1)
    fixed = np.full((*moved.shape[:-1], setting.capacity + 1), setting.floor, found.dtype)
    fixed[..., :past] = moved[..., :past]
    fixed[..., -1] = moved[..., -1]
    return np.moveaxis(fixed, -1, axis)


def window_of(rows: np.ndarray, setting: Setting) -> int | None:
    """Return the window of a mask over slots, 0 for none, None where it is another function of the position."""
    if rows.shape[-1] != setting.capacity + 1:
        return None
    windows: list[int] = [0, *range(1, setting.capacity + 1)]
    for window in windows:
        if all(
            np.array_equal(row, _broadcast(slots_mask(past, setting.capacity, window, setting.floor), row))
            for past, row in enumerate(rows)
        ):
            return window
    return None


def columns_of(rows: np.ndarray, setting: Setting) -> int | None:
    """Return 0 where a mask hides the columns past the valid ones, at all valid rows; None where it does not."""
    if rows.shape[-1] != setting.source:  # of a source that convolutions have made shorter
        return None
    for valid, row in enumerate(rows, 1):
        expected = source_mask(valid, setting.source, setting.floor)
        queries = valid if row.ndim > 1 and row.shape[-2] == setting.source else row.shape[-2] if row.ndim > 1 else 1
        seen = row[..., :queries, :]
        if not np.array_equal(seen, _broadcast(expected, seen)):
            return None
    return 0


def is_bias_and_mask(found: np.ndarray, full: np.ndarray, valid: int) -> bool:
    """Whether an additive mask equals the one without padding at valid columns, and hides all columns that pad."""
    if found.shape != full.shape or not bool((found[..., valid:] <= MASKED).all()):
        return False
    return np.array_equal(found[..., :valid], full[..., :valid])


def _broadcast(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.broadcast_to(mask.astype(like.dtype), like.shape)
