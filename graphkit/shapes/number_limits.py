"""Which numbers a dtype holds as they are: elements of small tensors, which are numbers or expressions.

Sizes are small: so is what models compute of them, as long as factors are, too. Elements of inputs may be any numbers
of their dtype. A symbol for one has both bounds, so that an expression of it can be told to fit or not.
"""

from __future__ import annotations

from functools import lru_cache

from onnx import TensorProto

from graphkit.dtypes import BITS, INTEGERS, integer_range
from graphkit.shapes.bounds import INTERVALS, Interval, lower, product_of, upper
from graphkit.shapes.expr import Atom, Expr
from graphkit.shapes.symbols import INF, Symbol
from graphkit.shapes.tensor import Element, Ratio

__all__ = ["EXACT", "USUAL", "fits", "has_elements", "is_exact", "span"]

USUAL = 1 << 31  # no size is larger
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
    if (limits := MAX_INTEGERS.get(BITS.get(dtype, 64))) is None:
        return lower(element) >= least and upper(element) <= most
    return _is_within(element, limits) and (least < 0 or lower(element) >= 0)


def is_exact(element: Element | None, dtype: int) -> bool:
    """Whether a float holds an element as it is, at usual sizes."""
    parts = element.dividend if isinstance(element, Ratio) else element
    if not isinstance(parts, Expr):
        return True
    limits, most = MAX_FLOATS[BITS[dtype]], EXACT[BITS[dtype]]
    return _is_within(parts, limits) and (not has_elements(parts) or is_between(parts, -most, most))


def is_between(expr: Expr, least: int, most: int) -> bool:
    """Whether an expression is within bounds at all usual sizes."""
    low, high = span(expr)
    return least <= low and high <= most


def _is_within(expr: Expr, limits: tuple[int, int]) -> bool:
    factor_limit, number_limit = limits
    return all(abs(factor) <= (factor_limit if monomial else number_limit) for monomial, factor in expr.terms)


def has_elements(expr: Expr) -> bool:
    """Whether an expression has symbols for elements that are not known, which may be any numbers of their dtype."""
    return any(each.name[:1] == "?" and each.upper != INF for each in expr.walk_symbols())


@lru_cache(maxsize=8192)
def span(expr: Expr) -> Interval:
    """Return the least and the greatest value of an expression at all usual sizes."""
    terms = [_of_term(monomial, factor) for monomial, factor in expr.terms]
    low, high = sum(low for low, _ in terms), sum(high for _, high in terms)
    return max(low, lower(expr)), min(high, upper(expr))


def _of_term(monomial: tuple[Atom, ...], factor: int) -> Interval:
    interval: Interval = factor, factor
    for atom in monomial:
        interval = product_of(interval, _of_atom(atom))
    return interval


def _of_atom(atom: Atom) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lower, USUAL if atom.upper == INF else atom.upper
    return INTERVALS[atom.op]([span(arg) for arg in atom.args])
