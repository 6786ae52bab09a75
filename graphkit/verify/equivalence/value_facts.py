"""Dtype, dims and elements of a model's values, in expressions that both models share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphkit.dtypes import INTEGERS
from graphkit.graph.view import Value
from graphkit.shapes import Expr, Shapes, is_known, symbol
from graphkit.shapes.learned_facts import Rewriter, rewriter_of
from graphkit.shapes.symbols import Symbol
from graphkit.shapes.tensor import Dims, Tensor
from graphkit.verify.equivalence.required_products import RequiredProducts, required_equalities
from graphkit.verify.equivalence.terms import Term

__all__ = ["Facts", "ValueFacts"]

OWN_UNKNOWN = "?rewritten:"  # before what is unknown in the rewritten model, and not known to be that of the original


@dataclass(frozen=True)
class Facts:
    """What is known of a value: its dtype, its dims, and its elements where they are known.

    Attributes:
        elements: Those of a small integer tensor, with its sizes.
    """

    dtype: int
    dims: Dims | None
    elements: tuple[tuple[int, ...], tuple[Expr, ...]] | None = None


class ValueFacts:
    """What is known of values, in the words of the original.

    An expression that is unknown in the rewritten model is that of the original where the same term was read there.
    """

    def __init__(self, shapes: Shapes, required: RequiredProducts, original: ValueFacts | None) -> None:
        self.shapes, self.required = shapes, required
        self.by_term: dict[Term, Facts] = {}
        self.of_original: Mapping[Term, Facts] | None = None if original is None else original.by_term
        self.symbols: dict[str, Expr] = {}
        self.rewriter: Rewriter = rewriter_of(required_equalities(shapes)) if original is None else original.rewriter

    def _expr(self, expr: Expr) -> Expr:
        """Return an expression in the words of the original."""
        if expr.constant is not None:
            return expr
        if self.of_original is not None:
            for name in expr.symbols:
                if name[:1] == "?" and name not in self.symbols:
                    found = next(each for each in expr.walk_symbols() if each.name == name)
                    self.symbols[name] = symbol(f"{OWN_UNKNOWN}{name[1:]}", found.lower, found.upper)
        if self.symbols:
            expr = expr.substitute(self.symbols)
        return self.required.expr(self.rewriter.expr(expr))

    def of(self, value: Value, raw: Term) -> Facts:
        """Return a value as it is read; unknown expressions are those of its term where it was read first."""
        tensor = self.shapes.first.get(value) or Tensor(0, None)
        data = tensor.data if tensor.dtype in INTEGERS and tensor.may_have_data else None
        listed = None if data is None else data.ravel().tolist()
        before = None if self.of_original is None else self.of_original.get(raw)
        before = self.by_term.get(raw) if before is None else before
        if before is not None:
            self._match(tensor.dims or (), before.dims or ())
            if listed is not None and before.elements is not None:
                self._match(listed, before.elements[1])
        dims = None if tensor.dims is None else tuple(self._expr(dim) for dim in tensor.dims)
        if dims is not None and before is not None and before.dims is not None and len(before.dims) == len(dims):
            dims = tuple(theirs if _is_own(mine) else mine for mine, theirs in zip(dims, before.dims, strict=True))
        elements = None
        if data is not None and listed is not None and all(isinstance(each, (int, Expr)) for each in listed):
            exprs = tuple(self._expr(Expr.of(each)) for each in listed)
            if all(is_known(each) for each in exprs):  # dims are small; an element of an input may overflow
                elements = data.shape, exprs
        found = self.by_term[raw] = Facts(tensor.dtype, dims, elements)
        return found

    def _match(self, mine: Sequence[object], theirs: Sequence[Expr]) -> None:
        """Take the original's expressions for those that are unknown here."""
        for each, other in zip(mine, theirs, strict=False):
            atom = each.atom if isinstance(each, Expr) else None
            if isinstance(atom, Symbol) and atom.name[:1] == "?" and atom.name not in self.symbols:
                self.symbols[atom.name] = other


def _is_own(expr: Expr) -> bool:
    return any(name.startswith(OWN_UNKNOWN) for name in expr.symbols)
