"""Facts that follow from the requirements of nodes: equal expressions, and bounds of symbols for the next pass.

A MatMul whose inner dims are `max(total, past + 1)` and `past + 1` runs only where the two are equal: then the max may
be written as `past + 1` everywhere. An equality holds only in the scope of its node and in the bodies there, because a
branch may not run. Symbols of the inputs are never replaced: the user must know that two of them must be equal.

A Conv with a kernel of 16 runs only where `height // 16` is at least 1, so the height is at least 16, and a shape that
asks for `height // 16` cannot mean "copy". Only nodes of the main graph count because a body may not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from graphkit.graph.names import group_pairs
from graphkit.graph.view import Scope, walk_breadth_first
from graphkit.ops.tensor import Tensor
from graphkit.symbolic.algebra import lower, upper, without_common_factor
from graphkit.symbolic.expr import INF, OPERATIONS, Bound, Call, Expr, Symbol, TooComplexError
from graphkit.symbolic.relations import Relation, Requirement

Atom = Symbol | Call
Replacements = dict[Atom, Expr]


def scope_rewriters(equalities: Iterable[Requirement]) -> Callable[[Scope], Rewriter]:
    """Return what gives the rewriter of a scope: it replaces each atom by an expression that it must equal."""
    pairs = group_pairs((each.scope, (each.left, each.right)) for each in equalities)
    replacements = {scope: replaced for scope, equal in pairs.items() if (replaced := rewriter_of(equal).replacements)}
    known: dict[Scope, Rewriter] = {}

    def rewriter(scope: Scope) -> Rewriter:
        if scope not in known:
            around = rewriter(scope.parent).replacements if scope.parent is not None else {}
            known[scope] = Rewriter({**around, **replacements.get(scope, {})})
        return known[scope]

    return rewriter


def find_replacement(left: Expr, right: Expr) -> tuple[Atom, Expr] | None:
    """Return an atom that can be replaced: an unknown, or a max or min by one of its arguments."""
    left, right = without_common_factor(left, right, is_certain=False)
    for side, opposite in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Symbol) and atom.name[:1] == "?" and atom.name not in opposite.symbols:
            return atom, opposite
        if isinstance(atom, Call) and atom.op in ("min", "max") and opposite in atom.args:
            return atom, opposite
    return None


def rewriter_of(equal: Iterable[tuple[Expr, Expr]]) -> Rewriter:
    """Return the rewriter that applies these equalities."""
    replacements: Replacements = {}
    for pair in equal:
        if (atom := find_replacement(*pair)) is not None:
            replacements.setdefault(*atom)
    return Rewriter(replacements)


class Rewriter:
    """Replaces atoms in expressions, each expression once."""

    def __init__(self, replacements: Replacements) -> None:
        self.replacements = replacements
        self.done: dict[Expr, Expr] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its dims rewritten."""
        if not self.replacements or tensor.dims is None:
            return tensor
        dims = tuple(self.expr(dim) for dim in tensor.dims)
        if tensor.dims == dims:
            return tensor
        return tensor.with_contents(dims, None if not tensor.may_have_data else tensor.data)

    def expr(self, expr: Expr) -> Expr:
        """Return an expression rewritten."""
        if expr.constant is not None:
            return expr
        if expr not in self.done:
            self.done[expr] = expr  # an atom that is replaced by itself, through others, stays
            with suppress(TooComplexError, ZeroDivisionError):
                self.done[expr] = expr.map_atoms(self._atom)
        return self.done[expr]

    def _atom(self, atom: Atom) -> Expr:
        if atom in self.replacements:
            return self.expr(self.replacements[atom])
        if isinstance(atom, Symbol):
            return Expr.from_atom(atom)
        args = [self.expr(arg) for arg in atom.args]
        return Expr.from_atom(atom) if tuple(args) == atom.args else OPERATIONS[atom.op](*args)


Ranges = dict[str, tuple[Bound, Bound]]


def learned_ranges(relations: Iterable[Relation]) -> Ranges:
    """Return the bounds of symbols that follow from inequalities with a number and from equalities."""
    ranges: Ranges = {}
    for relation in relations:
        if relation.relation == "==":
            _learn_equal(relation.left, relation.right, ranges)
            _learn_equal(relation.right, relation.left, ranges)
        elif relation.right.constant is not None:
            _tighten_ranges(relation.left, relation.right.constant, ranges)
    return ranges


def _learn_equal(side: Expr, opposite: Expr, ranges: Ranges) -> None:
    value, atom = opposite.constant, side.atom
    if value is not None:
        _tighten_ranges(side, value, ranges)
        _tighten_ranges(-side, -value, ranges)
    if isinstance(atom, Call) and atom.op in ("min", "max") and opposite in atom.args:
        for arg in atom.args:
            _tighten_ranges(arg - opposite if atom.op == "min" else opposite - arg, 0, ranges)


def _tighten_ranges(expr: Expr, least: int, ranges: Ranges) -> None:
    """Add the ranges of symbols that follow from `expr >= least`."""
    for inequality in walk_breadth_first([(expr, least)], _implied_inequalities):
        for atom, low, high in _atom_bounds(*inequality):
            if isinstance(atom, Symbol):
                before = ranges.get(atom.name, (-INF, INF))
                ranges[atom.name] = max(before[0], low), min(before[1], high)


def _atom_bounds(expr: Expr, least: int) -> Iterator[tuple[Atom, Bound, Bound]]:
    """Yield the atoms of an expression, each with the bounds that follow from `expr >= least`."""
    for monomial, factor in expr.terms:
        if len(monomial) != 1:
            continue
        atom = monomial[0]
        most = upper(expr - Expr.from_atom(atom) * factor)
        if most in (INF, -INF):
            continue
        room = least - int(most)  # factor*atom >= room
        yield (atom, -(-room // factor), INF) if factor > 0 else (atom, -INF, -room // -factor)


def _implied_inequalities(inequality: tuple[Expr, int]) -> Iterator[tuple[Expr, int]]:
    """Yield the inequalities of the arguments of calls that follow from `expr >= least`."""
    for atom, low, _ in _atom_bounds(*inequality):
        if isinstance(atom, Symbol) or low == -INF:
            continue
        least = int(low)
        if atom.op == "//" and (size := atom.args[1].constant) is not None and size > 0:
            yield atom.args[0], least * size
        elif atom.op == "min":
            yield from ((arg, least) for arg in atom.args)
        elif atom.op == "max":
            large = [arg for arg in atom.args if upper(arg) >= least]
            yield from ((arg, least) for arg in large if len(large) == 1)


def narrower_ranges(learned: Ranges, symbols: Mapping[str, Expr]) -> Ranges:
    """Return those of the ranges that are narrower than their symbols have them, with the bounds of both."""
    result: Ranges = {}
    for name in learned.keys() & symbols.keys():
        before = lower(symbols[name]), upper(symbols[name])
        both = max(learned[name][0], before[0]), min(learned[name][1], before[1])
        if both[0] <= both[1] and both != before:
            result[name] = both
    return result
