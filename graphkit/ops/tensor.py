"""The known facts of one tensor or sequence: dtype, dims, and the elements of small tensors, or why they are unknown.

An unknown dim or element is a symbol of its own whose name starts with `?`: two dims that are the same unknown number
compare equal. `Shapes.reason` tells the meaning of each.

Elements of small tensors are numbers or expressions of sizes. An expression is followed in a dtype that holds it at
modest sizes. At which sizes it does is a limit, which a proof evaluates and tells. Elements of inputs may be any
numbers of their dtype: what is computed of them is followed only where it cannot leave that. Those of int64 inputs,
which count tokens and the like, are taken to be at most 2^62, except by a proof. A symbol for such an element has both
bounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from onnx import TensorProto, helper

from graphkit.dtypes import BITS, FLOATS, INT32_MAX, INT64_MAX, INTEGERS, integer_range
from graphkit.symbolic.algebra import INTERVALS, Interval, floor_div, lower, product_of, upper
from graphkit.symbolic.expr import INF, Expr, Monomial, Symbol, const

MAX_DIVISOR = 1 << 12  # of a fraction that is calculated with
MAX_ELEMENTS = 512  # elements of larger tensors are not followed
HUGE = re.compile(rf"(?<![\w.])(-?)(?:{INT64_MAX}|{INT64_MAX + 1}|{INT32_MAX}|{INT32_MAX + 1})(?![\w.])")


class Ratio(Struct, frozen=True):
    """A fraction of an expression, as a float tensor holds it before it is rounded: `height / 32`."""

    dividend: Expr
    divisor: int

    @staticmethod
    def of(element: Element) -> Ratio | None:
        """Return an element as a fraction that is exact in a float, None where it is none."""
        if isinstance(element, Ratio):
            return element if element.is_exact else None
        if isinstance(element, (int, Expr)):
            return Ratio(Expr.of(element), 1)
        if not math.isfinite(element):
            return None
        exact = Fraction(element)
        return Ratio(const(exact.numerator), exact.denominator) if exact.denominator <= MAX_DIVISOR else None

    def __str__(self) -> str:
        return f"({self.dividend}) / {self.divisor}"

    def floor(self) -> Expr:
        """Return it rounded down."""
        return floor_div(self.dividend, self.divisor)

    @property
    def is_exact(self) -> bool:
        """Whether a float holds it exactly, so that further calculations are exact."""
        return self.divisor & (self.divisor - 1) == 0

    @property
    def is_positive(self) -> bool:
        """Whether it cannot be below 0."""
        return lower(self.dividend) >= 0


Element = int | float | Expr | Ratio
Array = npt.NDArray[np.object_]
Dims = tuple[Expr, ...]


class Tensor:
    """The known facts of a tensor.

    Attributes:
        dtype: TensorProto.DataType, 0 if unknown.
        dims: None if the rank is unknown.
        reason: Why the dims are None, or why there are no elements.
    """

    __slots__ = ("_data", "_elements", "_load", "dims", "dtype", "reason")

    def __init__(
        self,
        dtype: int,
        dims: Iterable[Expr | int] | None,
        data: Array | None = None,
        reason: str = "",
        load: Callable[[], Array | None] | None = None,
    ) -> None:
        self.dtype, self.reason = dtype, reason
        self.dims: Dims | None = None if dims is None else tuple(Expr.of(dim) for dim in dims)
        self._data, self._load = data, load
        self._elements: tuple[Expr | Ratio | float, ...] | None = None

    def __repr__(self) -> str:
        return f"Tensor({self})"

    def __str__(self) -> str:
        dims = "unknown" if self.dims is None else f"[{', '.join(map(str, self.dims))}]"
        return f"{dims} = {self.values_text}" if self.values_text else dims

    @property
    def values_text(self) -> str:
        """The elements, if it is a shape, or might be one: `[batch, 8, ...]`; "" where they are not known."""
        data = self.data if self.is_shape_like else None
        if data is None:
            return ""
        shown = [str(element) for element in data.ravel().tolist()[:8]]
        text = ", ".join([*shown, "..."] if data.size > 8 else shown)
        return without_huge_numbers(f"[{text}]" if data.ndim else text)

    @property
    def rank(self) -> int | None:
        """The number of dims."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_known(self) -> bool:
        """Whether every dim is an expression in the model's input dims."""
        return self.dims is not None and all(is_known(dim) for dim in self.dims)

    @property
    def is_shape_like(self) -> bool:
        """Whether it is an integer tensor of rank 0 or 1."""
        return self.dtype in INTEGERS and self.dims is not None and len(self.dims) < 2

    @property
    def may_have_data(self) -> bool:
        """Whether `data` is worth asking for: cheap, and reads no file."""
        return self._data is not None or self._load is not None

    @property
    def is_unread(self) -> bool:
        """Whether its elements are still to be read."""
        return self._load is not None

    @property
    def data(self) -> Array | None:
        """The elements in the tensor's shape, integers as int; None if not known."""
        if self._load is not None:
            load, self._load = self._load, None
            self._data = load()
        return self._data

    @property
    def elements(self) -> tuple[Expr | Ratio | float, ...] | None:
        """The elements in row-major order, integers as expressions; None if not known."""
        if self._elements is None and (data := self.data) is not None:
            self._elements = tuple(const(each) if isinstance(each, int) else each for each in data.ravel().tolist())
        return self._elements

    def count(self) -> int | None:
        """Return the number of elements, None if it is symbolic."""
        sizes = self.sizes()
        return None if sizes is None else math.prod(sizes)

    def sizes(self) -> tuple[int, ...] | None:
        """Return the dims if all are numbers, else None."""
        return None if self.dims is None else sizes_of(self.dims)

    def with_contents(self, dims: Dims | None, data: Array | None) -> Tensor:
        """Return it with other dims and elements."""
        return Tensor(self.dtype, dims, data, self.reason)

    def of_dtype(self, dtype: int) -> Tensor:
        """Return a tensor of these dims and another dtype, without elements."""
        return Tensor(dtype, self.dims, None, self.reason)


