"""Data by which a page computes its numbers at other sizes of the input dims: sizes, relations, and node costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from graphkit.analysis.costs.cost_table import Costs
from graphkit.analysis.costs.node_costs import FAILURES, MEASURES, NodeCost, chosen_branches, node_costs
from graphkit.analysis.costs.typical_sizes import TypicalSizes
from graphkit.graph.view import Node, all_nodes
from graphkit.shapes import AS_DECLARED, Expr, Relation, Shapes
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable
from graphkit.shapes.relations import linear_equations, reduced, solved

__all__ = ["PageSizes"]

REACH = 32  # how many times the size that is shown a slider reaches
LEAST_REACH = 4096
MAX_TEXT = 600  # characters of a relation


@dataclass(frozen=True)
class PageSizes:
    """The sizes at which a page shows its numbers, and how far they may be moved.

    Attributes:
        shapes: The shapes of the model.
        sizes: The size of each symbol.
        fixed: The symbols that the caller has given a size.
        legal: Which sizes go together.
        links: Symbols that are expressions in the dims of other models of the page.
    """

    shapes: Shapes
    sizes: Mapping[str, int]
    fixed: frozenset[str]
    legal: LegalSizes
    links: Mapping[str, Expr] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        shapes: Shapes,
        costs: Costs | None = None,
        sizes: Mapping[str, int] = {},
        fixed: Collection[str] = (),
        links: Mapping[str, Expr] = {},
    ) -> PageSizes:
        """Return the sizes of a page, those of its costs where it shows some, else some sizes and typical ones."""
        typical = TypicalSizes(shapes.model, AS_DECLARED, shapes)
        if costs is None:
            linked = {name: size for name, dim in links.items() if (size := _at(dim, sizes)) is not None}
            known = {**typical.sizes, **sizes, **linked}
            return cls(shapes, known, frozenset(fixed), typical.legal, links)
        cost_sizes = dict(costs.sizes)
        return cls(shapes, cost_sizes, frozenset(cost_sizes) - set(costs.assumed), typical.legal)

    def document(self) -> dict[str, object]:
        """Return what a page reads: `symbols` (name, size, least, most), `fixed`, `links`, `follows` and `requires`.

        `is_least` says that costs may be more elsewhere: of an If, the branch counts that is dearer at these sizes.
        """
        follows = self._follows()
        known = {*self.fixed, *self.links}
        free = [each for each in self.legal.variables if each.name in self.sizes and each.name not in known]
        return {
            "symbols": [
                [each.name, self.sizes[each.name], *self._reach(each)] for each in free if each.name not in follows
            ],
            "fixed": {name: size for name, size in self.sizes.items() if name in self.fixed},
            "links": {name: str(expr) for name, expr in self.links.items() if name not in self.fixed},
            "follows": {name: str(expr) for name, expr in follows.items() if name not in known},
            "requires": list(dict.fromkeys(self._requires())),
            "is_least": self._has_open_branches(),
        }

    def _reach(self, variable: Variable) -> tuple[int, int]:
        if variable.role == "past" and self.shapes.model.roles.merged:  # without a past, its other branch runs
            variable = replace(variable, low=min(1, self.sizes[variable.name]), high=variable.high)
        most = max(REACH * self.sizes[variable.name], LEAST_REACH) if variable.role != "batch" else 256
        return variable.low, int(min(most, variable.high))

    def _has_open_branches(self) -> bool:
        chosen = chosen_branches(self.shapes, self.sizes)
        return any(node.is_op("If") and node not in chosen for node in all_nodes(self.shapes.model.scopes))

    def _follows(self) -> dict[str, Expr]:
        """Return the symbols that follow from others, such as a mask's length from past and new tokens."""
        legal = self.legal
        equal = [relation for relation in legal.relations if relation.relation == "=="]
        if legal.past is not None and legal.tokens is not None:
            equal += [Relation.equal(total, legal.past + legal.tokens) for total in legal.totals]
        rows = reduced(
            (row for each in equal for row in linear_equations(each.left, each.right)),
            [variable.name for variable in reversed(legal.variables)],
        )
        atoms = {name: expr for dims in legal.inputs.values() for expr in dims or () if (name := expr.name)}
        solutions = {name: solved(name, rows, atoms) for name in rows}
        return {
            name: expr
            for name, expr in solutions.items()
            if expr is not None and self._at(expr) == self.sizes.get(name, expr) and expr.symbols <= self.sizes.keys()
        }

    def _requires(self) -> Iterator[tuple[str, str]]:
        """Yield the relations to 0 that hold at the sizes, as left side and relation."""
        for relation in self.legal.relations:
            left, value = relation.left, self._at(relation.left)
            if relation.right != 0 or value is None or len(str(left)) > MAX_TEXT:
                continue
            if {"==": value == 0, ">=": value >= 0, "<=": value <= 0}[relation.relation]:
                yield str(left), relation.relation

    def costs(self) -> dict[Node, list[tuple[str, int] | None]]:
        """Return the costs of each node, in the order of `MEASURES`, as expressions and numbers; None for unknown."""
        by_node: dict[Node, list[tuple[str, int] | None]] = {}
        for cost in node_costs(self.shapes, self.sizes).nodes:
            by_node.setdefault(cost.node, self._cost(cost))  # of a function, the first call
        return by_node

    def _cost(self, cost: NodeCost) -> list[tuple[str, int] | None]:
        row: list[tuple[str, int] | None] = []
        for measure in MEASURES:
            amount = cost.costs.get(measure)
            value = None if amount is None else amount.at(self.sizes)
            row.append(None if amount is None or value is None else (amount.text(self.sizes), value))
        return row

    def numbers(self, dims: tuple[Expr, ...] | None) -> list[int | None] | None:
        """Return symbolic dims at the sizes, None for a dim that they do not tell; None where all dims are numbers."""
        if dims is None or all(dim.constant is not None for dim in dims):
            return None
        return [self._at(dim) for dim in dims]

    def _at(self, expr: Expr) -> int | None:
        return _at(expr, self.sizes)


def _at(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    try:
        return expr.evaluate(sizes)
    except (KeyError, *FAILURES):
        return None
