"""Arithmetic on weights part by part: what is in memory is a part, whatever the size of the weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.errors import GraphkitError
from graphkit.model import Model

__all__ = ["PrecisionError", "columns_of", "joined", "read", "rounded", "scaled", "spread", "summed"]

PART = 1 << 20  # elements that are calculated with at a time
ROUNDINGS = 4  # of an element, that a product may be off by


class PrecisionError(GraphkitError):
    """Numbers are too large or too small for the type that they have to be stored as."""


def read(model: Model, tensor: TensorProto, view: Sequence[int] | None = None) -> np.ndarray:
    """Return a tensor's elements, mapped from its file where they lie in one.

    Raises:
        ModelError: The file is missing.
    """
    return np.frombuffer(model.payload(tensor), _stored(tensor.data_type)).reshape(
        tensor.dims if view is None else view
    )


def _stored(dtype: int) -> np.dtype[Any]:
    found: np.dtype[Any] = FLOATS[dtype].newbyteorder("<")
    return found


def rounded(numbers: np.ndarray, dtype: int) -> np.ndarray:
    """Return numbers as a tensor holds them.

    Raises:
        PrecisionError: They overflow, or so many become zeros or nearly so that they are no longer the same numbers.
    """
    with np.errstate(over="ignore", under="ignore"):
        result = numbers.astype(_stored(dtype))
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all():
        raise PrecisionError(f"the product is too large for {FLOATS[dtype].name}")
    allowed = ROUNDINGS * float(np.finfo(FLOATS[dtype]).eps) * np.linalg.norm(numbers)
    if np.linalg.norm(wide - numbers) > allowed:
        raise PrecisionError(f"the product is too small for {FLOATS[dtype].name}")
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
    """Return what of a factor counts for a part of the weight."""
    return factor if factor.shape[0] == 1 else factor[part]


def scaled(weight: np.ndarray, dtype: int, *factors: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of a weight times factors that are broadcast to it.

    Raises:
        PrecisionError: See `rounded`.
    """
    for part in _parts(weight):
        numbers = weight[part].astype(np.float64)
        for factor in factors:
            numbers *= _part(factor, part)
        yield rounded(numbers, dtype).tobytes()


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
        taken = [weight[part][:, wanted] for weight, wanted in zip(weights, columns, strict=True)]
        yield np.concatenate(taken, axis=1).tobytes()