def unknown_tensor(reason: str, dtype: int = 0) -> Tensor:
    """Return a tensor of unknown rank."""
    return Tensor(dtype, None, None, reason)


@lru_cache(maxsize=1 << 14)
def is_known(expr: Expr) -> bool:
    """Whether an expression has no symbol for something unknown.

    Example:
        >>> from graphkit.shapes import is_known, symbol
        >>> is_known(symbol("batch_size")), is_known(symbol("?1.NonZero"))
        (True, False)
    """
    return not expr.symbols or not any(name[:1] == "?" for name in expr.symbols)


def plain_dims(dims: Dims | None) -> tuple[int | str, ...] | None:
    """Return dims as numbers and, where they are expressions, as text."""
    return None if dims is None else tuple(str(dim) if dim.constant is None else dim.constant for dim in dims)


def is_same(left: Element, right: Element) -> bool:
    """Whether two elements are the same, to the sign of zeros; NaN is never known to be."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


def is_same_elements(left: Tensor, right: Tensor) -> bool:
    """Whether the elements of two tensors are known, and the same."""
    if not (left.may_have_data and right.may_have_data):
        return False
    first, second = left.elements, right.elements
    return first is not None and second is not None and len(first) == len(second) and all(map(is_same, first, second))


@lru_cache(maxsize=8192)  # layers repeat
def _multiply_dims(dims: Dims) -> Expr:
    return math.prod(dims, start=const(1))


def dims_product(dims: Iterable[Expr]) -> Expr:
    """Return the product of dims."""
    return _multiply_dims(tuple(dims))


def sizes_of(dims: Sequence[Expr]) -> tuple[int, ...] | None:
    """Return dims as numbers, None if one is symbolic."""
    numbers = tuple(n for dim in dims if (n := dim.constant) is not None)
    return numbers if len(numbers) == len(dims) else None


def plain_element(expr: Expr) -> Element:
    """Return an expression as an element, a number as an int."""
    value = expr.constant
    return expr if value is None else value


def array_of(elements: Sequence[Element | None], shape: Sequence[int] | None = None) -> Array:
    """Return an object array, of rank 1 if no shape is given."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array if shape is None else array.reshape(tuple(shape))


