"""Lower and upper bounds of a symbolic expression, such as a dim, from the bounds of its symbols.

Interval arithmetic alone cannot see that `b*h - b` is never negative. Two refinements can: measure every symbol from
its lower bound, so that a polynomial without negative coefficients is at least its constant term; and replace `min`,
`max`, `//` and `%` by their bounds. Both are sound, neither is complete: a bound may be wider than necessary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from graphkit.shapes.expr import Call, Expr, Monomial, Operation
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.symbols import INF, Bound, Symbol

__all__ = ["INTERVALS", "Interval", "is_nonzero", "lower", "product_of", "upper"]

Interval = tuple[Bound, Bound]
MAX_DEPTH = 4  # calls replaced one after the other
MAX_CASES = 1 << 12  # tried for one expression: each replaced call multiplies them by the number of choices


def lower(expr: Expr) -> Bound:
    """Return a number that the expression is never below, minus infinity if none is known.

    Returns:
        A bound; it may be lower than necessary.

    Example:
        >>> from graphkit.shapes import lower, symbol
        >>> lower(2 * symbol("batch") - 1)
        1
    """
    value = expr.constant
    return value if value is not None else _lower_bound(expr, MAX_DEPTH)


def upper(expr: Expr) -> Bound:
    """Return a number that the expression is never above, infinity if none is known.

    Returns:
        A bound; it may be higher than necessary.

    Example:
        >>> from graphkit.shapes import symbol, upper
        >>> upper(3 - symbol("batch"))
        2
    """
    return -lower(-expr)


def is_nonzero(expr: Expr) -> bool:
    """Whether the expression cannot be 0."""
    return lower(expr) > 0 or upper(expr) < 0


@lru_cache(maxsize=8192)
def _lower_bound(expr: Expr, depth: int) -> Bound:
    best = sum(_term_interval(monomial, factor)[0] for monomial, factor in expr.terms)
    if all(factor > 0 for monomial, factor in expr.terms if monomial):
        return best
    try:
        best = max(best, _shifted_lower(expr))
        if depth:
            best = max(best, _lower_by_case(expr, depth - 1))
    except TooComplexError:
        pass
    return best


def _term_interval(monomial: Monomial, factor: int) -> Interval:
    low: Bound = factor
    high: Bound = factor
    for atom in monomial:
        low, high = product_of((low, high), _atom_interval(atom))
    return low, high


def product_of(left: Interval, right: Interval) -> Interval:
    """Return the bounds of a product."""
    if left[0] >= 0 and right[0] >= 0:
        return _multiply_bounds(left[0], right[0]), _multiply_bounds(left[1], right[1])
    corners = [_multiply_bounds(a, b) for a in left for b in right]
    return min(corners), max(corners)


def _multiply_bounds(left: Bound, right: Bound) -> Bound:
    return left * right if left and right else 0  # 0 times infinity is 0: the other factor is finite


def _atom_interval(atom: Symbol | Call) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lower, atom.upper
    if atom.interval is None:
        atom.interval = INTERVALS[atom.op]([(lower(arg), upper(arg)) for arg in atom.args])
    return atom.interval


def _floor_interval(bounds: list[Interval]) -> Interval:
    (low, high), (least, most) = bounds
    if least < 1:  # a divisor of either sign: the quotient is no larger than the dividend
        size = max(-low, high)
        return -size - 1, size + 1
    return _floor_bound(low, most if low >= 0 else least), _floor_bound(high, least if high >= 0 else most)


def _floor_bound(value: Bound, divisor: Bound) -> Bound:
    if abs(value) == INF:
        return value
    if divisor == INF:
        return 0 if value >= 0 else -1
    return value // divisor


def _mod_interval(bounds: list[Interval]) -> Interval:
    (low, high), (least, most) = bounds
    if least < 1:
        return min(least + 1, 0), max(most - 1, 0)
    return 0, min(most - 1, high) if low >= 0 else most - 1


INTERVALS: dict[Operation, Callable[[list[Interval]], Interval]] = {
    "//": _floor_interval,
    "%": _mod_interval,
    "min": lambda bounds: (min(low for low, _ in bounds), min(high for _, high in bounds)),
    "max": lambda bounds: (max(low for low, _ in bounds), max(high for _, high in bounds)),
}


def _shifted_lower(expr: Expr) -> Bound:
    """Return a lower bound of the polynomial in how far each atom is above its own lower bound."""
    if any(_atom_interval(atom)[0] == -INF for monomial, _ in expr.terms for atom in monomial):
        return -INF
    return sum(_term_interval(monomial, factor)[0] for monomial, factor in expr.mapped(_shift_to_bound).terms)


def _shift_to_bound(atom: Symbol | Call) -> Expr:
    """Return an atom as its lower bound plus a symbol for how far it is above."""
    low, high = _atom_interval(atom)
    return Expr.from_atom(Symbol(f"{atom!r} above", 0, high - low)) + int(low)


def _lower_by_case(expr: Expr, depth: int) -> Bound:
    """Return a lower bound by replacing each call that is alone in a term by its bounds."""
    best: Bound = -INF
    calls = [(m[0], factor) for m, factor in expr.terms if len(m) == 1 and isinstance(m[0], Call)]
    choices = sum(len(call.args) for call, _ in calls)
    while depth and choices ** (depth + 1) > MAX_CASES:
        depth -= 1
    for call, factor in calls:
        rest = expr - Expr.from_atom(call) * factor
        best = max(best, _bound_with_replaced_call(rest, factor, call, depth))
    return best


def _bound_with_replaced_call(rest: Expr, factor: int, call: Call, depth: int) -> Bound:
    if call.op in ("min", "max"):
        cases = [_lower_bound(rest + arg * factor, depth) for arg in call.args]
        is_every_case_a_bound = (call.op == "max") == (factor > 0)
        return max(cases) if is_every_case_a_bound else min(cases)
    dividend, divisor = call.args
    size = divisor.constant
    if call.op == "//" and size is not None:  # size*(dividend // size) is dividend minus 0 to size - 1
        slack = factor * (size - 1) if factor > 0 else 0
        bound = _lower_bound(rest * size + dividend * factor - slack, depth)
        return bound if bound == -INF else -(-int(bound) // size)
    if factor < 0 and lower(dividend) >= 0 and lower(divisor) >= 1:  # neither // nor % is above the dividend
        return _lower_bound(rest + dividend * factor, depth)
    return -INF
