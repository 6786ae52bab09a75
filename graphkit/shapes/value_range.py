"""The form of an integer tensor's elements: an affine function of the coordinates, or a value range.

The elements that Range, Expand and Add make are `start + i*stride[0] + j*stride[1] + ...` at the coordinates i, j, ...:
rank + 1 expressions say all of them, even where their number depends on the input dims. Of other tensors, the least and
the greatest element may be known. For a tensor without elements, every statement holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import Array, Dims, is_known
from graphkit.symbolic.algebra import lower, maximum, minimum, upper
from graphkit.symbolic.expr import OPERATIONS, Call, Expr, const

__all__ = ["Affine", "Form", "ValueRange", "add_forms", "broadcast_form", "fit_form", "uniform_form"]

MAX_COMPARED = 8  # different expressions whose least is looked for


@dataclass(frozen=True)
class ValueRange:
    """The least and the greatest element of a tensor; both occur, unless it has no elements."""

    low: Expr
    high: Expr

    @property
    def uniform(self) -> Expr | None:
        """The element that all elements equal, None if they may differ."""
        return self.low if self.low == self.high else None

    @property
    def range(self) -> ValueRange:
        """The range itself."""
        return self

    @property
    def is_known(self) -> bool:
        """Whether both are expressions in the model's input dims."""
        return is_known(self.low) and is_known(self.high)

    def times(self, factor: Expr) -> ValueRange:
        """Return it multiplied.

        Raises:
            UnknownError: The sign of the factor is not known.
        """
        ends = self.low * factor, self.high * factor
        return ValueRange(*ends[:: _sign_of_factor(factor)])

    def each(self, function: Callable[[Expr, Expr], Expr], limit: Expr) -> ValueRange:
        """Return it after `min` or `max` with a limit."""
        return ValueRange(function(self.low, limit), function(self.high, limit))


@dataclass(frozen=True)
class Affine:
    """The elements of a tensor: `start` plus the sum of each coordinate times its stride.

    Attributes:
        strides: One a dim, 0 where the dim is 1.
    """

    dims: Dims
    start: Expr
    strides: tuple[Expr, ...]

    @classmethod
    def of(cls, dims: Dims, start: Expr, strides: Sequence[Expr]) -> Affine:
        """Return it with strides of 0 where the dim is 1."""
        return cls(dims, start, tuple(const(0) if dim == 1 else s for dim, s in zip(dims, strides, strict=True)))

    @property
    def uniform(self) -> Expr | None:
        """The element that all elements equal, None if they may differ."""
        return self.start if all(stride == 0 for stride in self.strides) else None

    @property
    def range(self) -> ValueRange:
        """The least and the greatest element.

        Raises:
            UnknownError: The sign of a stride is not known.
        """
        low = high = self.start
        for dim, stride in zip(self.dims, self.strides, strict=True):
            if stride != 0:
                reach = (_without_empty(dim) - 1) * stride
                low, high = (low, high + reach) if _sign_of_factor(stride) > 0 else (low + reach, high)
        return ValueRange(low, high)

    def times(self, factor: Expr) -> Affine:
        """Return it multiplied."""
        return Affine(self.dims, self.start * factor, tuple(stride * factor for stride in self.strides))

    def broadcast(self, dims: Dims) -> Affine | None:
        """Return it broadcast to other dims, None where it is not certain which dims grow."""
        missing = len(dims) - len(self.dims)
        if missing < 0:
            return None
        strides = [const(0)] * missing
        for dim, stride, after in zip(self.dims, self.strides, dims[missing:], strict=True):
            if dim not in (1, after):
                return None
            strides.append(stride)
        return Affine.of(dims, self.start, strides)

    def reshaped(self, dims: Dims) -> Affine | None:
        """Return it with other dims, where only dims of 1 come and go."""
        strided = [(dim, stride) for dim, stride in zip(self.dims, self.strides, strict=True) if dim != 1]
        if [dim for dim, _ in strided] != [dim for dim in dims if dim != 1]:
            return None
        strides_left = iter(stride for _, stride in strided)
        return Affine.of(dims, self.start, [const(0) if dim == 1 else next(strides_left) for dim in dims])

    def transposed(self, order: Sequence[int]) -> Affine:
        """Return it with its axes in another order."""
        dims, strides = (tuple(row[axis] for axis in order) for row in (self.dims, self.strides))
        return Affine(dims, self.start, strides)


