"""Floor and ceil division, mod, min and max of expressions, simplified where polynomials and bounds decide.

Every result is in normal form: constants and multiples of the divisor are taken out of a division (`(h - 1) // 2 + 1`
is `(h + 1) // 2`), nested divisions become one (`((h + 1) // 2 + 1) // 2` is `(h + 3) // 4`), and `min` drops arguments
that cannot be the least. Ceil division and mod have no forms of their own: they are `(a + b - 1) // b` and
`a - b*(a // b)`, so that padding to a multiple, `a + (-a) % 8`, is `8*((a + 7) // 8)`. Relations of expressions and
linear equations follow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from graphkit.graph.view import Node, Scope
from graphkit.symbolic.expr import (
    INF,
    OPERATIONS,
    Bound,
    Call,
    Expr,
    Monomial,
    Operation,
    Symbol,
    TooComplexError,
    const,
)

Interval = tuple[Bound, Bound]
MAX_DEPTH = 4  # calls replaced one after the other
MAX_CASES = 1 << 12  # tried for one expression: each replaced call multiplies them by the number of choices


def lower(expr: Expr) -> Bound:
    """Return a lower bound of the expression, perhaps not the greatest; minus infinity if none is known.

    Example:
        >>> from graphkit.shapes import lower, symbol
        >>> lower(2 * symbol("batch") - 1)
        1
    """
    value = expr.constant
    return value if value is not None else _lower_bound(expr, MAX_DEPTH)


def upper(expr: Expr) -> Bound:
    """Return an upper bound of the expression, perhaps not the least; infinity if none is known.

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
    if all(factor > 0 and not _has_multiplied_quotient(monomial) for monomial, factor in expr.terms if monomial):
        return best
    try:
        if all(_atom_interval(atom)[0] > -INF for monomial, _ in expr.terms for atom in monomial):
            shifted = expr.map_atoms(_shift_to_bound)  # the polynomial in how far each atom is above its own bound
            best = max(best, sum(_term_interval(monomial, factor)[0] for monomial, factor in shifted.terms))
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
    return value // divisor if divisor != INF else 0 if value >= 0 else -1


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


def _shift_to_bound(atom: Symbol | Call) -> Expr:
    """Return an atom as its lower bound plus a symbol for how far it is above."""
    low, high = _atom_interval(atom)
    return Expr.from_atom(Symbol(f"{atom!r} above", 0, high - low)) + int(low)


def _lower_by_case(expr: Expr, depth: int) -> Bound:
    """Return a lower bound by replacing calls that are alone in a term, and quotients times divisors, by bounds."""
    best: Bound = -INF
    for monomial, factor in expr.terms:
        for atom in monomial if depth and _has_multiplied_quotient(monomial) else ():
            if isinstance(atom, Call) and atom.op == "//":
                best = max(best, _bound_with_replaced_product(expr, monomial, factor, atom, depth))
    calls = [(m[0], factor) for m, factor in expr.terms if len(m) == 1 and isinstance(m[0], Call)]
    choices = sum(len(call.args) for call, _ in calls)
    while depth and choices ** (depth + 1) > MAX_CASES:
        depth -= 1
    for call, factor in calls:
        rest = expr - Expr.from_atom(call) * factor
        best = max(best, _bound_with_replaced_call(rest, factor, call, depth))
    return best


def _has_multiplied_quotient(monomial: Monomial) -> bool:
    return len(monomial) > 1 and any(isinstance(atom, Call) and atom.op == "//" for atom in monomial)


def _bound_with_replaced_product(expr: Expr, monomial: Monomial, factor: int, quotient: Call, depth: int) -> Bound:
    """Return a lower bound where a term is a divisor times its quotient: the dividend minus 0 to the divisor - 1."""
    dividend, divisor = quotient.args
    product = divisor * Expr.from_atom(quotient)
    if len(product.terms) != 1 or product.terms[0][0] != monomial or lower(divisor) < 1:
        return -INF
    times, rest = divmod(factor, product.terms[0][1])
    slack = (divisor - 1) * times if times > 0 else const(0)
    return -INF if rest else _lower_bound(expr - product * times + dividend * times - slack, depth - 1)


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


Value = Expr | int


def floor_div(dividend: Value, divisor: Value) -> Expr:
    """Return `dividend // divisor`, rounded down, in normal form; ZeroDivisionError for a divisor of 0.

    Example:
        >>> from graphkit.shapes import floor_div, symbol
        >>> print(floor_div(symbol("height") - 1, 2) + 1)
        (height + 1) // 2
    """
    return _floor_div(Expr.of(dividend), Expr.of(divisor))