def element_number(element: Element) -> int | None:
    """Return an integer element that is a number, else None."""
    if isinstance(element, int):
        return element
    return element.constant if isinstance(element, Expr) else None


def scalar_integer(tensor: Tensor | None) -> Expr | None:
    """Return the integer that a tensor of one element holds, None where it is not known."""
    elements = (tensor.elements if tensor is not None else None) or ()
    return elements[0] if len(elements) == 1 and isinstance(elements[0], Expr) else None


def element_numbers(tensor: Tensor) -> npt.NDArray[Any] | None:
    """Return the elements of an integer tensor as an array of its dtype, None if some are not numbers."""
    if tensor.dtype not in INTEGERS or not tensor.may_have_data or (data := tensor.data) is None:
        return None
    elements = [element_number(element) for element in data.ravel().tolist()]
    if None in elements:
        return None
    try:
        return np.array(elements, helper.tensor_dtype_to_np_dtype(tensor.dtype)).reshape(data.shape)
    except OverflowError:  # a number outside of its dtype: no specification defines the result
        return None


class Common(Struct, frozen=True):
    """The facts that the tensors of a sequence have in common."""

    dtype: int  # TensorProto.DataType, 0 if unknown
    dims: tuple[Expr | None, ...] | None  # None for each dim in which they may differ; None if their ranks may differ


class TensorSequence(Tensor):
    """The known facts of a sequence, which has neither dims nor elements of its own."""

    __slots__ = ("common", "items", "length")

    def __init__(self, items: tuple[Tensor, ...] | None, common: Common | None, length: Expr | None) -> None:
        super().__init__(0, None, None, "it is a sequence of tensors")
        self.items, self.length = items, length  # None where their number is not known
        self.common = common  # the facts that all of them share, None if the sequence is empty

    @classmethod
    def of(cls, items: tuple[Tensor, ...]) -> TensorSequence:
        """Return the sequence of these tensors."""
        shared: Common | None = None
        for item in items:
            shared = common_facts(shared, Common(item.dtype, item.dims))
        return cls(items, shared, Expr.of(len(items)))

    def is_like(self, other: Tensor) -> bool:
        """Whether as much is known of another one, single tensors apart."""
        return isinstance(other, TensorSequence) and (self.common, self.length) == (other.common, other.length)


def join_sequences(left: TensorSequence, right: TensorSequence) -> TensorSequence:
    """Return the facts of a sequence that is one of two."""
    length = left.length if left.length == right.length else None
    return TensorSequence(None, common_facts(left.common, right.common), length)


def common_facts(left: Common | None, right: Common | None) -> Common | None:
    """Return the facts that tensors of either kind have in common."""
    if left is None or right is None:
        return right if left is None else left
    dtype = left.dtype if left.dtype == right.dtype else 0
    if left.dims is None or right.dims is None or len(left.dims) != len(right.dims):
        return Common(dtype, None)
    return Common(dtype, tuple(a if a == b else None for a, b in zip(left.dims, right.dims, strict=True)))


def agreed_facts(before: Tensor, now: Tensor) -> Tensor:
    """Return the facts that two calls of a function agree on, for tensors or sequences."""
    if isinstance(before, TensorSequence) and isinstance(now, TensorSequence):
        return join_sequences(before, now)
    if isinstance(now, TensorSequence) or before.dims != now.dims:
        return unknown_tensor("the calls of the function differ", now.dtype)
    if not (before.may_have_data or now.may_have_data) or is_same_elements(before, now):
        return now
    return Tensor(now.dtype, now.dims, None, "the calls of the function differ")


def without_huge_numbers(text: str) -> str:
    """Return a text for people in which the numbers that stand for no bound are words: `[unbounded]`."""
    return HUGE.sub(r"\1unbounded", text)


