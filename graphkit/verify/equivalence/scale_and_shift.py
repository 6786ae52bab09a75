"""A tensor times a constant or plus one, one number or one for each channel: how large it may be, and two as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import TensorProto

from graphkit.verify.equivalence.near_constants import EXACT, Doubt, of_product, of_sum

__all__ = ["LEAST_SIZE", "Change", "Kind", "hides", "vector_of"]

LARGEST_FACTOR: Mapping[int, float] = {
    TensorProto.FLOAT: 2.0**24, TensorProto.DOUBLE: 2.0**24, TensorProto.FLOAT16: 2.0**8,
}  # fmt: skip
# The largest number that may be added and taken away again, beside numbers of about 1: the result is off by no more
# than a run may be. That is 1.5e-5 of float32, and 4e-3 of float16.
LARGEST_SHIFT: Mapping[int, float] = {TensorProto.FLOAT: 2.0**7, TensorProto.DOUBLE: 2.0**10, TensorProto.FLOAT16: 4.0}
# How small constants may have made numbers of about 1 that are scaled again: smaller ones lose digits, or are 0.
LEAST_SIZE: Mapping[int, float] = {
    TensorProto.FLOAT: 2.0**-64, TensorProto.DOUBLE: 2.0**-64, TensorProto.FLOAT16: 2.0**-8,
}  # fmt: skip
Kind = Literal["Scaled", "Shifted"]


@dataclass(frozen=True, eq=False)
class Change:
    """A tensor times a constant, or plus one.

    Attributes:
        vector: In float64, one number or one for each channel.
        axis: The axis of the channels; None for one number.
        doubt: How far rounding may have moved the numbers.
    """

    kind: Kind
    vector: np.ndarray
    axis: int | None
    doubt: Doubt = EXACT

    def is_moderate(self, dtype: int) -> bool:
        """Whether it is far from overflowing, and from hiding a number that it is added to."""
        if self.kind == "Shifted":
            return not hides(self.vector, 1.0, dtype)
        sizes = np.abs(self.vector)
        large, small = sizes <= LARGEST_FACTOR[dtype], sizes >= 1 / LARGEST_FACTOR[dtype]
        return bool((large & (small | (sizes == 0))).all())  # a channel may be 0, as it is pruned

    @property
    def is_nothing(self) -> bool:
        """Whether it changes nothing but the sign of zeros."""
        return bool((self.vector == (1 if self.kind == "Scaled" else 0)).all())

    def after(self, other: Change) -> Change | None:
        """Return this one and another one of its kind before it as one; None where their channels differ."""
        axis = self.axis if other.axis is None else other.axis
        if None not in (self.axis, other.axis) and self.axis != other.axis:
            return None
        doubts = self.doubt, other.doubt
        if self.kind == "Scaled":
            both, doubt = self.vector * other.vector, of_product(self.vector, other.vector, doubts)
        else:
            both, doubt = self.vector + other.vector, of_sum(self.vector, other.vector, doubts)
        return Change(self.kind, both, axis, doubt)

    def inverse(self) -> Change:
        """Return what undoes a scale of relative doubt."""
        assert isinstance(self.doubt, float)
        with np.errstate(divide="ignore"):
            return Change("Scaled", np.asarray(1 / self.vector), self.axis, self.doubt + 1)

    def at(self, axis: int | None) -> Change:
        """Return the same change along an axis of another tensor."""
        return Change(self.kind, self.vector, axis, self.doubt)


def hides(numbers: np.ndarray, sizes: np.ndarray | float, dtype: int) -> bool:
    """Whether one of some numbers is so large that what it is added to, of about these sizes, is lost beside it."""
    return not (np.abs(numbers) <= LARGEST_SHIFT[dtype] * sizes).all()  # NaN hides all


def vector_of(array: np.ndarray, rank: int) -> tuple[np.ndarray, int | None] | None:
    """Return the numbers of a constant that broadcasts to a rank, and their axis; None where it has more axes."""
    long = [axis for axis, size in enumerate(array.shape) if size != 1]
    if len(long) > 1 or array.ndim > rank or not array.size:
        return None
    flat = array.astype(np.float64).reshape(-1)
    return (flat, rank - array.ndim + long[0]) if long else (flat[0], None)
