"""Products of dims that the original requires to be another number: `(height // 14)*(width // 14)` is 16.

A model with embeddings of 17 positions runs only where its patches are so many, and one that cuts an image into windows
only where these are all of it. A rewritten model may have been given that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

from graphkit.graph.merged_decoder import count_captured_values
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.shapes import Expr, Shapes, const, lower
from graphkit.symbolic.expr import OPERATIONS, Atom, Call, Monomial, TooComplexError

__all__ = ["RequiredProducts", "needed_nodes", "required_equalities"]

MOST = 8  # products in each other


def required_equalities(shapes: Shapes) -> list[tuple[Expr, Expr]]:
    """Return what is equal wherever a model gives its outputs.

    A branch may not run, and onnxruntime leaves out the nodes that no output needs.
    """
    needed = needed_nodes(shapes.model)
    return [(each.left, each.right) for each in shapes.equalities if each.node in needed]


def needed_nodes(model: Model) -> set[Node]:
    """Return the nodes of the main graph that an output needs; a body may not run."""
    producers = (value.producer for value in model.graph.outputs if value.producer is not None)
    return {*walk_breadth_first(producers, _producing_nodes)}


def _producing_nodes(node: Node) -> Iterator[Node | None]:
    yield from (value.producer for value in node.operands)
    yield from (value.producer for body in node.bodies.values() for value in count_captured_values(body))


class RequiredProducts:
    """Replaces products in expressions by what they must be, where the original runs.

    Args:
        equal: Expressions that are equal wherever the original runs.
    """

    def __init__(self, equal: Iterable[tuple[Expr, Expr]]) -> None:
        self.known: dict[Monomial, Expr] = {}
        self.done: dict[Expr, Expr] = {}
        for left, right in equal:
            for monomial, factor in (left - right).terms:
                rest = (left - right) - Expr(((monomial, factor),))
                if factor in (1, -1) and _is_product(monomial) and not _has_product(rest, monomial):
                    self.known.setdefault(monomial, rest * -factor)
                    break

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with all such products replaced."""
        if not self.known or expr.constant is not None:
            return expr
        if expr not in self.done:
            self.done[expr] = expr
            with suppress(TooComplexError, ZeroDivisionError):
                self.done[expr] = self._replace_products(expr.mapped(self._atom))
        return self.done[expr]

    def _atom(self, atom: Atom) -> Expr:
        if not isinstance(atom, Call):
            return Expr.from_atom(atom)
        args = [self.expr(arg) for arg in atom.args]
        if atom.op == "//" and (quotient := self._known_quotient(*args)) is not None:
            return quotient
        return Expr.from_atom(atom) if tuple(args) == atom.args else OPERATIONS[atom.op](*args)

    def _known_quotient(self, dividend: Expr, divisor: Expr) -> Expr | None:
        """Return the rest of a product that is known to be the dividend, without the divisor in it."""
        atom = divisor.atom
        if atom is None or lower(divisor) < 1:
            return None
        for product, number in self.known.items():
            if atom in product and (times := _ratio_to_number(dividend, self.expr(number))) is not None:
                return _without_product(product, (atom,)) * times
        return None

    def _replace_products(self, expr: Expr) -> Expr:
        for _ in range(MOST):
            found = [(monomial, factor, self._within(monomial)) for monomial, factor in expr.terms]
            if not any(product for _, _, product in found):
                return expr
            expr = sum(
                (
                    Expr(((monomial, factor),))
                    if not product
                    else _without_product(monomial, product) * self.known[product] * factor
                    for monomial, factor, product in found
                ),
                start=const(0),
            )
        return expr

    def _within(self, monomial: Monomial) -> Monomial:
        atoms = Counter(monomial)
        return next((product for product in self.known if Counter(product) <= atoms), ())


def _is_product(monomial: Monomial) -> bool:
    """Whether it is a product of computed dims, all of them known; those of inputs keep their names."""
    known = all(isinstance(atom, Call) and "?" not in str(Expr.from_atom(atom)) for atom in monomial)
    return len(monomial) > 1 and known


def _ratio_to_number(expr: Expr, number: Expr) -> Expr | None:
    """Return what a number is multiplied with in an expression, None where it is no factor of that."""
    if not expr.terms or not number.terms:
        return None
    (monomial, factor), (unit, each) = expr.terms[0], number.terms[0]
    if Counter(unit) - Counter(monomial):
        return None
    times = _without_product(monomial, unit) * (factor // each)
    return times if expr == number * times else None


def _has_product(expr: Expr, product: Monomial) -> bool:
    return any(Counter(product) <= Counter(monomial) for monomial, _ in expr.terms)


def _without_product(monomial: Monomial, product: Monomial) -> Expr:
    left = Counter(monomial) - Counter(product)
    made = const(1)
    for atom in left.elements():
        made = made * Expr.from_atom(atom)
    return made
