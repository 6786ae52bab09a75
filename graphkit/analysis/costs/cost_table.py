"""The result of `costs`, and how it shows itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from graphkit.analysis.costs.cost_formulas import (
    alive_formula,
    curve_formula,
    formula,
    intensity_formula,
    on_page,
    share_formula,
)
from graphkit.analysis.costs.cost_rows import (
    BranchRow,
    CostRow,
    CurvePoint,
    MemoryOverTime,
    PeakRow,
    Quantity,
    StepsRow,
    UnknownCost,
)
from graphkit.analysis.costs.weights import WeightBits
from graphkit.graph.name_families import expanded
from graphkit.graph.names import counted, listed
from graphkit.options import By
from graphkit.render.document_blocks import PEAK, Bars, Block, Cell, Prose, columns, sized, table, treemap
from graphkit.render.result import Result, Sizes
from graphkit.shapes import symbol

__all__ = ["Costs"]

ALIVE = 5  # tensors at the peak in a text
WORDS = {"macs": "MACs", "operations": "operations", "bytes_moved": "bytes moved"}


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
        more = f" and {len(reasons) - 1:,} more" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}" if reasons else ""

    def blocks(self) -> Iterator[Block]:
        yield Prose(self._at(), "sizes")
        yield table("Cost:code | Here:number | In the input dims:note", list(self._totals()))
        yield from self._weights()
        yield from self._rows()
        yield from self._peak()
        yield from self._curve()
        yield from self._branches()
        yield from self._sequential()
        for unknown in self.unknown:
            measures = listed([WORDS[measure] for measure in unknown.measures])
            nodes = counted(unknown.nodes, "node(s)")
            yield Prose(f"Not counted: {measures} of {nodes} from {unknown.first} on: {unknown.reason}.")

    def _at(self) -> str:
        """Return the sizes, those that are assumed in one sentence."""
        if not self.sizes:
            return "All input dims are numbers."
        sizes = listed([f"{symbol(name)} {size:,}" for name, size in self.sizes])
        if not self.assumed:
            return f"At {sizes}."
        every = len(self.assumed) == len(self.sizes)
        which = "typical sizes" if every else f"of which typical: {', '.join(self.assumed)}"
        return f"At {sizes} ({which}; --dim sets others)."

    def _totals(self) -> Iterator[tuple[str, Cell, str]]:
        yield "parameters", sized(self.parameters), ""
        yield "weights", sized(self.weight_bytes, "B"), ""
        quantities: tuple[tuple[str, Quantity, Literal["", "B"]], ...] = (
            ("multiply-accumulates (MACs)", self.macs, ""),
            ("other operations", self.operations, ""),
            ("bytes moved", self.bytes_moved, "B"),
        )
        for name, quantity, unit in quantities:
            yield name, formula(quantity, unit), quantity.short
        if self.intensity is not None:
            parts = (self.macs, self.operations, self.bytes_moved)
            yield "operations for each byte", intensity_formula(self.intensity, *parts), ""
        yield "inputs", formula(self.input_bytes, "B"), self.input_bytes.short
        yield "peak memory of activations", formula(on_page(self.peak.bytes), "B"), self.peak.bytes.short
        if self.kv_cache is not None:
            yield "KV cache", formula(self.kv_cache, "B"), self.kv_cache.short

    def _weights(self) -> Iterator[Block]:
        if len(self.weights) > 1:
            yield table(
                "Stored as | Bits:number | Tensors:number | Parameters:number | Bytes:number",
                [(w.dtype, w.bits, w.tensors, w.parameters, w.bytes) for w in self.weights],
                title="Weights and constants",
            )

    def _rows(self) -> Iterator[Block]:
        name = {"layer": "Layer", "module": "Module", "op": "Operator", "node": "Node"}[self.by]
        shown = [row for row in self.rows if row.macs.value or row.bytes_moved.value or row.parameters]
        times = "Nodes" if self.by == "op" else "Times"
        each = "; of one that is there several times, those of each" if self.by in ("layer", "module") else ""
        yield table(
            f"{name}:code | {times}:number | Parameters:number | MACs:number | Of all:number | Moved:number",
            [self._cells(row) for row in shown],
            title=f"Costs by {name.lower()}{each}",
        )
        if self.more:
            yield Prose(f"... and {self.more:,} more: --top N shows N, and JSON has all.")
        yield self._picture(f"Multiply-accumulates by {name.lower()}")

    def _picture(self, title: str) -> Block:
        """Return the multiply-accumulates of all rows, as boxes in boxes where their names are paths."""
        if self.by == "op":
            return Bars(title, ("MACs",), [(row.name, (row.macs.value,)) for row in self.rows if row.macs.value])
        names = ((row.macs, expanded(row.name) if row.times > 1 else [row.name]) for row in self.rows)
        parts = ((name, macs.value or 0, macs.expression) for macs, each in names for name in each)
        return treemap(title, "MACs", parts)

    def _cells(self, row: CostRow) -> tuple[Cell, ...]:
        share = share_formula(row.macs, row.times, self.macs)
        times = row.nodes if self.by == "op" else row.times
        return row.name, times, sized(row.parameters), formula(row.macs), share, formula(row.bytes_moved, "B")

    def _peak(self) -> Iterator[Block]:
        if self.peak.alive:
            rows: list[tuple[Cell, ...]] = [(each.name, alive_formula(each)) for each in self.peak.alive[:ALIVE]]
            rest = self.peak.tensors - len(rows)
            if rest:
                shown = sum(each.bytes for each in self.peak.alive[:ALIVE])
                rows.append((f"{rest:,} more", (self.peak.bytes.value or 0) - shown))
            yield table("Tensor:code | Bytes:number", rows, title=f"In memory at the peak, when {self.peak.node} runs")
        moments = zip(self.memory.nodes, self.memory.bytes, strict=True)
        points = [(f"node {number:,}", size, number, False) for number, size in moments]
        title = "Activations in memory as nodes run, in their order"
        yield columns(title, "nodes in the order in which they run", points, "B", is_memory=True)
        for reason in self.peak.unknown:
            yield Prose(f"Not in the peak: a tensor of unknown size: {reason}.")

    def _curve(self) -> Iterator[Block]:
        if not self.curve:
            return
        has_cache = any(point.kv_cache_bytes is not None for point in self.curve)
        yield table(
            f"{self.over}:number | MACs:number | Operations:number | Bytes moved:number | Peak memory:number"
            + (" | KV cache:number" if has_cache else ""),
            [self._point(point, has_cache) for point in self.curve],
            title=f"Over {self.over}",
        )

    def _point(self, point: CurvePoint, has_cache: bool) -> tuple[Cell, ...]:
        over = self.over, point.size
        cells: list[Cell] = [
            curve_formula(point.macs, self.macs.expression, over),
            curve_formula(point.operations, self.operations.expression, over),
            curve_formula(point.bytes_moved, self.bytes_moved.expression, over, "B"),
            curve_formula(point.peak_bytes, f"{PEAK}0", over, "B"),
        ]
        if has_cache:
            cache = self.kv_cache.expression if self.kv_cache is not None else ""
            cells.append(curve_formula(point.kv_cache_bytes, cache, over, "B"))
        return (point.size, *cells)

    def _branches(self) -> Iterator[Block]:
        if self.branches:
            yield table(
                "If:code | Branch | Counted:text | MACs:number | Operations:number | Bytes moved:number | Why not:note",
                [
                    (
                        b.node,
                        b.branch,
                        b.is_counted,
                        formula(b.macs),
                        formula(b.operations),
                        formula(b.bytes_moved, "B"),
                        b.reason,
                    )
                    for b in self.branches
                ],
                title="Branches: one of each If runs",
            )

    def _sequential(self) -> Iterator[Block]:
        if self.sequential:
            yield table(
                "Node:code | Operator | Steps:number | Number of steps:note | MACs:number",
                [
                    (
                        s.node,
                        s.op,
                        "?" if s.steps is None else formula(s.steps),
                        s.reason or (s.steps.short if s.steps else ""),
                        formula(s.macs),
                    )
                    for s in self.sequential
                ],
                title="Sequential work: so many steps, one after the other",
            )
