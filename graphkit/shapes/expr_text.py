"""How an expression is written: sums begin with something positive, `//` and `%` stand in parentheses inside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["call_text", "sum_text"]

INFIX = ("//", "%")


class Argument(Protocol):
    """An argument of a call: an expression."""

    @property
    def constant(self) -> int | None:
        """Its value, None where it has symbols."""

    @property
    def atom(self) -> object | None:
        """The symbol or call that it consists of, None where it has other terms or factors."""


def sum_text(terms: Sequence[tuple[Sequence[object], int]]) -> str:
    """Return a sum of terms as text."""
    if not terms:
        return "0"
    first = next((index for index, (_, factor) in enumerate(terms) if factor > 0), 0)
    text = _term_text(*terms[first])
    for monomial, factor in (*terms[:first], *terms[first + 1 :]):
        text += f" - {_term_text(monomial, -factor)}" if factor < 0 else f" + {_term_text(monomial, factor)}"
    return text


def call_text(op: str, args: Sequence[Argument]) -> str:
    """Return a call as text."""
    if op not in INFIX:
        return f"{op}({', '.join(map(str, args))})"
    plain = [arg.constant is not None or (arg.atom is not None and not _is_infix(arg.atom)) for arg in args]
    left, right = (str(arg) if is_plain else f"({arg})" for arg, is_plain in zip(args, plain, strict=True))
    return f"{left} {op} {right}"


def _term_text(monomial: Sequence[object], factor: int) -> str:
    if not monomial:
        return str(factor)
    if len(monomial) == 1 and factor == 1:
        return repr(monomial[0])
    parts = [f"({atom!r})" if _is_infix(atom) else repr(atom) for atom in monomial]
    sign = "-" if factor < 0 else ""
    return sign + "*".join(parts if abs(factor) == 1 else [str(abs(factor)), *parts])


def _is_infix(atom: object) -> bool:
    return getattr(atom, "op", "") in INFIX
