"""A model as the data of a page: its graph by numbers, and what the page computes at other sizes of the input dims.

Nodes and values have shapes and their sources; sizes have relations and bounds; nodes have costs as expressions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field

from graphkit.analysis.model_costs import Costs
from graphkit.analysis.node_costs import FAILURES, MEASURES, chosen_branches, node_costs
from graphkit.analysis.peak_memory import MAX_DEPTH, MAX_MOMENTS, PeakMemory
from graphkit.analysis.typical_sizes import TypicalSizes
from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import attribute_text, shape_text, values_text
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Scope, Value, all_nodes, all_scopes, as_text
from graphkit.io.tensors import payload_size
from graphkit.ops.preconditions import Index
from graphkit.ops.tensor import plain_dims
from graphkit.render.document_blocks import NodeMark
from graphkit.shapes import AS_DECLARED, Expr, Relation, Shapes, is_known
from graphkit.shapes.constraints.legal_sizes import LegalSizes
from graphkit.shapes.constraints.node_constraints import Guarded, collect_preconditions
from graphkit.symbolic.algebra import linear_equations, reduce_rows, solve_symbol

T = TypeVar("T")
REACH = 32  # how many times the size that is shown a slider reaches
LEAST_REACH = 4096
MAX_TEXT = 600  # characters of a relation
UNKNOWN = "?"  # which the name of an element that is not known begins with
NONE = -1  # the number of an input that is left out


class PageSizes(Struct, frozen=True):
    """The sizes at which a page shows its numbers, and how far they may be moved."""

    shapes: Shapes  # the shapes of the model
    sizes: Mapping[str, int]  # the size of each symbol
    fixed: frozenset[str]  # the symbols that the caller has given a size
    legal: LegalSizes  # which sizes go together
    # symbols that are expressions in the dims of other models of the page
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
            linked = {name: size for name, dim in links.items() if (size := _evaluate_at(dim, sizes)) is not None}
            return cls(shapes, {**typical.sizes, **sizes, **linked}, frozenset(fixed), typical.legal, links)
        cost_sizes = dict(costs.sizes)
        return cls(shapes, cost_sizes, frozenset(cost_sizes) - set(costs.assumed), typical.legal)

    def document(self) -> dict[str, object]:
        """Return what a page reads: `symbols`, `fixed`, `links`, `follows` and `requires`.

        Symbols have a name, a size, the least and the greatest of a slider, and whether no greater one is legal.
        `is_least` says that costs may be more elsewhere: of an If, the branch counts that is dearer at these sizes.
        """
        follows, chosen = self._follows(), chosen_branches(self.shapes, self.sizes)
        known = {*self.fixed, *self.links}
        free = [each for each in self.legal.variables if each.name in self.sizes and each.name not in known]
        relations = [(relation, "") for relation in self.legal.relations]
        for place in collect_preconditions(self.shapes):  # the last index lies in its axis: a position in a table
            required = place.precondition
            required = required.inner if isinstance(required, Guarded) else required
            if isinstance(required, Index) and is_known(required.high) and is_known(required.size):
                relation = Relation.at_most(required.high - required.size + 1, 0)
                relations.append((relation, place.nodes[0].path))
        requires: dict[tuple[str, str], str] = {}  # relations to 0 that hold at the sizes, and a node that needs them
        for relation, node in relations:
            left, value = str(relation.left), self._at(relation.left)
            if relation.right != 0 or value is None or len(left) > MAX_TEXT:
                continue
            if {"==": value == 0, ">=": value >= 0, "<=": value <= 0}[relation.relation]:
                requires.setdefault((left, relation.relation), node)
        symbols = list[list[object]]()
        for variable in (each for each in free if each.name not in follows):
            least, size = variable.low, self.sizes[variable.name]
            if variable.role == "past" and self.shapes.model.roles.merged:  # without a past, its other branch runs
                least = min(1, size)
            most = max(REACH * size, LEAST_REACH) if variable.role != "batch" else 256
            symbols.append([variable.name, size, least, int(min(most, variable.high)), variable.high <= most])
        return {
            "symbols": symbols,
            "fixed": {name: size for name, size in self.sizes.items() if name in self.fixed},
            "links": {name: str(expr) for name, expr in self.links.items() if name not in self.fixed},
            "follows": {name: str(expr) for name, expr in follows.items() if name not in known},
            "requires": [[*relation, node] for relation, node in requires.items()],
            "is_least": any(node.is_op("If") and node not in chosen for node in all_nodes(self.shapes.model.scopes)),
        }

    def _follows(self) -> dict[str, Expr]:
        """Return the symbols that follow from others, such as a mask's length from past and new tokens."""
        legal = self.legal
        equal = [relation for relation in legal.relations if relation.relation == "=="]
        if legal.past is not None and legal.tokens is not None:
            equal += [Relation.equal(total, legal.past + legal.tokens) for total in legal.totals]
        rows = reduce_rows(
            (row for each in equal for row in linear_equations(each.left, each.right)),
            [variable.name for variable in reversed(legal.variables)],
        )
        atoms = {name: expr for dims in legal.inputs.values() for expr in dims or () if (name := expr.name)}
        solutions = {name: solve_symbol(name, rows, atoms) for name in rows}
        return {
            name: expr
            for name, expr in solutions.items()
            if expr is not None and self._at(expr) == self.sizes.get(name, expr) and expr.symbols <= self.sizes.keys()
        }

    def costs(self) -> dict[Node, list[tuple[str, int] | None]]:
        """Return the costs of each node, in the order of `MEASURES`, as expressions and numbers; None for unknown."""
        by_node: dict[Node, list[tuple[str, int] | None]] = {}
        for cost in node_costs(self.shapes, self.sizes).nodes:
            row: list[tuple[str, int] | None] = []
            for measure in MEASURES if cost.node not in by_node else ():  # of a function, the first call
                amount = cost.costs.get(measure)
                value = None if amount is None else amount.at(self.sizes)
                row.append(None if amount is None or value is None else (amount.text(self.sizes), value))
            by_node.setdefault(cost.node, row)
        return by_node

    def numbers(self, dims: tuple[Expr, ...] | None) -> list[int | None] | None:
        """Return symbolic dims at the sizes, None for a dim that they do not tell; None where all dims are numbers."""
        if dims is None or all(dim.constant is not None for dim in dims):
            return None
        return [self._at(dim) for dim in dims]

    def _at(self, expr: Expr) -> int | None:
        return _evaluate_at(expr, self.sizes)


