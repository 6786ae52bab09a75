"""Inline the branch of every If whose condition is known before the model runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, Pass, copy_proto
from graphkit.rewrite.dead_code import remove_dead_code
from graphkit.rewrite.inline_branches import decide, inline_branches, why_undecided
from graphkit.shapes import Expr, Shapes, infer
from graphkit.shapes.dim_spec import DimSpec, SymbolRanges

__all__ = ["InlineConstantIf"]


@dataclass(frozen=True)
class InlineConstantIf(Pass):
    """Inline the branch of every If whose condition is a constant, or follows from the shapes of tensors.

    Exporters put an If around a Squeeze, for instance, to test the dim that it removes. The branch moves to the place
    of the If. Names that would clash are changed, the outputs of the If keep theirs, and nodes that only the condition
    or the other branch needed are removed. Legality: the condition is the same at all legal input dims; in a function,
    whose calls differ, it is a constant.

    Before:

        agraph (float[N, 1, 4] x) => (float[N, 4] y) <int64 one = {1}, int64[1] axis = {1}> {
            s = Shape (x)
            d = Gather (s, one)
            c = Equal (d, one)
            y = If (c) <
                then_branch = g1 () => (float[N, 4] a) { a = Squeeze (x, axis) },
                else_branch = g2 () => (float[N, 1, 4] b) { b = Identity (x) }
            >
        }

    After:

        agraph (float[N, 1, 4] x) => (float[N, 4] y) <int64[1] axis = {1}> {
            y = Squeeze (x, axis)
        }

    Attributes:
        ranges: Bounds of symbols, (name, least, largest), None for an open end.
    """

    ranges: SymbolRanges = field(default=(), kw_only=True)

    def run(self, model: Model) -> Outcome:
        if not any(node.is_op("If") for node in all_nodes(model.scopes)):
            return Outcome(model)
        decisions, undecided = decide(model.scopes, _Conditions(model, DimSpec(ranges=self.ranges)).find)
        reason = "its condition is only known at run time"
        declined = tuple(Declined(node.path, why_undecided(node, reason)) for node in undecided)
        if not decisions:
            return Outcome(model, declined=declined)
        branches = {node: body.path.rpartition("/")[2] for node, body in decisions.items()}
        changes = [f"'{node.path}' always runs {branch}" for node, branch in branches.items()]
        copy = model.with_proto(copy_proto(model))
        same = dict(zip(all_nodes(model.scopes), all_nodes(copy.scopes), strict=True))
        inline_branches(copy.proto, copy.scopes, {same[node]: same[node].bodies[branches[node]] for node in decisions})
        result = remove_dead_code(copy.with_proto(copy.proto)).model
        return Outcome(result, tuple(changes), declined)


class _Conditions:
    """The conditions of a model's Ifs."""

    def __init__(self, model: Model, spec: DimSpec) -> None:
        self.model, self.spec = model, spec

    @cached_property
    def shapes(self) -> Shapes:
        """The shapes that the engine infers, asked only where there is a condition that it may know."""
        return infer(self.model, self.spec)

    def find(self, node: Node) -> bool | None:
        """Return the value of an If's condition, None where it is not known."""
        value = node.input(0)
        if value is None or (value.kind == "input" and value.tensor is None):
            return None
        if value.constant is not None:
            elements = self.model.array(value.constant).ravel()
            return bool(elements[0]) if elements.size == 1 else None
        if not self.model.graph.contains(node.scope) or any(b.contains(node.scope) for b in self.shapes.impossible):
            return None
        known = self.shapes[value].elements
        first = known[0] if known is not None and len(known) == 1 else None
        number = first.constant if isinstance(first, Expr) else None
        return None if number is None else number != 0
