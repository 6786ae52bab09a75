"""Sounds as lowered models take them: all of one length, zeros behind what is valid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.deploy.contract import Port, sound_axis
from graphkit.errors import UsageError

__all__ = ["sound_length", "with_zeros"]


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
