"""Which numbers a dtype holds as they are: elements of small tensors, which are numbers or expressions of sizes.

An expression is followed in a dtype that holds it at modest sizes. At which sizes it does is a limit, which a proof
evaluates and tells. Elements of inputs may be any numbers of their dtype: what is computed of them is followed only
where it cannot leave that. Those of int64 inputs, which count tokens and the like, are taken to be at most 2^62, except
by a proof. A symbol for such an element has both bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from onnx import TensorProto

from graphkit.dtypes import BITS, FLOATS, INTEGERS, integer_range
from graphkit.ops.tensor import Element, Ratio
from graphkit.symbolic.algebra import INTERVALS, Interval, lower, product_of, upper
from graphkit.symbolic.expr import INF, Atom, Expr, Monomial, Symbol

__all__ = [
    "EXACT",
    "MOST_OF_INPUTS",
    "USUAL",
    "bound_up_to",
    "exact_range",
    "fits_dtype",
    "has_elements",
    "is_between",
    "is_exact",
    "term_span",
]

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
    return is_between(expr, least, most, USUAL if has_elements(expr) else modest[bits])


def is_between(expr: Expr, least: int, most: int, size: int = USUAL) -> bool:
    """Whether an expression is within bounds where no dim is above a size."""
    low, high = bound_up_to(expr, size)
    return least <= low and high <= most


def has_elements(expr: Expr) -> bool:
    """Whether an expression has symbols for elements that are not known, which may be any numbers of their dtype."""
    return any(each.name[:1] == "?" and each.upper != INF for each in expr.walk_symbols())


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
        interval = product_of(interval, _of_atom(atom, size))
    return interval


def _of_atom(atom: Atom, size: int) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lower, max(size, atom.lower) if atom.upper == INF else atom.upper
    return INTERVALS[atom.op]([bound_up_to(arg, size) for arg in atom.args])
