"""The result of `costs`, the rows that it is made of, and how it shows itself."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from msgspec import Struct, structs
from msgspec.structs import replace

from graphkit.analysis.node_costs import MEASURES, Amount, Measure, NodeCost, Quantity, node_costs, sum_amounts
from graphkit.analysis.peak_memory import PeakMemory
from graphkit.analysis.summary import Weight, WeightBits, stored_weights, weight_bits
from graphkit.analysis.typical_sizes import TypicalSizes
from graphkit.errors import count_things
from graphkit.graph.names import by_family, expand_label, join_words, module_of
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.options import By
from graphkit.render.document_blocks import (
    PEAK,
    Block,
    Cell,
    Formula,
    Prose,
    columns,
    size_cell,
    size_text,
    table,
    table_of,
    treemap,
)
from graphkit.render.result import Result, Sizes
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, Expr, Shapes, infer, is_known, symbol

WORDS = {"macs": "MACs", "operations": "operations", "bytes_moved": "bytes moved"}
ALIVE, SHOWN_ALIVE = 10, 5  # tensors at the peak that are named, and in a text
POINTS = 64  # of a curve
OUTSIDE = "(no module)"  # of nodes whose names tell no module
NUMBERED = re.compile(r".*?[./]?\b\w*[./]\d{1,9}(?=[./]|$)")  # up to the first number: `model/layers.0`, `h.0`


class CostRow(Struct, frozen=True):
    """The costs of a group of nodes; of several groups that cost the same, those of each."""

    name: str  # of the group, or a label for all of them: `model/layers.{0-17}`
    times: int  # how many groups it stands for
    nodes: int  # nodes that run; of several groups, the most that one of them has
    parameters: int  # of the weights that its nodes are the first to read
    weight_bytes: int  # of the same; of several groups, the most that one of them has: the first reads what they share
    macs: Quantity  # multiply-accumulates, other operations, and bytes read and written
    operations: Quantity
    bytes_moved: Quantity
    intensity: float | None  # operations for each byte moved, two for a multiply-accumulate; None if one is not known


class AliveTensor(Struct, frozen=True):
    """A tensor that is in memory at the peak."""

    name: str
    bytes: int
    expression: str


class PeakRow(Struct, frozen=True):
    """The peak memory of activations."""

    bytes: Quantity  # at the sizes; the expression is that of the tensors that are there then
    node: str  # the node that runs at the peak
    alive: tuple[AliveTensor, ...]  # the largest tensors that are there
    tensors: int  # how many there are
    unknown: tuple[str, ...]  # why some tensors have no size


class MemoryOverTime(Struct, frozen=True):
    """The activations that are in memory as nodes run."""

    # The number of each node that runs, in order: its place among all nodes of the file, those of the main graph
    # first, then those of bodies and functions. A node of a loop comes once, one of a function at each call.
    nodes: tuple[int, ...]
    bytes: tuple[int, ...]  # the bytes that are there when it runs


class BranchRow(Struct, frozen=True):
    """A branch of an If."""

    node: str
    branch: str
    is_counted: bool  # whether its costs are those of the model at the sizes
    reason: str  # why it cannot run, "" if it can
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity


class StepsRow(Struct, frozen=True):
    """Work that runs one step after the other."""

    node: str
    op: str
    steps: Quantity | None  # how many steps; None where that is not known
    reason: str  # why it is not known, "" if it is
    macs: Quantity  # of all steps


class UnknownCost(Struct, frozen=True):
    """Measures that are not known of some nodes, and the first of these."""

    reason: str
    measures: tuple[str, ...]
    nodes: int
    first: str


class CurvePoint(Struct, frozen=True):
    """The costs at one size of a symbol; None for a cost that has no number there."""

    size: int
    macs: int | None
    operations: int | None
    bytes_moved: int | None
    peak_bytes: int
    kv_cache_bytes: int | None


@dataclass(frozen=True)
class Costs(Result):
    """The costs of a model; docs/reference/costs.md defines each number.

    Attributes:
        sizes: The sizes at which numbers are told: those given, and typical ones.
        assumed: The symbols whose sizes nobody gave.
        parameters: Weights, counted: those that are tied once.
        weight_bytes: Bytes of all tensors that are stored.
        weights: By dtype and bit width.
        macs, operations, bytes_moved: Multiply-accumulates, other operations, and bytes that nodes read and write.
        intensity: Operations for each byte moved, two for a multiply-accumulate; None if one is not known.
        input_bytes: Bytes of the inputs, which the caller holds.
        peak: The peak memory of activations.
        memory: The memory of activations over time.
        kv_cache: Bytes of the KV cache that a step takes, or that a first step gives; None without one.
        by: What the rows are: layers, modules, operators or nodes.
        rows: The costs of each, the most multiply-accumulates first.
        more: How many rows are left out.
        branches: Both branches of each If.
        sequential: Loops, scans and recurrent operators: work that runs one step after the other.
        unknown: What is not counted, and why.
        over, curve: The symbol that has a range, and the costs along it.
    """

    title: ClassVar[str] = "Costs"
    model: str
    sizes: Sizes
    assumed: tuple[str, ...]
    parameters: int
    weight_bytes: int
    weights: tuple[WeightBits, ...]
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity
    intensity: float | None
    input_bytes: Quantity
    peak: PeakRow
    memory: MemoryOverTime
    kv_cache: Quantity | None
    by: By
    rows: tuple[CostRow, ...]
    more: int
    branches: tuple[BranchRow, ...]
    sequential: tuple[StepsRow, ...]
    unknown: tuple[UnknownCost, ...]
    over: str
    curve: tuple[CurvePoint, ...]

    @property
    def uncounted(self) -> str:
        """Why some MACs, or some tensors of the peak, are not counted, "" if all are: the first reason, and more."""
        reasons = [*(each.reason for each in self.unknown if "macs" in each.measures), *self.peak.unknown]
        more = f" (and {len(reasons) - 1:,} more)" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}" if reasons else ""

    def in_short(self) -> str:
        return f"the {len(self.rows):,} largest of {self.more + len(self.rows):,} {self.by}s, and memory over time"

    def blocks(self) -> Iterator[Block]:
        at = "All input dims are numbers."
        if self.sizes:
            every = len(self.assumed) == len(self.sizes)
            which = "typical sizes" if every else f"of which typical: {', '.join(self.assumed)}"
            sizes = join_words([f"{symbol(name)} {size:,}" for name, size in self.sizes])
            at = f"At {sizes}{f' ({which}; --dim sets others)' if self.assumed else ''}."
        yield Prose(at, "sizes")
        yield table("Cost:code | Here:number | In the input dims:note", list(self._totals()))
        if len(self.weights) > 1:
            headings = "Stored as=dtype | Bits:number | Tensors:number | Parameters:number | Bytes:number"
            yield table_of(headings, self.weights, "Weights and constants")
        yield from self._rows()
        yield from self._peak()
        if self.curve:
            yield self._curve()
        if self.branches:
            yield table(
                "If:code | Branch | Counted | MACs:number | Operations:number | Bytes moved:number | Why not:note",
                [
                    (
                        b.node,
                        b.branch,
                        b.is_counted,
                        b.macs.cell(),
                        b.operations.cell(),
                        b.bytes_moved.cell("B"),
                        b.reason,
                    )
                    for b in self.branches
                ],
                "Branches: one of each If runs",
            )
        if self.sequential:
            told = (("?", s.reason) if s.steps is None else (s.steps.cell(), s.steps.short) for s in self.sequential)
            yield table(
                "Node:code | Operator | Steps:number | Number of steps:note | MACs:number",
                [(s.node, s.op, *steps, s.macs.cell()) for s, steps in zip(self.sequential, told, strict=True)],
                "Sequential work: so many steps, one after the other",
            )
        for unknown in self.unknown:
            measures = join_words([WORDS[measure] for measure in unknown.measures])
            nodes = count_things(unknown.nodes, "node(s)")
            yield Prose(f"Not counted: {measures} of {nodes} from {unknown.first} on: {unknown.reason}.")

    def _totals(self) -> Iterator[tuple[Cell, ...]]:
        yield "parameters", size_cell(self.parameters), ""
        yield "weights", size_cell(self.weight_bytes, "B"), ""
        yield "multiply-accumulates (MACs)", self.macs.cell(), self.macs.short
        yield "other operations", self.operations.cell(), self.operations.short
        yield "bytes moved", self.bytes_moved.cell("B"), self.bytes_moved.short
        if self.intensity is not None:
            macs, operations, moved = self.macs, self.operations, self.bytes_moved
            ratio = Formula(f"{self.intensity:,.1f}", None, "", "/")
            if macs.expression and operations.expression and moved.expression:
                value = 2 * (macs.value or 0) + (operations.value or 0)
                text = f"2*({macs.expression}) + {operations.expression}"
                ratio = Formula(ratio.text, value, text, "/", moved.expression)
            yield "operations for each byte", ratio, ""
        yield "inputs", self.input_bytes.cell("B"), self.input_bytes.short
        yield "peak memory of activations", self.peak.bytes.as_peak().cell("B"), self.peak.bytes.short
        if self.kv_cache is not None:
            yield "KV cache", self.kv_cache.cell("B"), self.kv_cache.short

    def _rows(self) -> Iterator[Block]:
        name = {"layer": "Layer", "module": "Module", "op": "Operator", "node": "Node"}[self.by]
        times = "Nodes" if self.by == "op" else "Times"
        each = "; of one that is there several times, those of each" if self.by in ("layer", "module") else ""
        rows: list[tuple[Cell, ...]] = []
        for row in (row for row in self.rows if row.macs.value or row.bytes_moved.value or row.parameters):
            about = row.name, row.nodes if self.by == "op" else row.times, size_cell(row.parameters)
            rows.append((*about, row.macs.cell(), row.macs.share_of(self.macs, row.times), row.bytes_moved.cell("B")))
        headings = f"{name}:code | {times}:number | Parameters:number | MACs:number | Of all:number | Moved:number"
        yield table(headings, rows, title=f"Costs by {name.lower()}{each}")
        if self.more:
            yield Prose(f"... and {self.more:,} more: `graphkit costs --top N` shows N, and JSON has all.")
        if self.by == "op":
            return
        names = ((row.macs, expand_label(row.name) if row.times > 1 else [row.name]) for row in self.rows)
        parts = ((name, macs.value or 0, macs.expression) for macs, alike in names for name in alike)
        yield treemap(f"Multiply-accumulates by {name.lower()}", "MACs", parts)

    def _peak(self) -> Iterator[Block]:
        if self.peak.alive:
            largest = self.peak.alive[:SHOWN_ALIVE]
            rows: list[tuple[Cell, ...]] = [
                (each.name, Formula(f"{each.bytes:,}", each.bytes, each.expression, ",")) for each in largest
            ]
            if rest := self.peak.tensors - len(rows):
                rows.append((f"{rest:,} more", (self.peak.bytes.value or 0) - sum(each.bytes for each in largest)))
            yield table("Tensor:code | Bytes:number", rows, title=f"In memory at the peak, when {self.peak.node} runs")
        moments = zip(self.memory.nodes, self.memory.bytes, strict=True)
        points = [(f"node {number:,}", size, number, False) for number, size in moments]
        title = "Activations in memory as nodes run, in their order"
        yield columns(title, "nodes in the order in which they run", points, "B", is_memory=True)
        for reason in self.peak.unknown:
            yield Prose(f"Not in the peak: a tensor of unknown size: {reason}.")

    def _curve(self) -> Block:
        cache = self.kv_cache.expression if self.kv_cache is not None else ""
        measures: list[tuple[str, str, Literal["", "B"]]] = [
            ("MACs", self.macs.expression, ""),
            ("Operations", self.operations.expression, ""),
            ("Bytes moved", self.bytes_moved.expression, "B"),
            ("Peak memory", f"{PEAK}0", "B"),
        ]
        if any(point.kv_cache_bytes is not None for point in self.curve):
            measures.append(("KV cache", cache, "B"))
        rows: list[list[Cell]] = []
        for point in self.curve:
            row: list[Cell] = [point.size]
            for (_, expression, unit), value in zip(measures, structs.astuple(point)[1:], strict=False):
                text = "?" if value is None else size_text(value, unit)
                over = (self.over, point.size)
                row.append(text if value is None else Formula(text, value, expression, unit, over=over))
            rows.append(row)
        headings = " | ".join(f"{name}:number" for name in (self.over, *(name for name, *_ in measures)))
        return table(headings, rows, title=f"Over {self.over}")


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
    """Return the costs of a model: parameters, multiply-accumulates, other operations, bytes moved, peak memory.

    Args:
        model: The model, or its path. No weight is read.
        spec: Sizes of input dims, else typical ones; `dims`, `inputs` and `ranges` add to it. A range gives a curve.
        by: Whether the rows are repeated layers, modules, operators or nodes.
        top: How many rows, those of the most multiply-accumulates; None for all.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.
        shapes: The inferred shapes of the model at these sizes, if they are known already.

    Raises:
        UsageError: A symbol or an input does not exist, or a size contradicts the model.

    Example:
        >>> found = graphkit.costs("example:causal-attention", dims={"batch_size": 1, "sequence_length": 8})
        >>> found.macs.value, found.macs.expression
        (61440, '61440')
    """
    model = as_model(model)
    spec = spec | DimSpec.of(dims, inputs, ranges)
    return _Count(model.label, spec, shapes or infer(model, spec)).result(by, top)


class _Count:
    """The costs of one model at some sizes."""

    def __init__(self, label: str, spec: DimSpec, shapes: Shapes) -> None:
        self.label, self.model, self.spec = label, shapes.model, spec
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
        cache, alive = self.cache(), peak.alive[:ALIVE]
        inputs = [value for value in self.model.graph.inputs if value.tensor is None and value.sparse is None]
        numbers = {node: number for number, node in enumerate(all_nodes(self.model.scopes))}
        return Costs(
            model=self.label,
            sizes=Sizes((*self.spec.dims, *self.sizes.items())),
            assumed=tuple(self.sizes),
            parameters=sum(weight.parameters for weight in stored),
            weight_bytes=sum(weight.bytes for weight in stored),
            weights=weight_bits(stored),
            **{measure: self.quantity(*totals[measure]) for measure in MEASURES},
            intensity=_arithmetic_intensity(*(amount.at(self.sizes) for amount, _ in totals.values())),
            input_bytes=self.quantity(*self.bytes(inputs)),
            peak=PeakRow(
                Quantity(peak.bytes, peak.amount.text(self.sizes), len(peak.unknown)),
                peak.node.path if peak.node is not None else "",
                tuple(AliveTensor(each.value.name, each.bytes, each.amount.text(self.sizes)) for each in alive),
                *(len(peak.alive), tuple(peak.unknown)),
            ),
            memory=MemoryOverTime(tuple(numbers[node] for node, _ in peak.moments), tuple(n for _, n in peak.moments)),
            kv_cache=self.quantity(*cache) if cache is not None else None,
            by=by,
            rows=rows[:top],
            more=len(rows[top:]) if top is not None else 0,
            branches=tuple(
                BranchRow(each.node.path, each.name, each.is_counted, each.reason, *self.quantities(each.costs))
                for each in self.nodes.branches
            ),
            sequential=tuple(
                StepsRow(
                    *(each.node.path, each.node.op_type, self.quantity(each.steps) if each.steps is not None else None),
                    *(each.reason, self.quantity(*self.sum(each.costs, "macs"))),
                )
                for each in self.nodes.sequential
            ),
            unknown=tuple(self.unknown()),
            over=self.typical.over or "",
            curve=tuple(self.curve(totals, cache)),
        )

    # Numbers

    def sum(self, nodes: Sequence[NodeCost], measure: Measure) -> tuple[Amount, int]:
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

    def bytes(self, values: Sequence[Value]) -> tuple[Amount, int]:
        sizes = [size for size in map(self.memory.size, values) if isinstance(size, Expr) and is_known(size)]
        return sum_amounts(map(Amount.of, sizes)), len(values) - len(sizes)

    def cache(self) -> tuple[Amount, int] | None:
        """Return the bytes of the KV cache that goes into a step, or that comes out of a first one."""
        roles = self.model.roles
        entries = [entry.past if roles.pasts else entry.present for entry in roles.cache]
        return self.bytes([value for value in entries if value is not None]) if entries else None

    # Rows

    def rows(self, by: By) -> Iterator[CostRow]:
        """Yield a row for each group, the most multiply-accumulates first; groups that cost the same are one row."""
        groups: defaultdict[str, tuple[list[NodeCost], list[Weight]]] = defaultdict(lambda: ([], []))
        for cost in self.nodes.nodes:
            if not cost.node.is_op("Constant"):
                groups[group_of(cost.node, by)][0].append(cost)
        for weight, reader in self.weights:  # of the node that is the first to read it
            groups[group_of(reader, by) if reader is not None else OUTSIDE][1].append(weight)
        made: dict[str, CostRow] = {}
        for name, (nodes, weights) in groups.items():
            macs, operations, moved = self.quantities(nodes)
            intensity = _arithmetic_intensity(macs.value, operations.value, moved.value)
            counts = len(nodes), sum(weight.parameters for weight in weights), sum(weight.bytes for weight in weights)
            made[name] = CostRow(name, 1, *counts, *(macs, operations, moved), intensity=intensity)
        joined = list(made.values())
        if by in ("layer", "module"):  # the first reader of a constant that they share costs the same too
            joined = []
            costs_of = {name: (row.parameters, row.macs, row.operations, row.bytes_moved) for name, row in made.items()}
            for label, _, times in by_family(costs_of.items()):
                alike = [made[name] for name in (expand_label(label) if times > 1 else [label])]
                count, stored = max(row.nodes for row in alike), max(row.weight_bytes for row in alike)
                joined.append(replace(alike[0], name=label, times=times, nodes=count, weight_bytes=stored))

        def weight_of(row: CostRow) -> tuple[int, ...]:
            values = (quantity.value or 0 for quantity in (row.macs, row.operations, row.bytes_moved))
            return (*(row.times * value for value in values), row.times * row.weight_bytes)

        yield from sorted(joined, key=weight_of, reverse=True)

    def unknown(self) -> Iterator[UnknownCost]:
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


def group_of(node: Node, by: By) -> str:
    """Return the name of the group that a node belongs to: by layer, its module up to the first number in it."""
    if by in ("op", "node"):
        return node.operator if by == "op" else node.path
    module = module_of(node) or OUTSIDE
    return _layer_of(module) if by == "layer" else module


@lru_cache(maxsize=4096)
def _layer_of(module: str) -> str:
    match = NUMBERED.match(module)
    return match[0] if match is not None else module
