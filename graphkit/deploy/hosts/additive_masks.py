"""Additive masks of attention scores: 0 where they count, the floor where they do not."""

from __future__ import annotations

import numpy as np

__all__ = ["slots_mask", "source_mask"]


def slots_mask(past: int, capacity: int, window: int, floor: float) -> np.ndarray:
    """Return the mask over the slots of a cache and, last, the new token: float32 [capacity + 1].

    Args:
        past: Slots in use.
        capacity: Slots.
        window: How many tokens count, the new one included; 0 for all.
        floor: What is added where nothing counts.
    """
    mask = np.full(capacity + 1, floor, np.float32)
    mask[max(0, past + 1 - window) if window else 0 : past] = 0
    mask[capacity] = 0
    return mask


def source_mask(valid: int, source: int, floor: float) -> np.ndarray:
    """Return the mask over the positions of a padded source: float32 [source]."""
    mask = np.full(source, floor, np.float32)
    mask[:valid] = 0
    return mask
