"""Which numbers a dtype holds as they are: elements of small tensors, which are numbers or expressions.

Sizes are small: so is what models compute of them, as long as factors and degrees are, too. Where products of large
sizes would not fit, a proof says so. Elements may be any numbers of their dtype, but for those of int64 inputs, which
count tokens and the like: they are taken to be at most 2^62, and a proof says so where that matters. A symbol for an
element has both bounds, so that an expression of it can be told to fit or not.
"""

from __future__ import annotations

from functools import lru_cache

from onnx import TensorProto

from graphkit.dtypes import BITS, INTEGERS, integer_range
from graphkit.shapes.bounds import INTERVALS, Interval, lower, product_of, upper
from graphkit.shapes.expr import Atom, Expr, Monomial
from graphkit.shapes.symbols import INF, Symbol
from graphkit.shapes.tensor import Element, Ratio

__all__ = ["EXACT", "MOST_OF_INPUTS", "USUAL", "fits", "has_elements", "is_between", "is_exact", "span", "term_span"]

USUAL = 1 << 31  # no size is larger
MOST_OF_INPUTS = 1 << 62  # no element of an int64 input is larger: one more token is one number more
MODEST = {16: 1, 32: 1 << 10, 64: 1 << 12}  # sizes at which all must fit that is followed, by bits of the dtype
# The largest factor of a dim, and the largest number that is added to it, by bits: with larger ones, integers wrap
# around, and floats are rounded, at usual sizes.
MAX_INTEGERS = {32: (1 << 16, 1 << 30), 64: (1 << 40, 1 << 62)}
MAX_FLOATS = {16: (0, 0), 32: (1 << 12, 1 << 20), 64: (1 << 40, 1 << 48)}
EXACT = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}  # up to which a float holds every integer, by bits


def fits(element: Element | None, dtype: int) -> bool:
    """Whether an element of an integer tensor is not so large, or negative, that it wraps around."""
    least, most = integer_range(dtype if dtype in INTEGERS else TensorProto.INT64)
    if isinstance(element, int):
        return least <= element <= most
    if not isinstance(element, Expr):
        return True
    if has_elements(element):
        return is_between(element, least, most)
    bits = BITS.get(dtype, 64)
    if (limits := MAX_INTEGERS.get(bits)) is None:
        return lower(element) >= least and upper(element) <= most
    is_signed = least < 0 or lower(element) >= 0
    return is_signed and _is_within(element, limits) and is_between(element, least, most, MODEST[bits])


def is_exact(element: Element | None, dtype: int) -> bool:
    """Whether a float holds an element as it is, at usual sizes."""
    parts = element.dividend if isinstance(element, Ratio) else element
    if not isinstance(parts, Expr):
        return True
    bits = BITS[dtype]
    size, most = USUAL if has_elements(parts) else MODEST[bits], EXACT[bits]
    return _is_within(parts, MAX_FLOATS[bits]) and is_between(parts, -most, most, size)


def is_between(expr: Expr, least: int, most: int, size: int = USUAL) -> bool:
    """Whether an expression is within bounds where no dim is above a size."""
    low, high = span(expr, size)
    return least <= low and high <= most


def _is_within(expr: Expr, limits: tuple[int, int]) -> bool:
    factor_limit, number_limit = limits
    return all(abs(factor) <= (factor_limit if monomial else number_limit) for monomial, factor in expr.terms)


def has_elements(expr: Expr) -> bool:
    """Whether an expression has symbols for elements that are not known, which may be any numbers of their dtype."""
    return any(each.name[:1] == "?" and each.upper != INF for each in expr.walk_symbols())


@lru_cache(maxsize=8192)
def span(expr: Expr, size: int = USUAL) -> Interval:
    """Return bounds of an expression where no dim is above a size."""
    terms = [term_span(monomial, factor, size) for monomial, factor in expr.terms]
    low, high = sum(low for low, _ in terms), sum(high for _, high in terms)
    return max(low, lower(expr)), min(high, upper(expr))


def term_span(monomial: Monomial, factor: int, size: int = USUAL) -> Interval:
    """Return bounds of a term where no dim is above a size."""
    interval: Interval = factor, factor
    for atom in monomial:
        interval = product_of(interval, _of_atom(atom, size))
    return interval


def _of_atom(atom: Atom, size: int) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lower, max(size, atom.lower) if atom.upper == INF else atom.upper
    return INTERVALS[atom.op]([span(arg, size) for arg in atom.args])
