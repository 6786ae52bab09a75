"""The memory of activations as the data of a page, which runs the plan anew at other sizes of the input dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.analysis.costs.node_costs import Choice, chosen_branches
from graphkit.analysis.costs.node_sizes import VIEWS
from graphkit.analysis.costs.peak_memory import IN_PLACE, MAX_DEPTH, MAX_MOMENTS, PeakMemory, states_of
from graphkit.graph.view import Node, Scope, Value
from graphkit.shapes import Expr

__all__ = ["page_memory"]

NEW, VIEW, IN_PLACE_OF = range(3)  # where an output lies: by itself, in another tensor, or there if nothing needs that


def page_memory(
    memory: PeakMemory,
    sizes: Mapping[str, int],
    runs: Sequence[Mapping[str, int]],
    nodes: Mapping[Node, int],
    values: Mapping[Value, int],
) -> list[dict[str, object]]:
    """Return the plans by which `render/page/memory.mjs` finds what `PeakMemory` does, at any sizes.

    Args:
        memory: The memory of a model.
        sizes: The first sizes of the page: where they tell which branch of an If runs, it is that one.
        runs: Sizes that further runs keep, such as no past, by which another branch runs.
        nodes: The numbers of nodes on the page.
        values: The numbers of values there.

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
    first, *further = (_run(memory, {**sizes, **fixed}, fixed, nodes, values) for fixed in ({}, *runs))
    return [first, *({key: part for key, part in run.items() if part != first[key]} for run in further)]


def _run(
    memory: PeakMemory,
    sizes: Mapping[str, int],
    fixed: Mapping[str, int],
    nodes: Mapping[Node, int],
    values: Mapping[Value, int],
) -> dict[str, object]:
    plans = _Plans(memory, sizes, nodes, values, chosen_branches(memory.shapes, sizes))
    plans.number(memory.shapes.model.graph, ())
    peak = memory.at(sizes)
    return {
        "fixed": dict(fixed),
        "plans": [plans.made[number] for number in range(len(plans.made))],
        "formulas": list(plans.formulas),
        "most": MAX_MOMENTS,
        "found": [len(peak.moments), sum(size for _, size in peak.moments), peak.bytes],
    }


@dataclass
class _Plans:
    """Plans of the scopes of a model, each with a number."""

    memory: PeakMemory
    sizes: Mapping[str, int]
    nodes: Mapping[Node, int]
    values: Mapping[Value, int]
    chosen: Mapping[Node, Choice]
    formulas: dict[str, int] = field(default_factory=dict)
    numbers: dict[Scope, int] = field(default_factory=dict)
    made: dict[int, dict[str, object]] = field(default_factory=dict)
    running: list[Scope] = field(default_factory=list)

    def number(self, scope: Scope, states: tuple[Value, ...]) -> int | None:
        """Return the number of a scope's plan, None for a scope inside of itself."""
        if scope in self.running or len(self.running) >= MAX_DEPTH:
            return None
        if scope not in self.numbers:
            number = self.numbers[scope] = len(self.numbers)
            self.running.append(scope)
            self.made[number] = self.plan(scope, states)
            self.running.pop()
        return self.numbers[scope]

    def plan(self, scope: Scope, states: tuple[Value, ...]) -> dict[str, object]:
        plan = self.memory.plan(scope)
        steps: list[list[object]] = []
        for position, node in enumerate(plan.nodes):
            outputs: list[int] = []
            for value in node.outputs if not node.is_op("Constant") else ():
                if value is not None:
                    last = plan.last.get(value, position)
                    outputs += [self.values[value], self.formula(value), last, *self.place(node, value, plan.results)]
            inside = self.inside(node)
            step: list[object] = [self.nodes[node], outputs]
            steps.append([*step, inside, int(node.is_op("Loop", "Scan"))] if inside else step)
        return {
            "states": [[self.values[value], self.formula(value), plan.last.get(value, 0)] for value in states],
            "steps": steps,
        }

    def place(self, node: Node, value: Value, results: frozenset[Value]) -> tuple[int, int]:
        """Return where an output lies, and the number of the tensor that it may share bytes with."""
        source = node.input(0)
        number = self.values[source] if source is not None else -1
        if value in results:
            return NEW, -1
        if node.operator in VIEWS and value.output_index == 0:
            return VIEW, number
        return (IN_PLACE_OF, number) if node.operator in IN_PLACE else (NEW, -1)

    def inside(self, node: Node) -> list[int | None]:
        """Return the plans of a node's bodies that may run, or of the function that it calls."""
        function = self.memory.function(node)
        if function is not None:
            return [self.number(function, ())]
        bodies = self.memory.bodies(node, self.chosen)
        return [self.number(body, tuple(states_of(node, body))) for body in bodies]

    def formula(self, value: Value) -> int:
        return self.formulas.setdefault(self.text(value), len(self.formulas))

    def text(self, value: Value) -> str:
        """Return the bytes of a tensor as an expression: of an If, those of the branch that runs; 0 where unknown."""
        size = self.memory.size(value)
        if isinstance(size, Expr) and size.symbols <= self.sizes.keys():
            return str(size)
        producer = value.producer
        if producer is None or not producer.is_op("If"):
            return "0"
        bodies = self.memory.bodies(producer, self.chosen)
        results = [result for body in bodies for result in body.outputs[value.output_index :][:1]]
        return f"max(0, {', '.join(map(self.text, results))})" if results else "0"