def _evaluate_at(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    try:
        return expr.evaluate(sizes)
    except (KeyError, *FAILURES):
        return None


def _grouped_marks(marks: Iterable[NodeMark], numbers: Mapping[str, int], texts: _Numbers[str]) -> list[object]:
    colours: dict[str, dict[tuple[str, str], list[list[int]]]] = {}
    for mark in marks:
        if mark.node in numbers:
            kinds = colours.setdefault(mark.colour, {})
            kinds.setdefault((mark.meaning, mark.tone), []).append([numbers[mark.node], texts.number(mark.text)])
    return [[name, [[*kind, nodes] for kind, nodes in kinds.items()]] for name, kinds in colours.items()]


class _Numbers(dict[T, int]):
    """What occurs often, each with a number."""

    def number(self, thing: T) -> int:
        return self.setdefault(thing, len(self))


def page_graph(
    shapes: Shapes,
    costs: Costs | None = None,
    at: PageSizes | None = None,
    runs: Sequence[Mapping[str, int]] = (),
    marks: Iterable[NodeMark] = (),
) -> dict[str, object]:
    """Return the graph of a model as plain lists, which `render/page/graph.mjs` reads.

    The page shows costs, or nothing but sizes, `at` others than the typical ones; the peak memory of further runs, each
    by the sizes that it keeps; and marks, which say something about nodes.

    Returns:
        `model`: the name of the model.
        `texts`: texts that occur often; operators, modules, types and attributes are numbers of these.
        `scopes`: path and number of the owning node of each graph.
        `nodes`: label, scope, operator, module, attributes (name and value in turns), inputs, outputs.
        `values`: name, scope, kind, type with shape, bytes of a weight, what its shape comes from, why it is unknown.
        `elements`: the elements of small constants and of shapes, by the number of the value.
        `numbers`: the dims at the sizes of the page, by the number of a type with symbolic ones.
        `costs`: number of a node, MACs, operations and bytes moved, each a number of `formulas`.
        `formulas`: expressions in the sizes, and what they come to.
        `sizes`: see `PageSizes`.
        `marks`: name of each choice of colours; of each colour meaning, tone, nodes with what is said.
        `memory`: see `page_memory`: at the sizes of the page, and of each further run.
    """
    page = at or PageSizes.of(shapes, costs)
    scopes = list(all_scopes(shapes.model.scopes))
    nodes = [node for scope in scopes for node in scope.nodes]
    values = [value for scope in scopes for value in scope.values.values()]
    texts, formulas = _Numbers[str](), _Numbers[tuple[str, int]]()
    scope_numbers = {scope: number for number, scope in enumerate(scopes)}
    node_numbers = {node: number for number, node in enumerate(nodes)}
    value_numbers = {value: number for number, value in enumerate(values)}
    dims = dict[int, list[int | None]]()

    def numbers_of(some: Iterable[Value | None]) -> list[int]:
        return [NONE if value is None else value_numbers[value] for value in some]

    def node_entry(node: Node) -> list[object]:
        attributes = ((as_text(attribute.name), attribute_text(attribute)) for attribute in node.proto.attribute)
        named = texts.number(node.operator), texts.number(module_of(node))
        lines = [texts.number(text) for pair in attributes for text in pair]
        ends = numbers_of(node.inputs), numbers_of(node.outputs)
        return [node.label, scope_numbers[node.scope], *named, lines, *ends]

    def value_entry(value: Value) -> list[object]:
        tensor, reason = shapes[value], shapes.reason(value)
        dtype = dtype_name(tensor.dtype) if tensor.dtype else "?"
        type_ = texts.number(f"{dtype} {shape_text(plain_dims(tensor.dims))}")
        if type_ not in dims and (known := page.numbers(tensor.dims)) is not None:
            dims[type_] = known
        kind = texts.number("constant" if value.is_constant else value.kind)
        size = (payload_size(value.constant) if value.constant is not None else None) or 0
        sources = numbers_of(shapes.shape_sources(value))
        row = [value.name, scope_numbers[value.scope], kind, type_, size, sources]
        return [*row, texts.number(reason)] if reason else row

    def elements_text(value: Value) -> str:
        text = values_text(value.constant) if value.constant is not None else shapes[value].values_text
        return "" if UNKNOWN in text else text

    return {
        "model": shapes.model.label if costs is None else costs.model,
        "scopes": [[scope.path, NONE if scope.owner is None else node_numbers[scope.owner]] for scope in scopes],
        "nodes": [*map(node_entry, nodes)],
        "values": [*map(value_entry, values)],
        "elements": {value_numbers[value]: texts.number(text) for value in values if (text := elements_text(value))},
        "marks": _grouped_marks(marks, {node.path: number for node, number in node_numbers.items()}, texts),
        "inputs": [numbers_of(scope.inputs) for scope in scopes],
        "outputs": [numbers_of(scope.outputs) for scope in scopes],
        "texts": list(texts),
        "numbers": dims,
        "costs": [
            [node_numbers[node], *(NONE if cell is None else formulas.number(cell) for cell in row)]
            for node, row in page.costs().items()
            if any(cell is not None and cell[1] for cell in row)
        ],
        "formulas": [[text, str(value)] for text, value in formulas],
        "sizes": page.document(),
        "memory": page_memory(PeakMemory(shapes), page.sizes, runs, node_numbers, value_numbers),
    }


def page_memory(
    memory: PeakMemory,
    sizes: Mapping[str, int],
    runs: Sequence[Mapping[str, int]],
    nodes: Mapping[Node, int],
    values: Mapping[Value, int],
) -> list[dict[str, object]]:
    """Return the plans by which `render/page/memory.mjs` finds what `PeakMemory` does, at any sizes.

    Where the first sizes of the page tell which branch of an If runs, it is that one; further runs keep other sizes,
    such as no past, by which another branch runs. Nodes and values have numbers on the page.

    Returns:
        The run at the sizes of the page, then the further ones, of which each has what is different.
        `fixed`: the sizes that it keeps.
        `plans`: of each scope that runs, `states` (value, formula and last position) and `steps`: number of the node,
        its outputs (value, formula, last position, kind and source of each, one after the other), the numbers of the
        plans of its bodies or its function, and 1 if it is a loop.
        `formulas`: bytes of tensors.
        `most`: how many nodes that run are told one by one.
        `found`: how many these are at the first sizes, the sum of their bytes, and the peak.
    """
    first, *further = (_page_run(memory, {**sizes, **fixed}, fixed, nodes, values) for fixed in ({}, *runs))
    return [first, *({key: part for key, part in run.items() if part != first[key]} for run in further)]


def _page_run(
    memory: PeakMemory,
    sizes: Mapping[str, int],
    fixed: Mapping[str, int],
    nodes: Mapping[Node, int],
    values: Mapping[Value, int],
) -> dict[str, object]:
    chosen, running = chosen_branches(memory.shapes, sizes), list[Scope]()
    formulas, numbers, plans = dict[str, int](), dict[Scope, int](), dict[int, dict[str, object]]()

    def number_of(scope: Scope, states: Sequence[Value]) -> int | None:
        """Return the number of a scope's plan, None for a scope inside of itself."""
        if scope in running or len(running) >= MAX_DEPTH:
            return None
        if scope not in numbers:
            number = numbers[scope] = len(numbers)
            running.append(scope)
            plan, steps = memory.plan(scope), list[list[object]]()
            for node, outputs in plan.steps:
                places = (values[each.source] if each.source is not None else -1 for each in outputs)
                known = ((values[each.value], formula(each.value), each.last, each.kind) for each in outputs)
                step = [nodes[node], [part for one, place in zip(known, places, strict=True) for part in (*one, place)]]
                inside = [number_of(*inner) for inner in memory.inside(node, chosen)]
                steps.append([*step, inside, int(node.is_op("Loop", "Scan"))] if inside else step)
            there = [[values[value], formula(value), plan.last.get(value, 0)] for value in states]
            plans[number] = {"states": there, "steps": steps}
            running.pop()
        return numbers[scope]

    def formula(value: Value) -> int:
        return formulas.setdefault(text(value), len(formulas))

    def text(value: Value) -> str:
        """Return the bytes of a tensor as an expression: of an If, those of the branch that runs; 0 where unknown."""
        size = memory.size(value)
        if isinstance(size, Expr) and size.symbols <= sizes.keys():
            return str(size)
        results = memory.branch_results(value, chosen)
        return f"max(0, {', '.join(map(text, results))})" if results else "0"

    number_of(memory.shapes.model.graph, ())
    peak = memory.at(sizes)
    return {
        "fixed": dict(fixed),
        "plans": [plans[number] for number in range(len(plans))],
        "formulas": list(formulas),
        "most": MAX_MOMENTS,
        "found": [len(peak.moments), sum(size for _, size in peak.moments), peak.bytes],
    }
