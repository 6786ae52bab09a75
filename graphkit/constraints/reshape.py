"""The precondition of Reshape: in the target, 0 copies a dim unless `allowzero`, and one -1 is inferred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.constraints.precondition import FAILS, FINE, WRONG, Bools, Ints, Precondition, Violation
from graphkit.shapes import Expr

__all__ = ["Reshaped"]

CANNOT = "cannot be reshaped to the requested shape"


@dataclass(frozen=True)
class Reshaped(Precondition):
    """A target shape fits the number of elements, and is read as it was written.

    A constant 0 in the target is meant to copy a dim. An expression that is 0 is meant as 0: if onnxruntime copies
    another dim instead, the shape is wrong.
    """

    source: tuple[Expr, ...]
    target: tuple[Expr, ...]
    allow_zero: bool

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.source, *self.target)

    def outcome(self, values: Sequence[Ints]) -> Ints:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        shape = values[0].shape
        total = math.prod(source, start=np.ones(shape, np.int64))
        fails = np.zeros(shape, np.bool_)
        wrong = np.zeros(shape, np.bool_)
        inferred = np.zeros(shape, np.int64)
        size = np.ones(shape, np.int64)
        for index, element in enumerate(target):
            is_rest = element == -1
            fails |= element < -1
            inferred += is_rest
            copied, cannot = self._copied(index, element, source)
            fails |= cannot
            wrong |= (copied != element) & (self.target[index].constant is None)
            size = size * np.where(is_rest, 1, copied)
        fails |= inferred > 1
        divisor = np.where(size == 0, 1, size)
        beside_zero = (size == 0) & (not self.allow_zero)  # with allowzero, onnxruntime takes -1 beside 0 for 1
        fails |= np.where(inferred == 1, beside_zero | (total % divisor != 0), total != size)
        return np.where(fails, FAILS, np.where(wrong, WRONG, FINE))

    def _copied(self, index: int, element: Ints, source: Sequence[Ints]) -> tuple[Ints, Bools]:
        """Return an element with 0 replaced by the dim that it copies, and where there is no dim to copy."""
        if self.allow_zero:
            return element, np.zeros(element.shape, np.bool_)
        if index >= len(source):
            return element, element == 0
        return np.where(element == 0, source[index], element), np.zeros(element.shape, np.bool_)

    def violation(self, values: Sequence[int]) -> Violation:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        told = f"{source} to [{', '.join(map(str, self.target))}] = {target}"
        if any(element < -1 for element in target):
            return Violation(f"{told}: below -1", "A dimension cannot be less than -1")
        if not self.allow_zero and 0 in target[len(source) :]:
            return Violation(f"{told}: 0 has nothing to copy", "exceeds the dimension size of the input tensor")
        if target.count(-1) > 1:
            return Violation(f"{told}: more than one -1", "At most one dimension can be -1")
        result = [
            source[index] if element == 0 and not self.allow_zero else element for index, element in enumerate(target)
        ]
        meant = [i for i, expr in enumerate(self.target) if expr.constant is None]
        copies = [f"0 copies {result[i]}" for i in meant if target[i] != result[i]]
        size = int(np.prod([element for element in result if element != -1]))
        total = int(np.prod(source))
        if -1 in target and size == 0 and not self.allow_zero:
            return Violation(f"{told}: -1 beside 0 cannot be inferred", CANNOT)
        if (-1 in target and total % max(size, 1)) or (-1 not in target and total != size):
            return Violation(f"{told}: {'; '.join([*copies, f'{total} elements do not fit'])}", CANNOT)
        result = [total // max(size, 1) if element == -1 else element for element in result]
        return Violation(f"{told}: {'; '.join(copies)}", "", tuple(result))
