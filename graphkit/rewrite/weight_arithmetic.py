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

PART = 1 << 20  # elements that are calculated with at a time
ROUNDINGS = 4  # of an element, that a product may be off by


def read_elements(model: Model, tensor: TensorProto, view: Sequence[int] | None = None) -> np.ndarray:
    """Return a tensor's elements, mapped from its file where they lie in one; a ModelError where they do not fit."""
    try:
        array = np.frombuffer(model.payload(tensor), _stored_dtype(tensor.data_type))
        return array.reshape(tensor.dims if view is None else view)
    except ValueError as error:
        problem, hint = "its elements are not as many as its dims say", "export the model again"
        raise ModelError(problem, tensor=tensor.name, hint=hint) from error


def _stored_dtype(dtype: int) -> np.dtype[Any]:
    known = FLOATS[dtype] if dtype in FLOATS else tensor_dtype_to_np_dtype(dtype)
    stored: np.dtype[Any] = known.newbyteorder("<")
    return stored


def round_numbers(numbers: np.ndarray, dtype: int) -> np.ndarray:
    """Return numbers as a tensor holds them.

    A MatchFailure says that they overflow, or that so many become (nearly) zeros that they are no longer the same.
    """
    with np.errstate(over="ignore", under="ignore"):
        result = numbers.astype(_stored_dtype(dtype))
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all():
        raise MatchFailure(f"the product is too large for {FLOATS[dtype].name}")
    allowed = ROUNDINGS * float(np.finfo(FLOATS[dtype]).eps) * np.linalg.norm(numbers)
    if np.linalg.norm(wide - numbers) > allowed:
        raise MatchFailure(f"the product is too small for {FLOATS[dtype].name}")
    return result


def spread_along_axes(numbers: np.ndarray, view: Sequence[int], axes: Sequence[int]) -> np.ndarray:
    """Return numbers by channel in a shape that is broadcast to a view of the weight; one number stays one."""
    if numbers.size == 1 and math.prod(view[axis] for axis in axes) != 1:
        return numbers.reshape([1] * len(view))
    return numbers.reshape([dim if axis in axes else 1 for axis, dim in enumerate(view)])


def _first_axis_slices(weight: np.ndarray) -> Iterator[slice]:
    step = max(PART // max(math.prod(weight.shape[1:]), 1), 1)
    yield from (slice(start, start + step) for start in range(0, weight.shape[0], step))


def _factor_part(factor: np.ndarray, part: slice) -> np.ndarray:
    return factor if factor.shape[0] == 1 else factor[part]


def scale_weight(
    weight: np.ndarray, dtype: int, *factors: np.ndarray, zero: np.ndarray | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a weight, without zero points, times factors; all are broadcast to it. See `round_numbers`."""
    for part in _first_axis_slices(weight):
        numbers = weight[part].astype(np.float64)
        if zero is not None:
            numbers -= _factor_part(zero, part)
        for factor in factors:
            numbers *= _factor_part(factor, part)
        yield round_numbers(numbers, dtype).tobytes()


def dequantized_blocks(
    codes: np.ndarray, bits: int, count: int, dtype: int, zero: np.ndarray, scale: np.ndarray, *, is_transposed: bool
) -> Iterator[bytes]:
    """Yield the bytes of the matrix that blocks of small numbers stand for, or of it transposed, a part at a time.

    Codes are bytes, `[rows, blocks, bytes of a block]`, the lowest bits of a byte first, of 2, 4 or 8 bits a number.
    A row has `count` numbers: its last block may have fewer than it has room for. Zero points and scales are
    `[rows, blocks]`.
    """
    (rows, blocks, _), size = codes.shape, codes.shape[2] * 8 // bits
    along, across = (blocks, rows * size) if is_transposed else (rows, blocks * size)
    step = max(PART // max(across, 1), 1)
    for start in range(0, along, step):
        here = slice(start, start + step)
        part = (slice(None), here) if is_transposed else (here,)
        numbers = unpack_codes(codes[part], bits).astype(np.float64)
        numbers = (numbers - zero[part][..., None]) * scale[part][..., None]
        wide = numbers.reshape(len(numbers), -1)[:, : count - start * size if is_transposed else count]
        yield round_numbers(wide.T if is_transposed else wide, dtype).tobytes()


def unpack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers in bytes along the last axis, the lowest bits of a byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: np.ndarray = codes[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*codes.shape[:-1], codes.shape[-1] * len(shifts))


def sum_weight(weight: np.ndarray, factor: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return the sums of a weight times a factor over all axes but some, as a vector in float64."""
    others = tuple(axis for axis in range(weight.ndim) if axis not in axes)
    total = np.zeros([dim if axis in axes else 1 for axis, dim in enumerate(weight.shape)])
    for part in _first_axis_slices(weight):
        sums = (weight[part].astype(np.float64) * _factor_part(factor, part)).sum(axis=others, keepdims=True)
        total[part if 0 in axes else slice(None)] += sums
    return total.reshape(-1)


def join_weights(weights: Sequence[np.ndarray], axis: int) -> Iterator[bytes]:
    """Yield the bytes of weights that are joined along an axis."""
    if axis == 0:
        yield from (weight[part].tobytes() for weight in weights for part in _first_axis_slices(weight))
        return
    for part in _first_axis_slices(weights[0]):
        yield np.concatenate([weight[part] for weight in weights], axis=axis).tobytes()


def columns_of(weights: Sequence[np.ndarray], columns: Sequence[np.ndarray]) -> Iterator[bytes]:
    """Yield the bytes of a matrix that has some columns of each of several ones side by side."""
    for part in _first_axis_slices(weights[0]):
        taken = [weight[part][:, places] for weight, places in zip(weights, columns, strict=True)]
        yield np.concatenate(taken, axis=1).tobytes()
