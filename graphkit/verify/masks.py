"""Masks for a run: rows without padding, padded on either side, with holes, or of zeros alone."""

from __future__ import annotations

import numpy as np

from graphkit.verify.draws import USUAL, Draw, Padding

__all__ = ["float_mask", "image_mask", "padding_mask"]

LEAST_WITH_HOLES = 3
MAX_ROWS = 512  # that may be padded
FLOORS = (-1e4, None, -np.inf)  # what is added where a mask hides something; None for the least finite number


def padding_mask(shape: tuple[int, ...], rng: np.random.Generator, kept: int = 1, draw: Draw = USUAL) -> np.ndarray:
    """Return ones, with zeros where the draw says; each row but an empty one keeps at least `kept` ones, and one.

    Masks of more than two axes are of the last axis, the same for all that is between it and the first one.
    """
    mask = np.ones(shape, np.int64)
    if len(shape) < 2 or 0 in shape:
        return mask
    for row in range(min(shape[0], MAX_ROWS)):
        mask[row] = _row(draw.row(row), shape[-1], max(kept, 1), rng)
        if draw.row(row) == "holes" and len(shape) > 2:
            mask[row] &= rng.random(shape[1:]) < 0.7
            mask[row][..., 0] = 1
    return mask


def _row(padding: Padding, size: int, kept: int, rng: np.random.Generator) -> np.ndarray:
    row = np.ones(size, np.int64)
    if padding == "empty":
        return row * 0
    if size <= kept or padding == "full":
        return row
    if padding == "holes" and size - kept >= 1 and size >= LEAST_WITH_HOLES:
        row[rng.permutation(np.arange(1, size - 1))[: max(min((size - 1) // 2, size - kept), 1)]] = 0
        return row
    count = int(rng.integers(1, size - kept + 1))
    row[slice(0, count) if padding == "left" else slice(size - count, None)] = 0
    return row


def image_mask(shape: tuple[int, ...], rng: np.random.Generator, draw: Draw = USUAL) -> np.ndarray:
    """Return masks [batch, height, width] of images that fill a batch's size from the upper left corner."""
    mask = np.ones(shape, np.int64)
    if len(shape) < 3 or 0 in shape:
        return padding_mask(shape, rng, draw=draw)
    for row in range(shape[0]):
        padding = draw.row(row)
        if padding == "empty":
            mask[row] = 0
        elif padding != "full":
            mask[row][..., :, int(rng.integers(1, shape[-1] + 1)) :] = 0
            mask[row][..., int(rng.integers(1, shape[-2] + 1)) :, :] = 0
    return mask


def float_mask(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, draw: Draw) -> np.ndarray:
    """Return a mask of floats: some models multiply with it, others add it, and it may be any bias."""
    if draw.number % 3 == 2:
        return rng.standard_normal(shape)
    keep = padding_mask(shape, rng, draw=draw)
    if draw.number % 3 == 1 and len(shape) < 3:
        return keep.astype(np.float64)
    floor = FLOORS[draw.number // 3 % len(FLOORS)]
    least = float(np.finfo(dtype).min) if floor is None else floor
    return np.where(keep == 0, least, 0.0)
