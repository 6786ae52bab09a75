"""Several models side by side: their main figures, how they fit together, and the report of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from msgspec import Struct, structs

from graphkit.analysis.architecture import DECODERS, Architecture
from graphkit.analysis.findings import Finding, Judged, worst_first
from graphkit.analysis.model_costs import Costs
from graphkit.analysis.model_fit import Fit, fit
from graphkit.analysis.model_interface import Interface
from graphkit.analysis.node_costs import Quantity
from graphkit.analysis.report import (
    VERDICT,
    Failure,
    Report,
    ReportOptions,
    make_sections,
    report_document,
    sections_of,
    shown_report,
)
from graphkit.analysis.shape_ops import ShapeOps
from graphkit.analysis.summary import Summary, shared_bytes
from graphkit.analysis.verdict import Facts, Verdict, facts_of, folder_steps, model_steps, verdict_lines
from graphkit.errors import ModelError, count_things
from graphkit.graph.names import distinct_stems, group_pairs, join_words, short_paths
from graphkit.model import Model, ModelLike, as_model
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Cell, Column, Heading, Prose, Table, size_text, table
from graphkit.render.result import Result

TITLED = 3  # models in the title of a page
ROW_SECTIONS = ("summary", "architecture", "interface", "shape-ops")


class ComparisonRow(Struct, frozen=True):
    """One model in a comparison."""

    model: str
    role: str
    nodes: int
    shape_ops: int
    on_shapes: int
    inputs: int
    outputs: int
    weight_bytes: int
    macs: Quantity | None = None  # multiply-accumulates at the sizes of its costs; None where these are not counted
    peak_bytes: Quantity | None = None  # the peak memory of its activations, likewise

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the cells of its row in the table of models; `number` is that of its graph on a page."""
        yield from (self.model, self.role, self.nodes, self.shape_ops, self.on_shapes, self.inputs, self.outputs)
        yield f"{self.weight_bytes / (1 << 20):,.1f}"
        if self.macs is not None and self.peak_bytes is not None:
            yield self.macs.cell(model=number)
            yield self.peak_bytes.as_peak().cell("B", number)


@dataclass(frozen=True)
class Comparison(Judged):
    """Several models side by side, how they fit together if one is a decoder, and the report of each.

    Attributes:
        commands: The next commands for all of them; the verdict on each has those for it alone.
        failures: The models that there is no report of.
        shared_bytes: The bytes of weights that several models read from one place of a file, each time but the first.
    """

    title: ClassVar[str] = "Comparison"
    rows: tuple[ComparisonRow, ...]
    fit: Fit | None
    reports: tuple[Report, ...]
    commands: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    shared_bytes: int = field(default=0, metadata={"in_json": False})

    def page_title(self) -> str:
        names = [*short_paths(report.model for report in self.reports).values()]
        more = [f"{len(names) - TITLED:,} more"] if len(names) > TITLED else []
        return f"{self.title}: {join_words([*names[:TITLED], *more])}" if names else self.title

    def found(self) -> tuple[Finding, ...]:
        together = self.fit.found() if self.fit is not None else ()
        return worst_first((*together, *(finding for report in self.reports for finding in report.found())))

    def findings(self) -> tuple[str, ...]:
        return tuple(str(finding) for finding in self.found() if finding.is_fault)

    @classmethod
    def schema(cls) -> str:
        return Report.schema()

    def document(self) -> dict[str, object]:
        return report_document(self.reports, self.found(), self)

    def graphs(self) -> tuple[Mapping[str, object], ...]:
        return tuple(graph for single in self.reports for graph in single.graphs())

    def blocks(self) -> Iterator[Block]:
        if any(VERDICT.name in report.sections for report in self.reports):
            yield self._verdict()
        yield from self._together()
        for report in self.reports:
            yield Heading(report.heading())
            for name, section in report.sections.items():
                if name != VERDICT.name:
                    yield Heading(section.heading(), is_inner=True)
                yield from section.blocks()

    def _together(self) -> Iterator[Block]:
        """Yield the models without a report, the table of the others, and how they fit together."""
        for failure in self.failures:
            yield Prose(f"Not reported on: {failure.problem}", "warning")
        costs = " | MACs:number | Peak:number" if any(row.macs is not None for row in self.rows) else ""
        yield table(
            "Model:code | Role:note | Nodes:number | Shape ops:number | On shapes:number | In:number | Out:number | "
            f"Weights MiB:number{costs}",
            [tuple(row.cells(number)) for number, row in enumerate(self.rows)],
        )
        if self.fit is not None:
            yield Heading(self.fit.heading())
            yield from self.fit.blocks()

    def csv_tables(self) -> Iterator[Table]:
        """Yield the table of models, then each table of their reports once, with a column for the model."""
        yield from (block for block in self._together() if isinstance(block, Table))
        joined: dict[tuple[str, str, tuple[Column, ...]], list[Sequence[Cell]]] = {}
        for report in self.reports:
            for name, section in report.sections.items():
                for single in section.csv_tables():
                    rows = joined.setdefault((name, single.title, tuple(single.columns)), [])
                    rows += [(report.model, *row) for row in single.rows]
        for (_, title, columns), rows in joined.items():
            yield Table((Column("Model", "code"), *columns), rows, title)

    def _verdict(self) -> Block:
        weights = size_text(sum(row.weight_bytes for row in self.rows) - self.shared_bytes, "B")
        names = short_paths(report.model for report in self.reports)
        places = {finding: names.get(finding.model, finding.where).removesuffix(".onnx") for finding in self.found()}
        frozen = {finding: f" ({finding.where})" for finding in places if finding.kind.startswith("frozen")}
        placed = [replace(finding, where=place + frozen.get(finding, "")) for finding, place in places.items()]
        distinct = {(finding.kind, finding.where): finding for finding in placed}
        roles = ", ".join(dict.fromkeys(row.role for row in self.rows))
        verdicts = (report.sections.get(VERDICT.name) for report in self.reports)
        alone = (command for verdict in verdicts if isinstance(verdict, Verdict) for command in verdict.commands)
        first = f"{count_things(len(self.rows), 'model(s)')}: {roles}; {weights} of weights."
        return verdict_lines(first, distinct.values(), self.commands or tuple(alone))


