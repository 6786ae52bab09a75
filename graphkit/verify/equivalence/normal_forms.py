"""The normal form of what a node gives: its term once the axioms are applied, and the loose term beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Value
from graphkit.shapes import Shapes
from graphkit.verify.equivalence.application import Application, Tools
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.free_elements import free_elements
from graphkit.verify.equivalence.looseness import NO_OVERFLOW, Looseness
from graphkit.verify.equivalence.reading import Reading
from graphkit.verify.equivalence.terms import Term
from graphkit.verify.equivalence.value_facts import Facts

__all__ = ["NormalForms"]


@dataclass(frozen=True, eq=False)
class Normal:
    """The normal form of an output of a node, to be taken again where both models have that.

    Attributes:
        facts: What is known of the output.
        sources: The loose terms of the node's inputs.
        term: The normal form.
        loose: The loose term, None where it is the same.
        axioms: How often each axiom was used.
    """

    facts: Facts
    sources: tuple[Term | None, ...]
    term: Term
    loose: Term | None
    axioms: Mapping[str, int]


class NormalForms:
    """Brings the nodes of a model to normal form, and remembers in its reading which terms are loose.

    Attributes:
        known: By the term of a node before any axiom; a rewritten model takes those of the original.
    """

    def __init__(
        self,
        reading: Reading,
        shapes: Shapes,
        tools: Tools,
        axioms: Sequence[Axiom],
        looseness: Looseness,
        original: NormalForms | None,
    ) -> None:
        self.reading, self.shapes, self.tools = reading, shapes, tools
        self.axioms, self.looseness = axioms, looseness
        self.known: dict[Term, Normal] = {} if original is None else original.known
        self.free_elements = free_elements(shapes)
        self.by_operator: dict[str, list[Axiom]] = {}
        self.loosening = frozenset().union(*(axiom.operators or () for axiom in looseness.axioms))

    def of(self, app: Application, raw: Term, facts: Facts, value: Value) -> Term:
        """Return the normal form of an output, that of the same term with the same facts where one is known."""
        terms, loose = self.tools.terms, self.reading.loose
        found = [loose.get(source) for source in app.node.inputs if source is not None] if loose else []
        sources = tuple(found) if any(found) else ()
        terms.recent.clear()
        known = self.known.get(raw)
        if known is not None and known.facts == facts and known.sources == sources:
            for name, times in known.axioms.items():
                terms.note(name, times)
            if known.loose is not None:
                loose[value] = known.loose
            return known.term
        term = self.elements(facts)
        if term is not None:
            terms.note("elements")
        elif sources or (app.dtype in FLOATS and app.node.operator in self.loosening):
            term = self._with_loose(app, raw, value)
        else:
            term = self._normal(app, raw)
        self.known[raw] = Normal(facts, sources, term, loose.get(value), dict(terms.recent))
        return term

    def _with_loose(self, app: Application, raw: Term, value: Value) -> Term:
        """Return the exact term of an output, and remember its loose term where that is another one."""
        blind, loose = list(app.args), list(app.args)
        obstacle: tuple[Term, str] | None = None
        for index, source in enumerate(app.node.inputs):
            found = self.reading.loose.get(source) if source is not None else None
            if found is None or app.node.bodies:
                continue
            if self.looseness.is_blind(app, index):
                blind[index] = loose[index] = found
            elif self._is_faithful(app, index, found):
                loose[index] = found
            elif reason := self.looseness.obstacle(app, index):
                obstacle = found, f"{app.node.path} ({app.node.operator}) reads {reason}"
        if blind != app.args and app.node.operator in self.looseness.overflowing:
            self.tools.terms.note(NO_OVERFLOW)
        term = self._applied(app, raw, blind)
        if term.is_constant:  # as a rewrite that folds it has it
            return term
        other = self._loosened(replace(app, args=loose))
        if other is None and loose != blind:
            other = self._applied(app, raw, loose)
        if other is not None and other is not term:
            self.reading.loose[value] = other
        if obstacle is not None:
            self.reading.obstacles |= dict.fromkeys((term, other or term), obstacle)
        return term

    def _is_faithful(self, app: Application, index: int, found: Term) -> bool:
        """Whether a node may read a loose term: a divisor, say, stays away from 0 as that has it, and as it stands."""
        read = replace(app, args=[*app.args[:index], found, *app.args[index + 1 :]])
        return self.looseness.is_faithful(read, index) and self.looseness.is_faithful(app, index)

    def _loosened(self, app: Application) -> Term | None:
        """Return the term that an axiom makes of a node on loose terms."""
        for axiom in self.looseness.axioms:
            if axiom.operators is None or app.node.operator in axiom.operators:
                found = axiom.function(app)
                if isinstance(found, Term):
                    self.tools.terms.note(axiom.name)
                    return found
        return None

    def _applied(self, app: Application, raw: Term, args: Sequence[Term | None]) -> Term:
        """Return the normal form of a node with other arguments."""
        if list(args) == list(app.args):
            return self._normal(app, raw)
        made = self.tools.terms.make(app.node.operator, (*app.attributes, app.index), args, app.dtype, app.dims)
        return self._normal(replace(app, args=args), made)

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
