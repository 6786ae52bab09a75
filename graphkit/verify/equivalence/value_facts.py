"""Dtype, dims and elements of a model's values, in expressions that both models share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphkit.dtypes import INTEGERS
from graphkit.graph.operator_traits import broadcasts_inputs, operator_set, value_inputs
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims, Tensor
from graphkit.shapes import Expr, Shapes, is_known, symbol
from graphkit.shapes.learned_facts import Rewriter, rewriter_of
from graphkit.symbolic.expr import Symbol
from graphkit.verify.equivalence.movement import leading_ones
from graphkit.verify.equivalence.reading import Run
from graphkit.verify.equivalence.required_products import RequiredProducts, required_equalities
from graphkit.verify.equivalence.terms import Key, Term

__all__ = ["Facts", "ValueFacts", "broadcast_dims", "shaped_by"]

# Operators whose dims depend on those of their inputs, and on the value of the others: see `VALUE_INPUTS`.
SHAPED = operator_set(
    """
    AveragePool Concat ConstantOfShape Conv ConvTranspose Einsum Expand Gemm MatMul MaxPool Pad Range Reshape Resize
    Slice Tile
    """
)

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

    An expression that is unknown in the rewritten model is that of the original where the same term was read there. A
    dim is, too, where a node of the same operator reads the same dims there, and the same shape.
    """

    def __init__(
        self, shapes: Shapes, required: RequiredProducts, original: ValueFacts | None, runs: Sequence[Run] = ()
    ) -> None:
        self.shapes, self.required = shapes, required
        self.by_term: dict[Term, Facts] = {}
        self.of_original: Mapping[Term, Facts] | None = None if original is None else original.by_term
        self.runs = runs  # of the original
        self.symbols: dict[str, Expr] = {}
        self.rewriter: Rewriter = rewriter_of(required_equalities(shapes)) if original is None else original.rewriter

    def _in_original_words(self, expr: Expr) -> Expr:
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

    def of(self, value: Value, raw: Term, shaped: Callable[[], Hashable | None] = lambda: None) -> Facts:
        """Return a value as it is read; unknown expressions are those of its term where it was read first.

        Args:
            value: The value.
            raw: The term of its node before any axiom.
            shaped: Returns what its dims depend on, None for more than the dims of other values: see `shaped_by`.
        """
        tensor = self.shapes.first.get(value) or Tensor(0, None)
        data = tensor.data if tensor.dtype in INTEGERS and tensor.may_have_data else None
        listed = None if data is None else data.ravel().tolist()
        before = None if self.of_original is None else self.of_original.get(raw)
        before = self.by_term.get(raw) if before is None else before
        if before is not None:
            self._match_unknown(tensor.dims or (), before.dims or ())
            if listed is not None and before.elements is not None:
                self._match_unknown(listed, before.elements[1])
        known = None if before is None else before.dims
        key = shaped() if known is None and not all(map(is_known, tensor.dims or ())) else None
        if key is not None:
            known = self.by_shape.get(key)
            self._match_unknown(tensor.dims or (), known or ())
        dims = None if tensor.dims is None else tuple(self._in_original_words(dim) for dim in tensor.dims)
        if dims is not None and known is not None and len(known) == len(dims):
            dims = tuple(theirs if _is_own(mine) else mine for mine, theirs in zip(dims, known, strict=True))
        elements = None
        if data is not None and listed is not None and all(isinstance(each, (int, Expr)) for each in listed):
            exprs = tuple(self._in_original_words(Expr.of(each)) for each in listed)
            if all(is_known(each) for each in exprs):  # dims are small; an element of an input may overflow
                elements = data.shape, exprs
        if key is not None and dims is not None:
            self.by_shape.setdefault(key, dims)
        found = self.by_term[raw] = Facts(tensor.dtype, dims, elements)
        return found

    @cached_property
    def by_shape(self) -> dict[Hashable, Dims]:
        """The dims of outputs by what they depend on, in the original first; only few models need them."""
        found: dict[Hashable, Dims] = {}
        for app in (run.application for run in self.runs):
            key = shaped_by(app.node, app.attributes, app.args, app.index)
            if key is not None and app.dims is not None:
                found.setdefault(key, app.dims)
        return found

    def _match_unknown(self, mine: Sequence[object], theirs: Sequence[Expr]) -> None:
        """Take the original's expressions for those that are unknown here."""
        for each, other in zip(mine, theirs, strict=False):
            name = _unknown_name(each)
            if name and name not in self.symbols:
                self.symbols[name] = other


def shaped_by(node: Node, attributes: Key, args: Sequence[Term | None], index: int) -> Hashable | None:
    """Return what the dims of an output depend on: the dims of inputs, and the terms of those whose value makes dims.

    It is None where they may depend on elements of other inputs, and where some dims are not known.
    """
    if broadcasts_inputs(node):
        return broadcast_dims(args)
    if node.operator not in SHAPED:
        return None
    by_value = value_inputs(node)
    key: list[Hashable] = [node.operator, attributes, index]
    for at, term in enumerate(args):
        if term is not None and at not in by_value and at < len(node.inputs):
            if term.dims is None:
                return None
            key.append(term.dims)
        else:
            key.append(term)
    return tuple(key)


def broadcast_dims(args: Sequence[Term | None]) -> Hashable | None:
    """Return what the dims of a broadcast depend on, and whether it fails, however often and in which order they come.

    It is None where some dims are not known.
    """
    terms = [term for term in args if term is not None]
    dims = [term.dims for term in terms if term.dims is not None]
    if len(dims) < len(terms):
        return None
    shown = frozenset(each[leading_ones(each) :] for each in dims)
    return "broadcast", max(map(len, dims), default=0), shown - {()}


def _unknown_name(each: object) -> str:
    """Return the name of an expression that is unknown, "" for any other."""
    atom = each.atom if isinstance(each, Expr) else None
    return atom.name if isinstance(atom, Symbol) and atom.name[:1] == "?" else ""


def _is_own(expr: Expr) -> bool:
    return any(name.startswith(OWN_UNKNOWN) for name in expr.symbols)