def compare(
    models: Sequence[ModelLike],
    options: ReportOptions = ReportOptions(),
    *,
    progress: Progress = lambda _: None,
    keep_going: bool = False,
) -> Comparison:
    """Return a comparison of the main figures of several models, with the report of each.

    Args:
        models: The models, or their paths.
        options: Which sections of each, and how.
        progress: Called with the name of each step before it starts.
        keep_going: Report on the others where one is broken; `failures` of the comparison says which are.

    Raises:
        ModelError: A model is broken, or an analysis needs a data file that is missing.

    Example:
        >>> models = graphkit.load("example:causal-attention"), graphkit.load("example:merged-decoder")
        >>> [row.inputs for row in graphkit.compare(models).rows]
        [1, 8]
    """
    needed = replace(options, also=(*options.also, *ROW_SECTIONS))
    parts: list[tuple[Model, dict[str, Result]]] = []
    failures: list[Failure] = []
    for source in models:
        label = source.label if isinstance(source, Model) else str(source)
        progress(f"reading {label}")
        try:
            model = as_model(source)
            parts.append((model, make_sections(model, needed, lambda step, of=label: progress(f"{of}: {step}"))))  # type: ignore[misc]
        except ModelError as error:
            if not keep_going:
                raise
            failures.append(Failure(label, str(error)))
    rows = tuple(_comparison_row(*part) for part in parts)
    together = fit([model for model, _ in parts]) if any(row.role in DECODERS for row in rows) else None
    facts: list[Facts] = []
    stems = distinct_stems(model.label for model, _ in parts)  # models of one file name get outputs of different names
    for model, made in parts if VERDICT in sections_of(options) else ():
        verdict = cast(Verdict, made[VERDICT.name])
        facts.append(structs.replace(facts_of(model, made, verdict.faults), stem=stems[model.label]))
        made[VERDICT.name] = replace(verdict, commands=model_steps(facts[-1]))
    reports = tuple(shown_report(model, options, made) for model, made in parts)
    comparison = Comparison(rows, together, reports, (), tuple(failures), shared_bytes([model for model, _ in parts]))
    if any(finding.kind == "fit" for finding in comparison.found()):
        return comparison
    folders = group_pairs((each.model.path and each.model.path.parent, each) for each in facts)
    return replace(comparison, commands=tuple(step for group in folders.values() for step in folder_steps(group)))


def _comparison_row(model: Model, made: Mapping[str, Result]) -> ComparisonRow:
    facts, role = cast(Summary, made["summary"]), cast(Architecture, made["architecture"]).role
    ports, shapes, counted = cast(Interface, made["interface"]), cast(ShapeOps, made["shape-ops"]), made.get("costs")
    return ComparisonRow(
        model=model.label,
        role=role,
        nodes=facts.nodes,
        shape_ops=sum(op.total for op in shapes.ops),
        on_shapes=shapes.on_shapes,
        inputs=ports.input_count,
        outputs=ports.output_count,
        weight_bytes=facts.total_weight_bytes,
        macs=counted.macs if isinstance(counted, Costs) else None,
        peak_bytes=counted.peak.bytes if isinstance(counted, Costs) else None,
    )
