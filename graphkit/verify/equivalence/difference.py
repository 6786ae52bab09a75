"""The first place where two terms differ, in words."""

from __future__ import annotations

from graphkit.graph.traversal import chain_end
from graphkit.ops.tensor import MAX_ELEMENTS
from graphkit.shapes import Expr
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.equivalence_result import ExprPair
from graphkit.verify.equivalence.terms import Term

__all__ = ["differing_exprs", "find_difference", "innermost_difference"]


def find_difference(left: Term, right: Term) -> str:
    """Return where the terms of both models begin to differ, and which axiom nearly held there."""
    left, right = innermost_difference(left, right)
    nearly = [term.nearly for term in (left, right) if term.nearly]
    text = f"{_term_text(left, 0)} of the original and {_term_text(right, 1)} of the rewritten model differ"
    return f"{text}; nearly {nearly[0]}" if nearly else text


def differing_exprs(left: Term, right: Term, constants: Constants) -> tuple[ExprPair, ...]:
    """Return the dims and integers of the first pair of terms that differs, where they are other expressions."""
    both = [_term_expressions(term, constants) for term in innermost_difference(left, right)]
    alike = [lists for lists in zip(*both, strict=True) if len({*map(len, lists)}) == 1]
    pairs = (pair for lists in alike for pair in zip(*lists, strict=True))
    return tuple(dict.fromkeys((one, other) for one, other in pairs if one != other))


def _term_expressions(term: Term, constants: Constants) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """Return the dims of a term, the expressions in its attributes, and its elements."""
    elements: list[Expr] = list(term.attributes[2]) if term.op == "Elements" else []  # type: ignore[call-overload]
    array = constants.array(term) if term.is_constant else None
    if array is not None and array.dtype.kind in "iu" and array.size <= MAX_ELEMENTS:
        elements = [Expr.of(int(each)) for each in array.ravel()]
    return list(term.dims or ()), [each for each in term.attributes if isinstance(each, Expr)], elements


def innermost_difference(left: Term, right: Term) -> tuple[Term, Term]:
    """Return the innermost pair that differs; operands that both have are left out, as operands may change places."""
    return chain_end((left, right), _inner_difference)


def _inner_difference(terms: tuple[Term, Term]) -> tuple[Term, Term] | None:
    """Return the first operands of two terms that differ, those of one operator first; None if the terms differ."""
    left, right = terms
    if (left.op, left.attributes) != (right.op, right.attributes) or len(left.args) != len(right.args):
        return None
    lefts = [arg for arg in left.args if arg is not None and arg not in right.args]
    rights = [arg for arg in right.args if arg is not None and arg not in left.args]
    alike = [(first, second) for first in lefts for second in rights if first.op == second.op]
    return next(iter(alike or zip(lefts, rights, strict=False)), None)


def _term_text(term: Term, side: int) -> str:
    where = term.origins[side] or next(
        (arg.origins[side] for arg in term.args if arg is not None and arg.origins[side]), ""
    )
    shape = "" if term.dims is None else f" [{', '.join(map(str, term.dims))}]"
    return f"{term.op}{shape}" + (f" at {where}" if where else "")
