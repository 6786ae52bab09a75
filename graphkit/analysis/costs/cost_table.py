"""The result of `costs`, the rows that it is made of, and how it shows itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from graphkit.analysis.costs.weights import WeightBits
from graphkit.graph.name_families import expand_label
from graphkit.graph.names import count_things, join_words
from graphkit.options import By
from graphkit.render.document_blocks import (
    PEAK,
    Bars,
    Block,
    Cell,
    Formula,
    Prose,
    columns,
    sized,
    table,
    table_of,
    treemap,
)
from graphkit.render.result import Result, Sizes
from graphkit.shapes import symbol

__all__ = [
    "AliveTensor", "BranchRow", "CostRow", "Costs", "CurvePoint", "MemoryOverTime", "PeakRow", "Quantity", "StepsRow",
    "UnknownCost",
]  # fmt: skip

SHOWN = 110  # characters of an expression, in a text
LONG = 2000  # characters of an expression that the shares of a whole do not repeat


@dataclass(frozen=True)
class Quantity:
    """A number that depends on the input dims.

    Attributes:
        value: At the sizes, without the nodes that are not counted; None if an input dim has no size.
        expression: In the input dims, the largest terms first; "" if it has too many terms to be read.
        uncounted: How many nodes are not in it.
    """

    value: int | None
    expression: str
    uncounted: int = 0

    def cell(self, unit: Literal["", "B"] = "", model: int | None = None) -> Formula:
        """Return it in short, `>=` before one without the nodes that are not counted, with its expression."""
        text = f"{'>= ' if self.uncounted else ''}{_number_text(self.value, unit)}"
        return Formula(text, self.value, self.expression, unit, model=model)

    def as_peak(self, *runs: str) -> Quantity:
        """Return peak memory by the runs that a page does, of which it finds the largest peak at other sizes too.

        Args:
            runs: The number of a model on the page, and after a point that of a run of it; "0" for its first model.
        """
        return replace(self, expression=f"{PEAK}{','.join(runs or ('0',))}")

    def share_of(self, whole: Quantity, times: int) -> Formula | str:
        """Return the share of so many equal parts in a whole, "" in nothing."""
        if not whole.value:
            return ""
        value = times * (self.value or 0)
        text = f"{100 * value / whole.value:.1f} %"
        if not self.expression or not 0 < len(whole.expression) <= LONG:
            return Formula(text, value, "", "%")
        return Formula(text, value, f"{times}*({self.expression})", "%", whole.expression)

    @property
    def short(self) -> str:
        """The first terms of the expression, "" for a number."""
        if self.expression == str(self.value):
            return ""
        terms = _split_sum(self.expression)
        text = ""
        for number, term in enumerate(terms):
            if text and len(text) + len(term) > SHOWN:
                return f"{text} and {count_things(len(terms) - number, 'more term(s)')}"
            text += term
        return text


def _number_text(number: int | None, unit: Literal["", "B"]) -> str:
    return "?" if number is None else sized(number, unit)


def _split_sum(text: str) -> list[str]:
    """Return the terms of a sum, each but the first with its sign."""
    starts, depth = [0], 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth and text[place : place + 3] in (" + ", " - "):
            starts.append(place)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


@dataclass(frozen=True)
class CostRow:
    """The costs of a group of nodes; of several groups that cost the same, those of each.

    Attributes:
        name: Of the group, or a label for all of them: `model/layers.{0-17}`.
        times: How many groups it stands for.
        nodes: Nodes that run; of several groups, the most that one of them has.
        parameters: Of the weights that its nodes are the first to read.
        weight_bytes: Of the same; of several groups, the most that one of them has: the first reads what they share.
        macs, operations, bytes_moved: Multiply-accumulates, other operations, and bytes read and written.
        intensity: Operations for each byte moved, two for a multiply-accumulate; None if one is not known.
    """

    name: str
    times: int
    nodes: int
    parameters: int
    weight_bytes: int
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity
    intensity: float | None


@dataclass(frozen=True)
class AliveTensor:
    """A tensor that is in memory at the peak."""

    name: str
    bytes: int
    expression: str


@dataclass(frozen=True)
class PeakRow:
    """The peak memory of activations.

    Attributes:
        bytes: At the sizes; the expression is that of the tensors that are there then.
        node: The node that runs at the peak.
        alive: The largest tensors that are there.
        tensors: How many there are.
        unknown: Why some tensors have no size.
    """

    bytes: Quantity
    node: str
    alive: tuple[AliveTensor, ...]
    tensors: int
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class MemoryOverTime:
    """The activations that are in memory as nodes run.

    Attributes:
        nodes: The number of each node that runs, in order: its place among all nodes of the file, those of the main
            graph first, then those of bodies and functions. A node of a loop comes once, one of a function at
            each call.
        bytes: The bytes that are there when it runs.
    """

    nodes: tuple[int, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class BranchRow:
    """A branch of an If.

    Attributes:
        is_counted: Whether its costs are those of the model at the sizes.
        reason: Why it cannot run, "" if it can.
    """

    node: str
    branch: str
    is_counted: bool
    reason: str
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity


@dataclass(frozen=True)
class StepsRow:
    """Work that runs one step after the other.

    Attributes:
        steps: How many steps; None where that is not known.
        reason: Why it is not known, "" if it is.
        macs: Of all steps.
    """

    node: str
    op: str
    steps: Quantity | None
    reason: str
    macs: Quantity

    @property
    def step_count(self) -> Quantity | str:
        """How many steps, "?" where that is not known."""
        return self.steps or "?"

    @property
    def why(self) -> str:
        """Why that is not known, else as an expression."""
        return self.reason or (self.steps.short if self.steps else "")


@dataclass(frozen=True)
class UnknownCost:
    """Costs that are not known.

    Attributes:
        measures: `macs`, `operations`, `bytes_moved`.
        first: The first of the nodes.
    """

    reason: str
    measures: tuple[str, ...]
    nodes: int
    first: str


@dataclass(frozen=True)
class CurvePoint:
    """The costs at one size of a symbol; None for a cost that has no number there."""

    size: int
    macs: int | None
    operations: int | None
    bytes_moved: int | None
    peak_bytes: int
    kv_cache_bytes: int | None


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
        if len(self.weights) > 1:
            headings = "Stored as=dtype | Bits:number | Tensors:number | Parameters:number | Bytes:number"
            yield table_of(headings, self.weights, "Weights and constants")
        yield from self._rows()
        yield from self._peak()
        if self.curve:
            yield self._curve()
        if self.branches:
            rows = [
                (b.node, b.branch, b.is_counted, b.macs.cell(), b.operations.cell(), b.bytes_moved.cell("B"), b.reason)
                for b in self.branches
            ]
            headings = "If:code | Branch | Counted:text | MACs:number | Operations:number | Bytes moved:number"
            yield table(f"{headings} | Why not:note", rows, "Branches: one of each If runs")
        if self.sequential:
            headings = "Node:code | Operator=op | Steps:number=step_count | Number of steps:note=why | MACs:number"
            yield table_of(headings, self.sequential, "Sequential work: so many steps, one after the other")
        for unknown in self.unknown:
            measures = join_words([WORDS[measure] for measure in unknown.measures])
            nodes = count_things(unknown.nodes, "node(s)")
            yield Prose(f"Not counted: {measures} of {nodes} from {unknown.first} on: {unknown.reason}.")

    def _at(self) -> str:
        """Return the sizes, those that are assumed in one sentence."""
        if not self.sizes:
            return "All input dims are numbers."
        sizes = join_words([f"{symbol(name)} {size:,}" for name, size in self.sizes])
        if not self.assumed:
            return f"At {sizes}."
        every = len(self.assumed) == len(self.sizes)
        which = "typical sizes" if every else f"of which typical: {', '.join(self.assumed)}"
        return f"At {sizes} ({which}; --dim sets others)."

    def _totals(self) -> Iterator[tuple[Cell, ...]]:
        yield "parameters", sized(self.parameters), ""
        yield "weights", sized(self.weight_bytes, "B"), ""
        yield "multiply-accumulates (MACs)", self.macs.cell(), self.macs.short
        yield "other operations", self.operations.cell(), self.operations.short
        yield "bytes moved", self.bytes_moved.cell("B"), self.bytes_moved.short
        if self.intensity is not None:
            yield "operations for each byte", self._intensity(self.intensity), ""
        yield "inputs", self.input_bytes.cell("B"), self.input_bytes.short
        yield "peak memory of activations", self.peak.bytes.as_peak().cell("B"), self.peak.bytes.short
        if self.kv_cache is not None:
            yield "KV cache", self.kv_cache.cell("B"), self.kv_cache.short

    def _intensity(self, intensity: float) -> Formula:
        macs, operations, moved = self.macs, self.operations, self.bytes_moved
        if not (macs.expression and operations.expression and moved.expression):
            return Formula(f"{intensity:,.1f}", None, "", "/")
        value = 2 * (macs.value or 0) + (operations.value or 0)
        expression = f"2*({macs.expression}) + {operations.expression}"
        return Formula(f"{intensity:,.1f}", value, expression, "/", moved.expression)

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
        names = ((row.macs, expand_label(row.name) if row.times > 1 else [row.name]) for row in self.rows)
        parts = ((name, macs.value or 0, macs.expression) for macs, each in names for name in each)
        return treemap(title, "MACs", parts)

    def _cells(self, row: CostRow) -> tuple[Cell, ...]:
        times = row.nodes if self.by == "op" else row.times
        share, moved = row.macs.share_of(self.macs, row.times), row.bytes_moved.cell("B")
        return row.name, times, sized(row.parameters), row.macs.cell(), share, moved

    def _peak(self) -> Iterator[Block]:
        if self.peak.alive:
            largest = self.peak.alive[:ALIVE]
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
        measures: list[tuple[str, str, Literal["", "B"], Callable[[CurvePoint], int | None]]] = [
            ("MACs", self.macs.expression, "", lambda point: point.macs),
            ("Operations", self.operations.expression, "", lambda point: point.operations),
            ("Bytes moved", self.bytes_moved.expression, "B", lambda point: point.bytes_moved),
            ("Peak memory", f"{PEAK}0", "B", lambda point: point.peak_bytes),
        ]
        if any(point.kv_cache_bytes is not None for point in self.curve):
            cache = self.kv_cache.expression if self.kv_cache is not None else ""
            measures.append(("KV cache", cache, "B", lambda point: point.kv_cache_bytes))
        rows: list[list[Cell]] = [[point.size] for point in self.curve]
        for _, expression, unit, value_of in measures:
            for row, point in zip(rows, self.curve, strict=True):
                value, over = value_of(point), (self.over, point.size)
                text = _number_text(value, unit)
                row.append(text if value is None else Formula(text, value, expression, unit, over=over))
        headings = [self.over, *(name for name, *_ in measures)]
        return table(" | ".join(f"{name}:number" for name in headings), rows, title=f"Over {self.over}")
