"""Costs before and after a rewrite: size, nodes, multiply-accumulates, peak memory, at the same sizes of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from graphkit.analysis.costs.amounts import Amount, total
from graphkit.analysis.costs.cost_formulas import fixed, formula, on_page, ratio_formula
from graphkit.analysis.costs.cost_rows import Quantity
from graphkit.analysis.costs.node_costs import node_costs
from graphkit.analysis.costs.peak_memory import PeakMemory
from graphkit.analysis.costs.typical_sizes import TypicalSizes
from graphkit.analysis.costs.weights import stored_bytes
from graphkit.errors import GraphkitError
from graphkit.graph.names import counted, listed
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Cell, Formula, Heading, Prose, sized, table
from graphkit.render.result import Sizes
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, infer
from graphkit.shapes.constraints.symbol_sizes import Role, plain_symbol, symbol_roles
from graphkit.shapes.graph_inputs import Inputs, input_dims

__all__ = [
    "BeforeAndAfter",
    "CostChange",
    "CostFigures",
    "Latency",
    "SizedModel",
    "cost_change",
    "cost_change_blocks",
    "frozen_dims",
    "models_of",
]


@dataclass(frozen=True)
class CostFigures:
    """The costs of a model, or of several that run one after the other.

    Attributes:
        bytes: Of the graph and its weights, wherever these are.
        nodes: At every depth.
        macs: Multiply-accumulates.
        peak_bytes: The peak memory of activations; of several models, the largest.
    """

    bytes: int
    nodes: int
    macs: Quantity
    peak_bytes: Quantity


@dataclass(frozen=True)
class Latency:
    """How long two models take in onnxruntime, run in turns with equal options.

    Attributes:
        before_ms, after_ms: The median of each, in milliseconds.
        ratio: The median of after over before, round by round.
        low, high: The least and the largest of these ratios.
        rounds: How many rounds there were.
        threads: Threads of each session.
    """

    before_ms: float
    after_ms: float
    ratio: float
    low: float
    high: float
    rounds: int
    threads: int


@dataclass(frozen=True)
class CostChange:
    """Costs before and after.

    Attributes:
        what: What they are the costs of, such as a file; "" for the only one.
        sizes: The sizes of the original's dims: those that are given, and typical ones.
        before, after: The costs; None where they cannot be counted.
        unknown: Why not, "" if they can.
        latency: How long both take; None where that was not measured.
        untimed: Why it could not be measured, "" if it was, or nobody asked.
        models: What they are the costs of, for a page that shows both; None if they are not at hand.
    """

    what: str
    sizes: Sizes
    before: CostFigures | None
    after: CostFigures | None
    unknown: str = ""
    latency: Latency | None = None
    untimed: str = ""
    models: BeforeAndAfter | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})


def models_of(changes: Sequence[CostChange]) -> list[Model]:
    """Return the models of changes, each once, in the order of their page."""
    models = (model for change in changes if change.models for model in (*change.models.before, change.models.after))
    return list({id(model): model for model in models}.values())


@dataclass(frozen=True)
class SizedModel:
    """A model with the sizes of its dims.

    Attributes:
        sizes: Of the symbols that stay open.
        known: Of all symbols in the dims of its inputs.
    """

    shapes: Shapes
    sizes: Mapping[str, int]
    known: Mapping[str, int]

    @classmethod
    def of(
        cls,
        model: Model,
        spec: DimSpec,
        wish: Mapping[Role, int],
        given: Mapping[str, int] = {},
        values: Mapping[str, np.ndarray] = {},
    ) -> SizedModel:
        """Choose the sizes of a model: those of the spec, given ones, and those of a wish."""
        shapes = infer(model, spec, values=values)
        typical = TypicalSizes(shapes.model, spec, shapes, wish).sizes
        sizes = {name: given.get(name, size) for name, size in typical.items()}
        return cls(shapes, sizes, {**Inputs(model, spec).numbers, **sizes})

    def figures(self) -> CostFigures:
        """Count its costs."""
        model = self.shapes.model
        nodes = node_costs(self.shapes, self.sizes).nodes
        known = [node.costs["macs"] for node in nodes if "macs" in node.costs]
        macs, peak = total(known), PeakMemory(self.shapes).at(self.sizes)
        return CostFigures(
            bytes=stored_bytes(model),
            nodes=sum(1 for _ in all_nodes(model.scopes)),
            macs=Quantity(macs.at(self.sizes), macs.text(self.sizes), len(nodes) - len(known)),
            peak_bytes=Quantity(peak.bytes, peak.amount.text(self.sizes), len(peak.unknown)),
        )


@dataclass(frozen=True)
class BeforeAndAfter:
    """Models before and after a rewrite, with what says the sizes that both are looked at.

    A dim of the result is as large as what is called the same in the original, else as that of the same input.

    Attributes:
        before: The original, or several models that run one after the other.
        after: The result.
        spec: Sizes of the original's dims.
        wish: Sizes by role, where others than the typical ones are of interest.
        sizes: Sizes of symbols of the result.
        values: Values of inputs of the result that decide sizes.
    """

    before: Sequence[Model]
    after: Model
    spec: DimSpec = AS_DECLARED
    wish: Mapping[Role, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def sized(self) -> tuple[list[SizedModel], SizedModel]:
        """Choose the sizes of originals and of their result.

        Raises:
            GraphkitError: There are none, or a model is broken.
        """
        originals: list[SizedModel] = []
        known: dict[str, int] = {}
        for model in self.before:
            spec = self.spec | frozen_dims(model, self.after, self.wish)
            originals.append(SizedModel.of(model, spec, self.wish, known))
            known |= originals[-1].known
        inputs = (_sizes_of_inputs(self.after, each) for each in reversed(originals))
        given = {name: size for sizes in inputs for name, size in sizes.items()} | known
        return originals, SizedModel.of(self.after, AS_DECLARED, self.wish, {**given, **self.sizes}, self.values)


def cost_change(models: BeforeAndAfter, what: str = "") -> CostChange:
    """Count costs before and after a rewrite, at the same sizes; `what` says what to call them."""
    try:
        originals, result = models.sized()
        known = {name: size for each in originals for name, size in each.known.items()}
        figures = _joined([each.figures() for each in originals]), result.figures()
        return CostChange(what, Sizes(known.items()), *figures, models=models)
    except GraphkitError as error:
        return CostChange(what, Sizes(), None, None, unknown=str(error), models=models)


def frozen_dims(before: Model, after: Model, wish: Mapping[Role, int] = {}) -> DimSpec:
    """Return the sizes of symbols that are numbers in the result, those aside that a wish says."""
    wished = {name for name, role in symbol_roles(before).items() if role in wish} if wish else set[str]()
    dims = {value.name: input_dims(value) for value in after.graph.inputs}
    pairs = (
        pair
        for value in before.graph.inputs
        for pair in _axes(input_dims(value), dims.get(value.name))
        if pair[1].constant is not None
    )
    sizes = {name: now.constant for was, now in pairs if (name := plain_symbol(was)) and now.constant}
    return DimSpec.of({name: size for name, size in sizes.items() if name not in wished})


def _sizes_of_inputs(after: Model, before: SizedModel) -> dict[str, int]:
    """Return the sizes of symbols of the result that are dims of inputs, which the original has as values.

    A cache may be laid out in another way, so that its symbols have the sizes that they have by name.
    """
    sizes = {}
    for value in after.graph.inputs:
        known = before.shapes.model.graph.values.get(value.name)
        is_cache = known in before.shapes.model.roles.pasts
        dims = before.shapes.dims(known) if known is not None and not is_cache else None
        for now, was in _axes(input_dims(value), dims):
            size = Amount.of(was).at(before.sizes)
            if (name := plain_symbol(now)) and size is not None:
                sizes[name] = size
    return sizes


def _axes(left: Sequence[Expr] | None, right: Sequence[Expr] | None) -> Iterator[tuple[Expr, Expr]]:
    """Yield the dims of two tensors of one rank, axis by axis."""
    if left is not None and right is not None and len(left) == len(right):
        yield from zip(left, right, strict=True)


def _joined(parts: Sequence[CostFigures]) -> CostFigures:
    """Return the costs of models that run one after the other."""
    macs = [part.macs for part in parts]
    return CostFigures(
        bytes=sum(part.bytes for part in parts),
        nodes=sum(part.nodes for part in parts),
        macs=Quantity(
            sum(each.value or 0 for each in macs),
            " + ".join(each.expression for each in macs) if all(each.expression for each in macs) else "",
            sum(each.uncounted for each in macs),
        ),
        peak_bytes=max((part.peak_bytes for part in parts), key=lambda peak: peak.value or 0),
    )


def cost_change_blocks(
    changes: Sequence[CostChange], heading: str = "Costs before and after", sides: tuple[str, str] = ("Before", "After")
) -> Iterator[Block]:
    """Yield the end of the report of a rewrite: costs before and after."""
    if not changes:
        return
    yield Heading(heading)
    numbers = {id(model): number for number, model in enumerate(models_of(changes))}
    for change in changes:
        which = f" of {change.what}" if change.what else ""
        if change.unknown:
            yield Prose(f"Costs{which} are not counted: {change.unknown}.")
            continue
        at = f" at {listed([f'{name} {size:,}' for name, size in change.sizes])}" if change.sizes else ""
        yield table(
            f"Cost | {sides[0]}:number | {sides[1]}:number | Ratio:number",
            [*_rows(change, numbers)],
            title=f"Costs{which}{at}",
        )
        if (time := change.latency) is not None:
            yield Prose(
                f"Latency is the median of {time.rounds} rounds in onnxruntime, run in turns on "
                f"{counted(time.threads, 'thread(s)')} with default optimizations; its ratio is that of the rounds."
            )
        if change.untimed:
            yield Prose(f"Latency{which} was not measured: {change.untimed}.")


def _rows(change: CostChange, numbers: Mapping[int, int]) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of a table; `numbers` are those of the models on a page, by the identity of each."""
    before, after, time = change.before, change.after, change.latency
    if before is None or after is None:
        return
    originals = change.models.before if change.models else ()
    first = numbers[id(originals[0])] if originals else None
    yield "file and weights", sized(before.bytes, "B"), sized(after.bytes, "B"), _ratio(before.bytes, after.bytes)
    yield "nodes", before.nodes, after.nodes, _ratio(before.nodes, after.nodes)
    peaks = before.peak_bytes, after.peak_bytes
    if change.models is not None and first is not None and len(originals) == 1:
        peaks = on_page(peaks[0], first), on_page(peaks[1], numbers[id(change.models.after)])
    else:  # which of several has the largest is known at the sizes alone
        peaks = replace(peaks[0], expression=""), replace(peaks[1], expression="")
    quantities: tuple[tuple[str, Quantity, Quantity, Literal["", "B"]], ...] = (
        ("multiply-accumulates (MACs)", before.macs, after.macs, ""),
        ("peak memory of activations", *peaks, "B"),
    )
    for name, was, now, unit in quantities:
        cells = formula(was, unit), formula(now, unit), ratio_formula(now, was)
        yield name, *(replace(cell, model=first) if isinstance(cell, Formula) else cell for cell in cells)
    if time is not None:
        ratio = f"{time.ratio:.2f} ({time.low:.2f} to {time.high:.2f})"
        yield "latency", fixed(f"{time.before_ms:.3g} ms"), fixed(f"{time.after_ms:.3g} ms"), fixed(ratio)


def _ratio(before: int | None, after: int | None) -> str:
    return f"{after / before:.2f}" if before and after is not None else ""
