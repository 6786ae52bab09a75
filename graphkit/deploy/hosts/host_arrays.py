"""The arrays that a host makes: additive masks of attention scores, and sounds of one length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.deploy.contract import Port, sound_axis
from graphkit.errors import UsageError

__all__ = ["slots_mask", "sound_length", "source_mask", "with_zeros"]


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


def sound_length(array: np.ndarray, port: Port, most: int) -> int:
    """Return how long a sound is.

    Raises:
        UsageError: It has other axes than its port.
    """
    if array.ndim != len(port.shape):
        raise UsageError(f"'{port.name}' is {list(array.shape)}, and takes at most {list(port.shape)}")
    return int(array.shape[sound_axis(port, most)])


def with_zeros(array: np.ndarray, port: Port, most: int, valid: Sequence[int]) -> np.ndarray:
    """Return sounds with zeros behind the valid samples of each, as long as their port.

    Raises:
        UsageError: They have other axes than their port, or are longer.
    """
    axis = sound_axis(port, most)
    if sound_length(array, port, most) > most or len(array) != port.shape[0]:
        raise UsageError(f"'{port.name}' is {list(array.shape)}, and takes at most {list(port.shape)}")
    padded = np.pad(array, [(0, most - array.shape[axis] if at == axis else 0) for at in range(array.ndim)])
    for length, part in zip(valid, np.split(padded, len(valid)), strict=True):
        np.moveaxis(part, axis, 0)[length:] = 0
    return padded