@lru_cache(maxsize=8192)
def _floor_div(dividend: Expr, divisor: Expr) -> Expr:
    size = divisor.constant
    if size is not None:
        return _floor_div_number(dividend, size) if size > 0 else _floor_div_number(-dividend, -size)
    if not dividend.terms:
        return dividend
    if not is_nonzero(divisor):
        return Expr.from_atom(Call("//", (dividend, divisor)))
    quotient, rest = _polynomial_division(dividend, divisor)
    if not rest.terms or (lower(rest) >= 0 and lower(divisor - rest) > 0):
        return quotient
    if upper(rest) < 0 and lower(rest + divisor) >= 0:
        return quotient - 1
    rest, divisor = without_common_factor(rest, divisor)
    if divisor.constant is not None:
        return quotient + _floor_div(rest, divisor)
    return quotient + Expr.from_atom(Call("//", (rest, divisor)))


def _floor_div_number(dividend: Expr, size: int) -> Expr:
    if size == 0:
        raise ZeroDivisionError("division of a dim by 0")
    rest = Expr.from_terms({monomial: _least_rest(monomial, factor, size) for monomial, factor in dividend.terms})
    quotient = _divide_factors(dividend - rest, size)
    low, high = lower(rest), upper(rest)
    if math.isfinite(low) and math.isfinite(high) and int(low) // size == int(high) // size:
        return quotient + int(low) // size
    if rest.terms[0][1] < 0:  # the floor of -x/c is minus the ceiling of x/c
        return quotient - _floor_div_number(-rest + (size - 1), size)
    shared = math.gcd(size, *(factor for monomial, factor in rest.terms if monomial))
    if shared > 1:
        return quotient + _floor_div_number(_divide_factors(rest, shared), size // shared)
    calls = [atoms[0] for atoms, factor in rest.terms if factor == 1 and len(atoms) == 1 and isinstance(atoms[0], Call)]
    inner = [call for call in calls if call.op == "//" and call.args[1].constant is not None]
    if len(inner) == 1:  # (s + x // d) // c is (d*s + x) // (c*d)
        dividend, divisor = inner[0].args
        outer = rest - Expr.from_atom(inner[0])
        return quotient + _floor_div_number(outer * divisor + dividend, size * int(divisor))
    return quotient + Expr.from_atom(Call("//", (rest, const(size))))


def _least_rest(monomial: Monomial, factor: int, size: int) -> int:
    """Return the rest of a coefficient: the smallest one, with its own sign if two are; at least 0 for a constant."""
    rest = factor % size
    if monomial and (2 * rest > size or (2 * rest == size and factor < 0)):
        rest -= size
    return rest


def _divide_factors(expr: Expr, factor: int) -> Expr:
    return Expr.from_terms({monomial: k // factor for monomial, k in expr.terms})


def ceil_div(dividend: Value, divisor: Value) -> Expr:
    """Return `dividend / divisor`, rounded up, in normal form; ZeroDivisionError for a divisor of 0.

    Example:
        >>> from graphkit.shapes import ceil_div, symbol
        >>> print(ceil_div(symbol("height"), 2))
        (height + 1) // 2
    """
    dividend, divisor = Expr.of(dividend), Expr.of(divisor)
    return floor_div(dividend + divisor - 1, divisor) if lower(divisor) >= 1 else -floor_div(-dividend, divisor)


def modulo(dividend: Value, divisor: Value) -> Expr:
    """Return `dividend % divisor`, of the divisor's sign as in Python; ZeroDivisionError for a divisor of 0."""
    dividend, divisor = Expr.of(dividend), Expr.of(divisor)
    if divisor.constant is None and not is_nonzero(divisor):
        return Expr.from_atom(Call("%", (dividend, divisor))) if dividend.terms else dividend
    return dividend - divisor * _floor_div(dividend, divisor)


def minimum(*args: Value) -> Expr:
    """Return the least of some expressions, or a `min` of those that may be the least.

    Example:
        >>> from graphkit.shapes import minimum, symbol
        >>> print(minimum(symbol("past"), symbol("past") + 1))
        past
    """
    return _reduce_extreme("min", frozenset(map(Expr.of, args)))


def maximum(*args: Value) -> Expr:
    """Return the greatest of some expressions, or a `max` of those that may be the greatest.

    Example:
        >>> from graphkit.shapes import maximum, symbol
        >>> print(maximum(symbol("past"), symbol("past") + 1))
        past + 1
    """
    return _reduce_extreme("max", frozenset(map(Expr.of, args)))


@lru_cache(maxsize=8192)
def _reduce_extreme(op: str, args: frozenset[Expr]) -> Expr:
    flat: dict[Expr, None] = {}
    for arg in args:
        atom = arg.atom
        flat.update(dict.fromkeys(atom.args if isinstance(atom, Call) and atom.op == op else (arg,)))
    needed: list[Expr] = []
    for arg in sorted(flat, key=str):
        if any(_is_covered(op, arg, covering) for covering in needed):
            continue
        needed = [covering for covering in needed if not _is_covered(op, covering, arg)]
        needed.append(arg)
    return needed[0] if len(needed) == 1 else Expr.from_atom(Call("min" if op == "min" else "max", tuple(needed)))


def _is_covered(op: str, arg: Expr, covering: Expr) -> bool:
    return lower(arg - covering) >= 0 if op == "min" else lower(covering - arg) >= 0


def divide_exactly(dividend: Value, divisor: Value) -> Expr:
    """Return the quotient of a division; the caller knows that it leaves no rest and that the divisor is not 0.

    So `(past*b) / past` is b, though past may be 0 elsewhere.
    """
    dividend, divisor = Expr.of(dividend), Expr.of(divisor)
    if divisor.constant is None:
        quotient, rest = _polynomial_division(dividend, divisor)
        if not rest.terms:
            return quotient
        dividend, divisor = without_common_factor(dividend, divisor)
    return floor_div(dividend, divisor)


def exact_quotient(dividend: Expr, divisor: Expr) -> Expr | None:
    """Return the quotient of a division that leaves no rest at any size, None where it may, or where it is by 0."""
    quotient, rest = _polynomial_division(dividend, divisor) if divisor.terms else (divisor, const(1))
    return None if rest.terms else quotient


def _polynomial_division(dividend: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Return quotient and rest. With a divisor of several terms, the rest is either 0 or the whole dividend."""
    quotient, rest = const(0), dividend
    if len(divisor.terms) == 1:
        for term in dividend.terms:
            factor = _term_quotient(term, divisor.terms[0])
            if factor is not None:
                quotient, rest = quotient + factor, rest - factor * divisor
        return quotient, rest
    while rest.terms:
        factor = _term_quotient(rest.terms[0], divisor.terms[0])
        if factor is None:
            return const(0), dividend
        quotient, rest = quotient + factor, rest - factor * divisor
    return quotient, rest


def _term_quotient(term: tuple[Monomial, int], divisor: tuple[Monomial, int]) -> Expr | None:
    if term[1] % divisor[1]:
        return None
    remaining = list(term[0])
    for atom in divisor[0]:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return Expr.from_terms({tuple(remaining): term[1] // divisor[1]})


def without_common_factor(left: Expr, right: Expr, is_certain: bool = True) -> tuple[Expr, Expr]:
    """Return both divided by the number and the atoms that all their terms share.

    Unless it is certain that no shared atom is 0, only atoms that cannot be 0 are divided by.
    """
    terms = left.terms + right.terms
    if not left.terms or not right.terms:
        return left, right
    shared = Counter(terms[0][0])
    for monomial, _ in terms[1:]:
        shared &= Counter(monomial)
    atoms = tuple(atom for atom in shared.elements() if is_certain or is_nonzero(Expr.from_atom(atom)))
    number = math.gcd(*(factor for _, factor in terms))
    if number == 1 and not atoms:
        return left, right
    halves = []
    for expr in (left, right):
        quotients = [_term_quotient(term, (atoms, number)) for term in expr.terms]
        halves.append(sum((quotient for quotient in quotients if quotient is not None), const(0)))
    return halves[0], halves[1]


OPERATIONS.update({"//": floor_div, "%": modulo, "min": minimum, "max": maximum})


# Relations of expressions that must hold for a node to run, and linear equations solved for symbols.

Row = Mapping[str, Fraction]  # coefficients by symbol, the number under ""; their sum is 0


class Relation(Struct, frozen=True):
    """An equality or inequality of two expressions."""

    left: Expr
    relation: Literal["==", ">=", "<="]
    right: Expr

    @classmethod
    def equal(cls, left: Expr, right: Expr | int) -> Relation:
        """Return the relation that two expressions are equal."""
        return Relation(left, "==", Expr.of(right))

    @classmethod
    def at_least(cls, expr: Expr, least: Expr | int) -> Relation:
        """Return the relation that an expression is at least another one."""
        return Relation(expr, ">=", Expr.of(least))

    @classmethod
    def at_most(cls, expr: Expr, most: Expr | int) -> Relation:
        """Return the relation that an expression is at most another one."""
        return Relation(expr, "<=", Expr.of(most))

    @property
    def symbols(self) -> frozenset[str]:
        """The names in it."""
        return self.left.symbols | self.right.symbols

    def substitute(self, assignment: Mapping[str, Expr | int]) -> Relation:
        """Return it with symbols replaced; TooComplexError if an expression becomes too large."""
        return Relation(self.left.substitute(assignment), self.relation, self.right.substitute(assignment))

    def against_zero(self) -> Relation:
        """Return it with 0 on the right, or unchanged if the difference is too complex."""
        try:
            return Relation(self.left - self.right, self.relation, const(0))
        except TooComplexError:
            return self

    def forced_size(self) -> int | None:
        """Return the size that an equality forces on its only symbol, None if it does not tell."""
        terms = self.against_zero().left.terms
        if self.relation != "==" or not terms or len(terms) > 2:
            return None
        (monomial, factor), *others = terms
        if len(monomial) != 1 or not isinstance(monomial[0], Symbol) or any(atoms for atoms, _ in others):
            return None
        number = -others[0][1] if others else 0
        return number // factor if number % factor == 0 else None

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


class Requirement(Relation, frozen=True):
    """A relation that holds whenever a node runs."""

    node: Node

    @property
    def scope(self) -> Scope:
        """The scope of the node."""
        return self.node.scope


def linear_row(total: Expr) -> Row | None:
    """Return the equation that an expression is 0, None if it is not linear in symbols."""
    row: dict[str, Fraction] = {}
    for monomial, factor in total.terms:
        names = [atom.name for atom in monomial if isinstance(atom, Symbol)]
        if len(monomial) > 1 or len(names) < len(monomial):
            return None
        row[names[0] if names else ""] = Fraction(factor)
    return row


def linear_equations(left: Expr, right: Expr) -> Iterator[Row]:
    """Yield the linear equations that an equality implies; `min(a, b) == b` implies that a mask is as long as its cut.

    If either argument is a number, it is a limit and implies nothing.
    """
    for side, limit in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Call) and atom.op in ("min", "max") and limit in atom.args:
            for arg in atom.args:
                if arg != limit and arg.constant is None and limit.constant is None:
                    yield from linear_equations(arg, limit)
            return
    if (row := linear_row(left - right)) is not None:
        yield row


def reduce_rows(rows: Iterable[Row], order: Sequence[str]) -> dict[str, Row]:
    """Return rows solved for the first symbols of an order, each for a symbol that no other row has.

    A contradiction (0 equals another number) is solved for the symbol "".
    """
    solved_rows: dict[str, dict[str, Fraction]] = {}
    for row in rows:
        rest = dict(row)
        for name in [name for name in rest if name in solved_rows]:
            rest = _add_rows(rest, solved_rows[name], -rest[name])
        pivot = next((name for name in order if rest.get(name)), "" if rest.get("") else None)
        if pivot is None:
            continue
        rest = {name: factor / rest[pivot] for name, factor in rest.items()}
        for name, solved_row in solved_rows.items():
            if solved_row.get(pivot):
                solved_rows[name] = _add_rows(solved_row, rest, -solved_row[pivot])
        solved_rows[pivot] = rest
    return dict(solved_rows)


def fixed_sizes(rows: Mapping[str, Row]) -> dict[str, Fraction]:
    """Return the symbols that reduced rows give a number, and that number; "" is a contradiction."""
    return {name: -row.get("", Fraction(0)) for name, row in rows.items() if row.keys() <= {name, ""}}


def _add_rows(row: Mapping[str, Fraction], added: Mapping[str, Fraction], factor: Fraction) -> dict[str, Fraction]:
    total = {name: row.get(name, Fraction(0)) + factor * added.get(name, Fraction(0)) for name in {**row, **added}}
    return {name: number for name, number in total.items() if number}


def solve_symbol(name: str, rows: Mapping[str, Row], symbols: Mapping[str, Expr]) -> Expr | None:
    """Return a symbol solved by reduced rows, None if the result is not an integer expression in these symbols."""
    row = rows.get(name)
    if row is None or any(number.denominator != 1 for number in row.values()):
        return None
    total = const(0)
    for symbol, number in row.items():
        if symbol not in (name, "") and symbol not in symbols:
            return None
        if symbol != name:
            total = total + (symbols[symbol] if symbol else const(1)) * -int(number)
    return total
