"""Count the costs of a model, which `graphkit costs` shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphkit.analysis.costs.amounts import Amount, sum_amounts
from graphkit.analysis.costs.cost_table import (
    AliveTensor,
    BranchRow,
    CostRow,
    Costs,
    CurvePoint,
    MemoryOverTime,
    PeakRow,
    Quantity,
    StepsRow,
    UnknownCost,
)
from graphkit.analysis.costs.node_costs import FAILURES, MEASURES, Measure, NodeCost, node_costs
from graphkit.analysis.costs.node_sizes import bytes_of
from graphkit.analysis.costs.peak_memory import Peak, PeakMemory
from graphkit.analysis.costs.typical_sizes import TypicalSizes
from graphkit.analysis.costs.weights import Weight, stored_weights, weight_bits
from graphkit.graph.name_families import by_family, expand_label
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import By
from graphkit.render.result import Sizes
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, Shapes, infer, is_known

__all__ = ["OUTSIDE", "costs", "group_of"]

ALIVE = 10  # tensors at the peak that are named
POINTS = 64  # of a curve


def costs(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    by: By = "layer",
    top: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
    shapes: Shapes | None = None,
) -> Costs:
    """Count the costs of a model: parameters, multiply-accumulates, other operations, bytes moved, peak memory.

    Args:
        model: The model, or its path. No weight is read.
        spec: Sizes of input dims; `dims`, `inputs` and `ranges` add to it. A range with both ends gives a curve.
        by: Whether the rows are repeated layers, modules, operators or nodes.
        top: How many rows, those of the most multiply-accumulates; None for all.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.
        shapes: The inferred shapes of the model at these sizes, if they are known already.

    Returns:
        The costs, as expressions in the input dims and at the sizes; those that nobody gives are typical ones.

    Raises:
        UsageError: A symbol or an input does not exist, or a size contradicts the model.

    Example:
        >>> found = graphkit.costs("example:causal-attention", dims={"batch_size": 1, "sequence_length": 8})
        >>> found.macs.value, found.macs.expression
        (61440, '61440')
    """
    model = as_model(model)
    spec = spec | DimSpec.of(dims, inputs, ranges)
    shapes = shapes or infer(model, spec)
    return _Count(model, spec, shapes).result(by, top)


@dataclass(frozen=True)
class _Group:
    """The nodes of one group, and the weights that they are the first to read."""

    costs: list[NodeCost]
    weights: list[Weight]


class _Count:
    """The costs of one model at some sizes."""

    def __init__(self, model: Model, spec: DimSpec, shapes: Shapes) -> None:
        self.model, self.spec, self.shapes = shapes.model, spec, shapes
        self.label = model.label
        self.typical = TypicalSizes(shapes.model, spec, shapes)
        self.sizes = self.typical.sizes
        self.nodes = node_costs(shapes, self.sizes)
        self.memory = PeakMemory(shapes)
        self.weights = stored_weights(shapes.model)
        self.known: dict[tuple[int, ...], tuple[Quantity, Quantity, Quantity]] = {}

    def result(self, by: By, top: int | None) -> Costs:
        rows, peak = tuple(self.rows(by)), self.memory.at(self.sizes)
        stored = [weight for weight, _ in self.weights]
        totals = {measure: self.sum(self.nodes.nodes, measure) for measure in MEASURES}
        cache = self.cache()
        return Costs(
            model=self.label,
            sizes=Sizes((*self.spec.dims, *self.sizes.items())),
            assumed=tuple(self.sizes),
            parameters=sum(weight.parameters for weight in stored),
            weight_bytes=sum(weight.bytes for weight in stored),
            weights=weight_bits(stored),
            **{measure: self.quantity(*totals[measure]) for measure in MEASURES},
            intensity=_arithmetic_intensity(*(amount.at(self.sizes) for amount, _ in totals.values())),
            input_bytes=self.quantity(*self.bytes(self.inputs())),
            peak=self.peak(peak),
            memory=self.over_time(peak),
            kv_cache=self.quantity(*cache) if cache is not None else None,
            by=by,
            rows=rows[:top],
            more=len(rows[top:]) if top is not None else 0,
            branches=tuple(self.branches()),
            sequential=tuple(self.steps()),
            unknown=tuple(self.unknown()),
            over=self.typical.over or "",
            curve=tuple(self.curve(totals, cache)),
        )

    # Numbers

    def sum(self, nodes: Sequence[NodeCost], measure: Measure) -> tuple[Amount, int]:
        """Return the sum of a measure, and how many nodes are not in it."""
        known = [node.costs[measure] for node in nodes if measure in node.costs]
        return sum_amounts(known), len(nodes) - len(known)

    def quantity(self, amount: Amount, uncounted: int = 0) -> Quantity:
        return Quantity(amount.at(self.sizes), amount.text(self.sizes), uncounted)

    def quantities(self, nodes: Sequence[NodeCost]) -> tuple[Quantity, Quantity, Quantity]:
        key = tuple(id(node.costs) for node in nodes)  # those of nodes that cost the same are one
        if key not in self.known:
            macs, operations, moved = (self.quantity(*self.sum(nodes, measure)) for measure in MEASURES)
            self.known[key] = macs, operations, moved
        return self.known[key]

    def bytes(self, values: Iterable[Value]) -> tuple[Amount, int]:
        """Return the bytes of tensors, and how many are not in them."""
        amounts: list[Amount] = []
        unknown = 0
        for value in values:
            try:
                size = bytes_of(value, self.shapes)
                amounts += [Amount.of(size)] if is_known(size) else []
                unknown += not is_known(size)
            except FAILURES:
                unknown += 1
        return sum_amounts(amounts), unknown

    def inputs(self) -> list[Value]:
        return [value for value in self.model.graph.inputs if value.tensor is None and value.sparse is None]

    def cache(self) -> tuple[Amount, int] | None:
        """Return the bytes of the KV cache that goes into a step, or that comes out of a first one."""
        roles = self.model.roles
        entries = [entry.past if roles.pasts else entry.present for entry in roles.cache]
        return self.bytes(value for value in entries if value is not None) if entries else None

    # Rows

    def rows(self, by: By) -> Iterator[CostRow]:
        """Yield a row for each group, the most multiply-accumulates first; groups that cost the same are one row."""
        groups: dict[str, _Group] = {}
        for cost in self.nodes.nodes:
            if not cost.node.is_op("Constant"):
                groups.setdefault(group_of(cost.node, by), _Group([], [])).costs.append(cost)
        for weight, reader in self.weights:
            name = group_of(reader, by) if reader is not None else OUTSIDE
            groups.setdefault(name, _Group([], [])).weights.append(weight)
        made = {name: self.row(name, group) for name, group in groups.items()}
        yield from sorted(
            _join_alike(made) if by in ("layer", "module") else made.values(), key=_row_weight, reverse=True
        )

    def row(self, name: str, group: _Group) -> CostRow:
        parameters, stored = (
            sum(getattr(weight, name) for weight in group.weights) for name in ("parameters", "bytes")
        )
        macs, operations, bytes_moved = self.quantities(group.costs)
        return CostRow(
            name=name,
            times=1,
            nodes=len(group.costs),
            parameters=parameters,
            weight_bytes=stored,
            macs=macs,
            operations=operations,
            bytes_moved=bytes_moved,
            intensity=_arithmetic_intensity(macs.value, operations.value, bytes_moved.value),
        )

    def peak(self, peak: Peak) -> PeakRow:
        alive = tuple(
            AliveTensor(each.value.name, each.bytes, each.amount.text(self.sizes)) for each in peak.alive[:ALIVE]
        )
        size = Quantity(peak.bytes, peak.amount.text(self.sizes), len(peak.unknown))
        node = peak.node.path if peak.node is not None else ""
        return PeakRow(size, node, alive, len(peak.alive), tuple(peak.unknown))

    def over_time(self, peak: Peak) -> MemoryOverTime:
        nodes = {node: number for number, node in enumerate(all_nodes(self.model.scopes))}
        return MemoryOverTime(tuple(nodes[node] for node, _ in peak.moments), tuple(size for _, size in peak.moments))

    def branches(self) -> Iterator[BranchRow]:
        for branch in self.nodes.branches:
            yield BranchRow(
                branch.node.path, branch.name, branch.is_counted, branch.reason, *self.quantities(branch.costs)
            )

    def steps(self) -> Iterator[StepsRow]:
        for each in self.nodes.sequential:
            steps = None if each.steps is None else self.quantity(each.steps)
            macs = self.quantity(*self.sum(each.costs, "macs"))
            yield StepsRow(each.node.path, each.node.op_type, steps, each.reason, macs)

    def unknown(self) -> Iterator[UnknownCost]:
        """Yield a row for each reason."""
        groups: dict[str, dict[Node, set[Measure]]] = {}
        for cost in self.nodes.nodes:
            for measure, reason in cost.unknown.items():
                groups.setdefault(reason, {}).setdefault(cost.node, set()).add(measure)
        for reason, nodes in groups.items():
            measures = tuple(measure for measure in MEASURES if any(measure in missing for missing in nodes.values()))
            yield UnknownCost(reason, measures, len(nodes), next(iter(nodes)).path)

    def curve(
        self, totals: Mapping[Measure, tuple[Amount, int]], cache: tuple[Amount, int] | None
    ) -> Iterator[CurvePoint]:
        for size, sizes in self.typical.curve(POINTS):
            macs, operations, moved = (totals[measure][0].at(sizes) for measure in MEASURES)
            kv = None if cache is None else cache[0].at(sizes)
            yield CurvePoint(size, macs, operations, moved, self.memory.at(sizes).bytes, kv)


def _arithmetic_intensity(macs: int | None, operations: int | None, moved: int | None) -> float | None:
    return None if macs is None or operations is None or not moved else (2 * macs + operations) / moved


def _join_alike(rows: Mapping[str, CostRow]) -> Iterator[CostRow]:
    """Yield one row for those of a family that cost the same, the first reader of a constant that they share too."""
    costs = ((name, (row.parameters, row.macs, row.operations, row.bytes_moved)) for name, row in rows.items())
    for label, _, times in by_family(costs):
        members = [rows[name] for name in (expand_label(label) if times > 1 else [label])]
        nodes, stored = max(row.nodes for row in members), max(row.weight_bytes for row in members)
        yield replace(members[0], name=label, times=times, nodes=nodes, weight_bytes=stored)


def _row_weight(row: CostRow) -> tuple[int, ...]:
    """Return the costs of a row, the measure that decides first."""
    values = (quantity.value or 0 for quantity in (row.macs, row.operations, row.bytes_moved))
    return (*(row.times * value for value in values), row.times * row.weight_bytes)


OUTSIDE = "(no module)"  # of nodes whose names tell no module
NUMBERED = re.compile(r".*?[./]?\b\w*[./]\d{1,9}(?=[./]|$)")  # up to the first number: `model/layers.0`, `h.0`


def group_of(node: Node, by: By) -> str:
    """Return the name of the group that a node belongs to."""
    return _GROUPS[by](node)


def _module_name(node: Node) -> str:
    return module_of(node) or OUTSIDE


def _layer_name(node: Node) -> str:
    """Return the module up to its first number; a module without one counts as its own."""
    module = _module_name(node)
    match = NUMBERED.match(module)
    return match[0] if match is not None else module


_GROUPS: Mapping[By, Callable[[Node], str]] = {
    "layer": _layer_name,
    "module": _module_name,
    "op": lambda node: node.operator,
    "node": lambda node: node.path,
}
