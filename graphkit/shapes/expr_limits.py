"""How large an expression may grow: all expressions of a real model are below a fifth of these limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["MAX_ARGS", "MAX_NUMBER", "MAX_TERMS", "TooComplexError", "check_call", "check_number", "check_terms"]

MAX_TERMS = 48
MAX_DEGREE = 16  # atoms of a product
MAX_ARGS = 8  # of a min or max
MAX_SIZE = 160  # atoms, those in the arguments of calls included
MAX_NUMBER = 1 << 64  # no dim, and no element of an integer tensor, is larger
MAX_TEXT = 2000  # characters of a call


class Sized(Protocol):
    """An atom: a symbol or a call."""

    @property
    def size(self) -> int:
        """The number of its atoms, those in its arguments included."""


class TooComplexError(ArithmeticError):
    """An expression has grown too large to be read or used."""


def check_call(op: str, args: Sequence[object], text: str) -> None:
    """Raise TooComplexError for a call that is too large."""
    if len(args) > MAX_ARGS:
        raise TooComplexError(f"a {op} of more than {MAX_ARGS} expressions")
    if len(text) > MAX_TEXT:
        raise TooComplexError("an expression of too many nested operations")


def check_number(value: int) -> None:
    """Raise TooComplexError for a number that does not fit into an integer tensor."""
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise TooComplexError("a number of more than 64 bits")


def check_terms(terms: Sequence[tuple[Sequence[Sized], int]]) -> None:
    """Raise TooComplexError for a sum that is too large."""
    if len(terms) > MAX_TERMS:
        raise TooComplexError("an expression of too many terms")
    for monomial, factor in terms:
        check_number(factor)
        if len(monomial) > MAX_DEGREE:
            raise TooComplexError("a product of too many factors")
    if sum(atom.size for monomial, _ in terms for atom in monomial) > MAX_SIZE:
        raise TooComplexError("an expression of too many operations")
