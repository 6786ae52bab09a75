"""Arithmetic on weights part by part: only a part is in memory, whatever the size of the weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.dtypes import FLOATS
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.rewrite.base import MatchFailure

__all__ = [
    "columns_of", "dequantized", "dequantized_blocks", "joined", "read", "rounded", "scaled",
    "spread", "summed", "unpacked",
]  # fmt: skip

PART = 1 << 20  # elements that are calculated with at a time
ROUNDINGS = 4  # of an element, that a product may be off by


def read(model: Model, tensor: TensorProto, view: Sequence[int] | None = None) -> np.ndarray:
    """Return a tensor's elements, mapped from its file where they lie in one.

    Raises:
        ModelError: The file is missing, or the elements do not fit the dims.
    """
    dims = tensor.dims if view is None else view
    try:
        return np.frombuffer(model.payload(tensor), _stored(tensor.data_type)).reshape(dims)
    except ValueError as error:
        raise ModelError(
            "its elements are not as many as its dims say", tensor=tensor.name, hint="export the model again"
        ) from error


def _stored(dtype: int) -> np.dtype[Any]:
    known = FLOATS[dtype] if dtype in FLOATS else tensor_dtype_to_np_dtype(dtype)
    stored: np.dtype[Any] = known.newbyteorder("<")
    return stored


def rounded(numbers: np.ndarray, dtype: int) -> np.ndarray:
    """Return numbers as a tensor holds them.

    Raises:
        MatchFailure: They overflow, or so many become zeros or nearly so that they are no longer the same numbers.
    """
    with np.errstate(over="ignore", under="ignore"):
        result = numbers.astype(_stored(dtype))
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all():
        raise MatchFailure(f"the product is too large for {FLOATS[dtype].name}")
    allowed = ROUNDINGS * float(np.finfo(FLOATS[dtype]).eps) * np.linalg.norm(numbers)
    if np.linalg.norm(wide - numbers) > allowed:
        raise MatchFailure(f"the product is too small for {FLOATS[dtype].name}")
    return result


def spread(numbers: np.ndarray, view: Sequence[int], axes: Sequence[int]) -> np.ndarray:
    """Return numbers by channel in a shape that is broadcast to a view of the weight; one number stays one."""
    if numbers.size == 1 and math.prod(view[axis] for axis in axes) != 1:
        return numbers.reshape([1] * len(view))
    return numbers.reshape([dim if axis in axes else 1 for axis, dim in enumerate(view)])


def _parts(weight: np.ndarray) -> Iterator[slice]:
    """Yield slices of the first axis."""
    step = max(PART // max(math.prod(weight.shape[1:]), 1), 1)
    yield from (slice(start, start + step) for start in range(0, weight.shape[0], step))


def _part(factor: np.ndarray, part: slice) -> np.ndarray:
    """Return the part of a factor that applies to a part of the weight."""
    return factor if factor.shape[0] == 1 else factor[part]


def scaled(weight: np.ndarray, dtype: int, *factors: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of a weight times factors that are broadcast to it.

    Raises:
        MatchFailure: See `rounded`.
    """
    for part in _parts(weight):
        numbers = weight[part].astype(np.float64)
        for factor in factors:
            numbers *= _part(factor, part)
        yield rounded(numbers, dtype).tobytes()


def dequantized(weight: np.ndarray, dtype: int, zero: np.ndarray, scale: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of `(weight - zero) * scale`, where zero points and scales are broadcast to the weight.

    Raises:
        MatchFailure: See `rounded`.
    """
    for part in _parts(weight):
        numbers = (weight[part].astype(np.float64) - _part(zero, part)) * _part(scale, part)
        yield rounded(numbers, dtype).tobytes()


def dequantized_blocks(
    codes: np.ndarray, bits: int, count: int, dtype: int, zero: np.ndarray, scale: np.ndarray
) -> Iterator[bytes]:
    """Yield the bytes of the transposed matrix that blocks of small numbers stand for, a few blocks at a time.

    Args:
        codes: Bytes, `[columns, blocks, bytes of a block]`, the lowest bits of a byte first.
        bits: Of a number: 2, 4 or 8.
        count: Rows, of which the last block may have fewer than it has room for.
        dtype: The dtype of the result, `[rows, columns]`.
        zero: Zero points, `[columns, blocks]`.
        scale: Scales, `[columns, blocks]`.

    Raises:
        MatchFailure: See `rounded`.
    """
    columns, blocks, size = codes.shape[0], codes.shape[1], codes.shape[2] * 8 // bits
    step = max(PART // max(columns * size, 1), 1)
    for start in range(0, blocks, step):
        part = slice(start, start + step)
        numbers = unpacked(codes[:, part], bits).astype(np.float64)
        numbers = (numbers - zero[:, part, None]) * scale[:, part, None]
        rows = numbers.reshape(columns, -1)[:, : count - start * size].T
        yield rounded(rows, dtype).tobytes()


def unpacked(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers in bytes along the last axis, the lowest bits of a byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: np.ndarray = codes[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*codes.shape[:-1], codes.shape[-1] * len(shifts))


def summed(weight: np.ndarray, factor: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return the sums of a weight times a factor over all axes but some, as a vector in float64."""
    others = tuple(axis for axis in range(weight.ndim) if axis not in axes)
    total = np.zeros([dim if axis in axes else 1 for axis, dim in enumerate(weight.shape)])
    for part in _parts(weight):
        sums = (weight[part].astype(np.float64) * _part(factor, part)).sum(axis=others, keepdims=True)
        total[part if 0 in axes else slice(None)] += sums
    return total.reshape(-1)


def joined(weights: Sequence[np.ndarray], axis: int) -> Iterator[bytes]:
    """Yield the bytes of weights that are joined along an axis."""
    if axis == 0:
        yield from (weight[part].tobytes() for weight in weights for part in _parts(weight))
        return
    for part in _parts(weights[0]):
        yield np.concatenate([weight[part] for weight in weights], axis=axis).tobytes()


def columns_of(weights: Sequence[np.ndarray], columns: Sequence[np.ndarray]) -> Iterator[bytes]:
    """Yield the bytes of a matrix that has some columns of each of several ones side by side."""
    for part in _parts(weights[0]):
        taken = [weight[part][:, places] for weight, places in zip(weights, columns, strict=True)]
        yield np.concatenate(taken, axis=1).tobytes()
