"""Simplify dims by the equalities that must hold for a model to run.

A MatMul whose inner dims are `max(total, past + 1)` and `past + 1` runs only where the two are equal: then the max may
be written as `past + 1` everywhere. An equality holds only in the scope of its node and in the bodies there, because a
branch may not run. Symbols of the inputs are never replaced: the user must know that two of them must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from graphkit.graph.view import Scope, Value
from graphkit.shapes.algebra import without_common_factor
from graphkit.shapes.expr import OPERATIONS, Call, Expr
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.relations import Requirement
from graphkit.shapes.symbols import Symbol
from graphkit.shapes.tensor import Tensor

__all__ = ["Rewriter", "replacement", "rewriter_of", "simplified"]

Atom = Symbol | Call
Replacements = dict[Atom, Expr]


def simplified(table: Mapping[Value, Tensor], equalities: Iterable[Requirement]) -> dict[Value, Tensor]:
    """Return the table with each atom replaced by an expression that it must equal."""
    pairs: dict[Scope, list[tuple[Expr, Expr]]] = {}
    for equality in equalities:
        pairs.setdefault(equality.scope, []).append((equality.left, equality.right))
    found = {scope: replaced for scope, equal in pairs.items() if (replaced := rewriter_of(equal).replacements)}
    if not found:
        return dict(table)
    rewriters: dict[Scope, Rewriter] = {}
    return {value: _rewriter(value.scope, found, rewriters).tensor(tensor) for value, tensor in table.items()}


def replacement(left: Expr, right: Expr) -> tuple[Atom, Expr] | None:
    """Return an atom that can be replaced: an unknown, or a max or min by one of its arguments."""
    left, right = without_common_factor(left, right, is_certain=False)
    for one, other in ((left, right), (right, left)):
        atom = one.atom
        if isinstance(atom, Symbol) and atom.name[:1] == "?" and atom.name not in other.symbols:
            return atom, other
        if isinstance(atom, Call) and atom.op in ("min", "max") and other in atom.args:
            return atom, other
    return None


def rewriter_of(equal: Iterable[tuple[Expr, Expr]]) -> Rewriter:
    """Return the rewriter that applies these equalities."""
    found: Replacements = {}
    for pair in equal:
        if (atom := replacement(*pair)) is not None:
            found.setdefault(*atom)
    return Rewriter(found)


def _rewriter(scope: Scope, found: Mapping[Scope, Replacements], known: dict[Scope, Rewriter]) -> Rewriter:
    if scope not in known:
        around = _rewriter(scope.parent, found, known).replacements if scope.parent is not None else {}
        known[scope] = Rewriter({**around, **found.get(scope, {})})
    return known[scope]


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
        return tensor.replaced(dims, None if not tensor.may_have_data else tensor.data)

    def expr(self, expr: Expr) -> Expr:
        """Return an expression rewritten."""
        if expr.constant is not None:
            return expr
        if expr not in self.done:
            self.done[expr] = expr  # an atom that is replaced by itself, through others, stays
            with suppress(TooComplexError, ZeroDivisionError):
                self.done[expr] = expr.mapped(self._atom)
        return self.done[expr]

    def _atom(self, atom: Atom) -> Expr:
        if atom in self.replacements:
            return self.expr(self.replacements[atom])
        if isinstance(atom, Symbol):
            return Expr.from_atom(atom)
        args = [self.expr(arg) for arg in atom.args]
        return Expr.from_atom(atom) if tuple(args) == atom.args else OPERATIONS[atom.op](*args)
