"""The normal form of what a node gives: its term once the axioms are applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from graphkit.graph.operator_traits import value_inputs
from graphkit.ops.tensor import Ratio, Tensor
from graphkit.shapes import Expr, Shapes
from graphkit.verify.equivalence.application import Application, Tools
from graphkit.verify.equivalence.axioms import AXIOMS, FIRST_AXIOMS, Axiom
from graphkit.verify.equivalence.real_axioms import REAL_AXIOMS
from graphkit.verify.equivalence.terms import Term
from graphkit.verify.equivalence.value_facts import Facts

__all__ = ["EXACT", "REAL", "NormalForms", "free_elements"]

EXACT = AXIOMS
REAL = (*FIRST_AXIOMS, *REAL_AXIOMS, *AXIOMS)


@dataclass(frozen=True, eq=False)
class Normal:
    """The normal form of an output of a node, to be taken again where both models have that.

    Attributes:
        facts: What is known of the output.
        term: The normal form.
        axioms: How often each axiom was used.
    """

    facts: Facts
    term: Term
    axioms: Mapping[str, int]


class NormalForms:
    """Brings the nodes of a model to normal form.

    Attributes:
        known: By the term of a node before any axiom, and whether the sign of zeros in it matters; a rewritten model
            takes those of the original.
    """

    def __init__(self, shapes: Shapes, tools: Tools, axioms: Sequence[Axiom], original: NormalForms | None) -> None:
        self.shapes, self.tools, self.axioms = shapes, tools, axioms
        self.known: dict[tuple[Term, bool], Normal] = {} if original is None else original.known
        self.free_elements = free_elements(shapes)
        self.by_operator: dict[str, list[Axiom]] = {}

    def of(self, app: Application, raw: Term, facts: Facts) -> Term:
        """Return the normal form of an output, that of the same term with the same facts where one is known."""
        terms = self.tools.terms
        key = raw, app.has_sign
        known = self.known.get(key)
        if known is not None and known.facts == facts:
            for name, times in known.axioms.items():
                terms.note(name, times)
            return known.term
        terms.recent.clear()
        term = self.elements(facts)
        if term is not None:
            terms.note("elements")
        else:
            term = self._normal(app, raw)
        self.known[key] = Normal(facts, term, dict(terms.recent))
        return term

    def _normal(self, app: Application, raw: Term) -> Term:
        op = app.node.operator
        if self._counts_elements(app):
            raw.nearly = "its dims are elements that may be large, and what is computed from these may wrap around"
            return raw
        if op not in self.by_operator:
            self.by_operator[op] = [each for each in self.axioms if each.operators is None or op in each.operators]
        for axiom in self.by_operator[op]:
            found = axiom.function(app)
            if isinstance(found, Term):
                self.tools.terms.note(axiom.name)
                return found
            if found:
                raw.nearly = f"{axiom.name}: {found}"
        return raw

    def _counts_elements(self, app: Application) -> bool:
        """Whether a node makes dims of unknown elements, whose expressions do not hold where integers wrap around."""
        value = app.node.outputs[app.index]
        if not self.free_elements or value is None or value not in self.shapes.first:
            return False
        symbols = {name for dim in self.shapes.first[value].dims or () for name in dim.symbols}
        return not self.free_elements.isdisjoint(symbols) and bool(value_inputs(app.node))

    def elements(self, facts: Facts) -> Term | None:
        """Return the term of a small integer tensor whose elements are all known."""
        if facts.elements is None:
            return None
        shape, elements = facts.elements
        if all(each.constant is not None for each in elements):
            try:
                array = np.array([int(each) for each in elements], helper.tensor_dtype_to_np_dtype(facts.dtype))
            except OverflowError:
                return None
            return self.tools.constants.of_array(array.reshape(shape), facts.dtype)
        return self.tools.terms.make("Elements", (facts.dtype, shape, elements), (), facts.dtype, shape)


def free_elements(shapes: Shapes) -> frozenset[str]:
    """Return the names of unknown elements, such as those of an input, that are not first known as dims of a tensor.

    A dim is small, and so is what models compute from it. An element of an input may be any number: the shape engine
    takes `4 * x // 4` for `x`, which does not hold where the product wraps around.
    """
    dims: set[str] = set()
    free: set[str] = set()
    for value, tensor in shapes.first.items():
        if value.tensor is not None:
            continue
        dims.update(name for dim in tensor.dims or () for name in dim.symbols if name not in free)
        free.update(name for name in _names_of_elements(tensor) if name[:1] == "?" and name not in dims)
    return frozenset(free)


def _names_of_elements(tensor: Tensor) -> Iterator[str]:
    for element in tensor.elements or () if tensor.may_have_data else ():
        expr = element.dividend if isinstance(element, Ratio) else element
        if isinstance(expr, Expr) and expr.constant is None:
            yield from expr.symbols
