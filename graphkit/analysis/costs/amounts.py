"""Amounts: sums of expressions in the input dims that may have any number of terms, and numbers of any size.

`Expr` bounds both, so that dims stay readable; a whole model's multiply-accumulates need more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphkit.shapes import Expr
from graphkit.symbolic.expr import Monomial, TooComplexError, sum_text

__all__ = ["NOTHING", "ONCE", "Amount", "sum_amounts"]

MAX_TERMS = 1000  # of a product, and of a text


@dataclass(frozen=True)
class Amount:
    """A polynomial with integer coefficients over the atoms of expressions.

    Attributes:
        terms: The coefficient of each monomial, none of them 0.
    """

    terms: Mapping[Monomial, int]

    @classmethod
    def of(cls, value: Expr | int) -> Amount:
        """Return an expression as an amount."""
        if isinstance(value, Expr):
            return cls(dict(value.terms))
        return cls({(): value} if value else {})

    def times(self, other: Amount) -> Amount:
        """Return the product; TooComplexError if it has too many terms."""
        if len(self.terms) * len(other.terms) > MAX_TERMS:
            raise TooComplexError("a product of too many terms")
        products: Counter[Monomial] = Counter()
        for left, factor in self.terms.items():
            for right, other_factor in other.terms.items():
                products[tuple(sorted(left + right, key=lambda atom: atom.key))] += factor * other_factor
        return Amount({monomial: factor for monomial, factor in products.items() if factor})

    @property
    def symbols(self) -> frozenset[str]:
        """The names in it."""
        return frozenset(name for monomial in self.terms for name in Expr(((monomial, 1),)).symbols)

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """Return its value, None if a symbol has no size or a divisor is 0."""
        try:
            return sum(
                factor * math.prod([atom.evaluate(sizes) for atom in monomial])
                for monomial, factor in self.terms.items()
            )
        except (KeyError, ZeroDivisionError):
            return None

    def text(self, sizes: Mapping[str, int]) -> str:
        """Return the expression, the largest terms at some sizes first; "" if it has too many terms to be read."""
        if len(self.terms) > MAX_TERMS:
            return ""

        def order(term: tuple[Monomial, int]) -> tuple[int, int, str]:
            size = Amount(dict([term])).at(sizes)
            return -len(term[0]), -(size or 0), repr(term[0])

        return sum_text(
            [(_group_powers(monomial), factor) for monomial, factor in sorted(self.terms.items(), key=order)]
        )


NOTHING, ONCE = Amount({}), Amount.of(1)


def sum_amounts(amounts: Iterable[Amount]) -> Amount:
    """Return a sum."""
    terms: dict[Monomial, int] = {}
    for amount in amounts:
        for monomial, factor in amount.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
    return Amount({monomial: factor for monomial, factor in terms.items() if factor})


class _Power(str):
    """Some equal atoms of a product, as `sequence_length**2`."""

    __slots__ = ()
    __repr__ = str.__str__


def _group_powers(monomial: Monomial) -> tuple[object, ...]:
    """Return the atoms of a product, equal ones as one power."""
    counts = Counter(monomial)
    return tuple(atom if count == 1 else _Power(f"{_base_text(atom)}**{count}") for atom, count in counts.items())


def _base_text(atom: object) -> str:
    text = repr(atom)
    return text if text.isidentifier() else f"({text})"
