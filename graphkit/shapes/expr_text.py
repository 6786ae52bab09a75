"""How an expression is written: sums begin with something positive, `//` and `%` stand in parentheses inside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphkit.shapes.expr import Atom, Expr, Monomial

__all__ = ["call_text", "sum_text"]

INFIX = ("//", "%")


def sum_text(terms: Sequence[tuple[Monomial, int]]) -> str:
    """Return a sum of terms as text."""
    if not terms:
        return "0"
    first = next((index for index, (_, factor) in enumerate(terms) if factor > 0), 0)
    text = _term_text(*terms[first])
    for monomial, factor in (*terms[:first], *terms[first + 1 :]):
        text += f" - {_term_text(monomial, -factor)}" if factor < 0 else f" + {_term_text(monomial, factor)}"
    return text


def call_text(op: str, args: Sequence[Expr]) -> str:
    """Return a call as text."""
    if op not in INFIX:
        return f"{op}({', '.join(map(str, args))})"
    plain = [arg.constant is not None or (arg.atom is not None and not _is_infix(arg.atom)) for arg in args]
    left, right = (str(arg) if is_plain else f"({arg})" for arg, is_plain in zip(args, plain, strict=True))
    return f"{left} {op} {right}"


def _term_text(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    if len(monomial) == 1 and factor == 1:
        return repr(monomial[0])
    parts = [f"({atom!r})" if _is_infix(atom) else repr(atom) for atom in monomial]
    sign = "-" if factor < 0 else ""
    return sign + "*".join(parts if abs(factor) == 1 else [str(abs(factor)), *parts])


def _is_infix(atom: Atom) -> bool:
    return getattr(atom, "op", "") in INFIX
