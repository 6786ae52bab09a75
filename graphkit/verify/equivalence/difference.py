"""The first place where two terms differ, in words."""

from __future__ import annotations

from graphkit.verify.equivalence.terms import Term

__all__ = ["difference", "innermost"]

MAX_DEPTH = 10_000


def difference(left: Term, right: Term) -> str:
    """Return where the terms of both models begin to differ, and which axiom nearly held there."""
    left, right = innermost(left, right)
    nearly = [term.nearly for term in (left, right) if term.nearly]
    text = f"{_text(left, 0)} of the original and {_text(right, 1)} of the rewritten model differ"
    return f"{text}; nearly {nearly[0]}" if nearly else text


def innermost(left: Term, right: Term) -> tuple[Term, Term]:
    """Return the innermost pair that differs; operands that both have are left out, as operands may change places."""
    for _ in range(MAX_DEPTH):
        if (left.op, left.attributes) != (right.op, right.attributes) or len(left.args) != len(right.args):
            break
        mine = [arg for arg in left.args if arg is not None and arg not in right.args]
        theirs = [arg for arg in right.args if arg is not None and arg not in left.args]
        pairs = [(one, other) for one in mine for other in theirs if one.op == other.op]
        inner = next(iter(pairs or zip(mine, theirs, strict=False)), None)
        if inner is None:
            break
        left, right = inner
    return left, right


def _text(term: Term, side: int) -> str:
    where = term.origins[side] or next(
        (arg.origins[side] for arg in term.args if arg is not None and arg.origins[side]), ""
    )
    shape = "" if term.dims is None else f" [{', '.join(map(str, term.dims))}]"
    return f"{term.op}{shape}" + (f" at {where}" if where else "")
