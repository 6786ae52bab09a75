"""Bounds of symbols that one pass learns for the next one.

A Conv with a kernel of 16 runs only where `height // 16` is at least 1, so the height is at least 16, and a Reshape to
`height // 16` cannot mean "copy". Only nodes of the main graph count because a body may not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Call, Expr
from graphkit.shapes.relations import Relation
from graphkit.shapes.symbols import INF, Bound, Symbol

__all__ = ["Ranges", "learned_ranges", "narrower"]

Ranges = dict[str, tuple[Bound, Bound]]
MAX_DEPTH = 20


def learned_ranges(relations: Iterable[Relation]) -> Ranges:
    """Return the bounds of symbols that follow from inequalities with a number and from equalities."""
    found: Ranges = {}
    for one in relations:
        if one.relation == "==":
            _learn_equal(one.left, one.right, found)
            _learn_equal(one.right, one.left, found)
        elif one.right.constant is not None:
            _tighten(one.left, one.right.constant, found, 0)
    return found


def _learn_equal(one: Expr, other: Expr, found: Ranges) -> None:
    value, atom = other.constant, one.atom
    if value is not None:
        _tighten(one, value, found, 0)
        _tighten(-one, -value, found, 0)
    if isinstance(atom, Call) and atom.op in ("min", "max") and other in atom.args:
        for arg in atom.args:
            _tighten(arg - other if atom.op == "min" else other - arg, 0, found, 0)


def _tighten(expr: Expr, least: int, found: Ranges, depth: int) -> None:
    """Add the ranges of symbols that follow from `expr >= least`."""
    if depth > MAX_DEPTH:
        return
    for monomial, factor in expr.terms:
        if len(monomial) != 1:
            continue
        atom = monomial[0]
        most = upper(expr - Expr.from_atom(atom) * factor)
        if most in (INF, -INF):
            continue
        room = least - int(most)  # factor*atom >= room
        if factor > 0:
            _tighten_atom(atom, -(-room // factor), found, depth)
        elif isinstance(atom, Symbol):
            _narrow(found, atom.name, -INF, -room // -factor)


def _tighten_atom(atom: Symbol | Call, least: int, found: Ranges, depth: int) -> None:
    if isinstance(atom, Symbol):
        _narrow(found, atom.name, least, INF)
    elif atom.op == "//" and (size := atom.args[1].constant) is not None and size > 0:
        _tighten(atom.args[0], least * size, found, depth + 1)
    elif atom.op == "min":
        for arg in atom.args:
            _tighten(arg, least, found, depth + 1)
    elif atom.op == "max":
        large = [arg for arg in atom.args if upper(arg) >= least]
        if len(large) == 1:
            _tighten(large[0], least, found, depth + 1)


def _narrow(found: Ranges, name: str, low: Bound, high: Bound) -> None:
    before = found.get(name, (-INF, INF))
    found[name] = max(before[0], low), min(before[1], high)


def narrower(learned: Ranges, symbols: Mapping[str, Expr]) -> Ranges:
    """Return those of the ranges that are narrower than their symbols have them, with the bounds of both."""
    result: Ranges = {}
    for name in learned.keys() & symbols.keys():
        before = lower(symbols[name]), upper(symbols[name])
        both = max(learned[name][0], before[0]), min(learned[name][1], before[1])
        if both[0] <= both[1] and both != before:
            result[name] = both
    return result