Form = Affine | ValueRange


def uniform_form(element: Expr | int, dims: Dims | None) -> Form:
    """Return the form of a tensor whose elements are all the same."""
    element = Expr.of(element)
    return ValueRange(element, element) if dims is None else Affine(dims, element, (const(0),) * len(dims))


def broadcast_form(form: Form, dims: Dims | None) -> Form:
    """Return the form of a tensor after it is broadcast."""
    grown = form.broadcast(dims) if isinstance(form, Affine) and dims is not None else None
    return grown or form.range


def add_forms(left: Form, right: Form, dims: Dims | None, *, all_meet: bool) -> Form:
    """Return the form of a sum, given whether each element of one side meets each of the other."""
    a, b = broadcast_form(left, dims), broadcast_form(right, dims)
    if isinstance(a, Affine) and isinstance(b, Affine):
        return Affine.of(a.dims, a.start + b.start, [x + y for x, y in zip(a.strides, b.strides, strict=True)])
    if not all_meet:
        raise UnknownError("it is not known whether the greatest elements meet")
    return ValueRange(a.range.low + b.range.low, a.range.high + b.range.high)


def fit_form(dims: Dims, data: Array | np.ndarray) -> Form | None:
    """Return a form that holds for all of these integers or expressions, None where there is none."""
    if data.dtype == object and not all(isinstance(element, int | Expr) for element in data.flat):
        return None
    if data.size < 2:
        return uniform_form(next(iter(data.flat), 0), dims)
    return _fit_affine(dims, data) or _least_and_greatest(data)


def _fit_affine(dims: Dims, data: Array | np.ndarray) -> Affine | None:
    origin = data.flat[0]
    units = np.eye(data.ndim, dtype=int).tolist()
    strides = [data[tuple(units[axis])] - origin if size > 1 else 0 for axis, size in enumerate(data.shape)]
    expected = np.full(data.shape, origin, data.dtype)
    for axis, stride in enumerate(strides):
        steps = np.arange(data.shape[axis]).astype(data.dtype) * stride
        expected = expected + np.expand_dims(
            steps, [other_axis for other_axis in range(data.ndim) if other_axis != axis]
        )
    if not np.all(expected == data):
        return None
    return Affine(dims, Expr.of(origin), tuple(map(Expr.of, strides)))


def _least_and_greatest(data: Array | np.ndarray) -> ValueRange | None:
    elements = set(data.flat) if data.dtype == object else {int(data.min()), int(data.max())}
    if len(elements) > MAX_COMPARED and any(isinstance(element, Expr) for element in elements):
        return None
    return ValueRange(minimum(*elements), maximum(*elements))


def _sign_of_factor(factor: Expr) -> int:
    if lower(factor) < 0 < upper(factor):
        raise UnknownError(f"the sign of {factor} is not known")
    return 1 if lower(factor) >= 0 else -1


def _without_empty(dim: Expr) -> Expr:
    """Return the value of a dim where it is not 0: its min or max lacks the arguments that would leave no elements."""
    for monomial, factor in dim.terms:
        call = monomial[0] if len(monomial) == 1 else None
        if isinstance(call, Call) and call.op in ("min", "max"):
            rest = dim - Expr.from_atom(call) * factor
            nonempty = [arg for arg in call.args if upper(rest + arg * factor) > 0]
            return rest + OPERATIONS[call.op](*nonempty) * factor if nonempty else dim
    return dim