def is_to_the_end(bound: int | None) -> bool:
    """Whether an end lies behind every axis: exporters write INT32_MAX or INT64_MAX, and no dim is that large."""
    return bound is not None and bound >= INT32_MAX


USUAL = 1 << 31  # no size is larger
MOST_OF_INPUTS = 1 << 62  # no element of an int64 input is larger: one more token is one number more
MODEST = {32: 1 << 10, 64: 1 << 12}  # sizes at which a dtype must hold what is followed in it, by bits
MODEST_FLOATS = {32: 1 << 6, 64: 1 << 10}
EXACT = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}  # up to which a float holds every integer, by bits


def exact_range(dtype: int) -> tuple[int, int]:
    """Return between which integers a dtype holds each of them."""
    return (-EXACT[BITS[dtype]], EXACT[BITS[dtype]]) if dtype in FLOATS else integer_range(dtype)


def fits_dtype(element: Element | None, dtype: int) -> bool:
    """Whether an element of an integer tensor is not so large, or negative, that it wraps around."""
    least, most = integer_range(dtype if dtype in INTEGERS else TensorProto.INT64)
    if isinstance(element, int):
        return least <= element <= most
    return not isinstance(element, Expr) or _is_held(element, least, most, BITS.get(dtype, 64), MODEST)


def is_exact(element: Element | None, dtype: int) -> bool:
    """Whether a float holds an integer, an expression or the numerator of a fraction as it is."""
    parts = element.dividend if isinstance(element, Ratio) else element
    if isinstance(parts, int):
        return abs(parts) <= EXACT[BITS[dtype]]
    return not isinstance(parts, Expr) or _is_held(parts, *exact_range(dtype), BITS[dtype], MODEST_FLOATS)


def _is_held(expr: Expr, least: int, most: int, bits: int, modest: Mapping[int, int]) -> bool:
    """Whether an expression is within bounds at modest sizes, or at all where it has elements or few bits."""
    if bits not in modest:
        return lower(expr) >= least and upper(expr) <= most
    low, high = bound_up_to(expr, USUAL if has_elements(expr) else modest[bits])
    return least <= low and high <= most


def has_elements(expr: Expr) -> bool:
    """Whether an expression has symbols for elements that are not known, which may be any numbers of their dtype."""
    return any(each.name[:1] == "?" and each.upper != INF for each in expr.walk_symbols())


def with_sizes(tensor: Tensor) -> Tensor:
    """Return a tensor whose dims are sizes: an element that is not known is no longer any number once it is a dim."""
    dims = tensor.dims or ()
    made = tuple(as_size(dim) for dim in dims)
    return tensor if made == dims else tensor.with_contents(made, tensor.data if tensor.may_have_data else None)


def as_size(dim: Expr, least: int = 0) -> Expr:
    """Return a dim of at least so much, where it is an element that is not known, as a size."""
    atom = dim.atom
    if not isinstance(atom, Symbol) or atom.name[:1] != "?" or atom.upper == INF:
        return dim
    return Expr.from_atom(Symbol(atom.name, max(least, atom.lower), INF))


@lru_cache(maxsize=8192)
def bound_up_to(expr: Expr, size: int = USUAL) -> Interval:
    """Return bounds of an expression where no dim is above a size."""
    terms = [term_span(monomial, factor, size) for monomial, factor in expr.terms]
    low, high = sum(low for low, _ in terms), sum(high for _, high in terms)
    return max(low, lower(expr)), min(high, upper(expr))


def term_span(monomial: Monomial, factor: int, size: int = USUAL) -> Interval:
    """Return bounds of a term where no dim is above a size."""
    interval: Interval = factor, factor
    for atom in monomial:
        if isinstance(atom, Symbol):
            span = atom.lower, max(size, atom.lower) if atom.upper == INF else atom.upper
        else:
            span = INTERVALS[atom.op]([bound_up_to(arg, size) for arg in atom.args])
        interval = product_of(interval, span)
    return interval
