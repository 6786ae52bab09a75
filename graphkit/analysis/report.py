"""The report: selected analyses of one model, or of several models after a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from graphkit.analysis.architecture import architecture
from graphkit.analysis.costs.cost_table import Costs, Quantity
from graphkit.analysis.findings import Finding, Judged, worst_first
from graphkit.analysis.model_interface import interface
from graphkit.analysis.next_commands import Facts, facts_of, folder_steps, model_steps
from graphkit.analysis.pipeline_links import DECODERS, Fit, fit
from graphkit.analysis.report_sections import VERDICT, Material, ReportOptions, judged_sections, sections_of
from graphkit.analysis.shape_ops import shape_ops
from graphkit.analysis.summary import summary
from graphkit.analysis.verdict import Verdict, verdict_lines
from graphkit.errors import ModelError
from graphkit.graph.names import count_things, distinct_stems, short_paths
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Cell, Column, Heading, Prose, Table, sized, table
from graphkit.render.result import Result

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Comparison", "ComparisonRow", "Failure", "Report", "compare", "report"]


@dataclass(frozen=True)
class Report(Judged):
    """Analyses of one model, by section name, in the order of the report.

    Attributes:
        source: The model, whose graph the page can be searched for.
    """

    title: ClassVar[str] = "Report"
    model: str
    sections: dict[str, Result]
    source: Model | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})

    def heading(self) -> str:
        return self.model

    def found(self) -> tuple[Finding, ...]:
        sections = [section for section in self.sections.values() if isinstance(section, Judged)]
        return worst_first(finding.of(self.model) for section in sections for finding in section.found())

    def findings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.text for finding in self.found() if finding.is_fault))

    def to_dict(self) -> dict[str, object]:
        sections = {name: section.to_dict() for name, section in self.sections.items()}
        return {"model": self.model, "sections": sections}

    @property
    def reports(self) -> tuple[Report, ...]:
        """Itself alone, as a comparison has its reports."""
        return (self,)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """None: a comparison has the models without a report."""
        return ()

    def document(self) -> dict[str, object]:
        return _report_document((self,), self.found())

    def graphs(self) -> tuple[Mapping[str, object], ...]:
        from graphkit.analysis.page_graph import page_graph
        from graphkit.shapes import declarations, infer

        costs = self.sections.get("costs")
        shapes = infer(declarations(self.source).model) if self.source is not None else None
        return () if shapes is None else (page_graph(shapes, costs if isinstance(costs, Costs) else None),)

    def blocks(self) -> Iterator[Block]:
        for name, section in self.sections.items():
            if name != VERDICT.name:
                yield Heading(section.heading())
            yield from section.blocks()


@dataclass(frozen=True)
class ComparisonRow:
    """One model in a comparison.

    Attributes:
        macs: Multiply-accumulates at the sizes of its costs; None where these are not counted.
        peak_bytes: The peak memory of its activations, likewise.
    """

    model: str
    role: str
    nodes: int
    shape_ops: int
    on_shapes: int
    inputs: int
    outputs: int
    weight_bytes: int
    macs: Quantity | None = None
    peak_bytes: Quantity | None = None

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the cells of its row in the table of models; `number` is that of its graph on a page."""
        yield from (self.model, self.role, self.nodes, self.shape_ops, self.on_shapes, self.inputs, self.outputs)
        yield f"{self.weight_bytes / (1 << 20):,.1f}"
        if self.macs is not None and self.peak_bytes is not None:
            yield self.macs.cell(model=number)
            yield self.peak_bytes.as_peak().cell("B", number)


@dataclass(frozen=True)
class Failure:
    """A model that could not be reported on.

    Attributes:
        problem: The error, which names the file.
    """

    model: str
    problem: str


@dataclass(frozen=True)
class Comparison(Judged):
    """Several models side by side, how they fit together if one is a decoder, and the report of each.

    Attributes:
        commands: The next commands for all of them; the verdict on each has those for it alone.
        failures: The models that there is no report of.
    """

    title: ClassVar[str] = "Comparison"
    rows: tuple[ComparisonRow, ...]
    fit: Fit | None
    reports: tuple[Report, ...]
    commands: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    def found(self) -> tuple[Finding, ...]:
        together = self.fit.found() if self.fit is not None else ()
        return worst_first((*together, *(finding for report in self.reports for finding in report.found())))

    def findings(self) -> tuple[str, ...]:
        return tuple(str(finding) for finding in self.found() if finding.is_fault)

    @classmethod
    def schema(cls) -> str:
        return Report.schema()

    def document(self) -> dict[str, object]:
        return _report_document(self.reports, self.found(), self)

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
        weights = sized(sum(row.weight_bytes for row in self.rows), "B")
        names = short_paths(report.model for report in self.reports)
        places = {finding: names.get(finding.model, finding.where).removesuffix(".onnx") for finding in self.found()}
        distinct = dict.fromkeys(Finding(finding.kind, place, "") for finding, place in places.items())
        commands = self.commands or tuple(command for finding in self.reports for command in _verdict_commands(finding))
        return verdict_lines(f"{_joint_name(self.rows)}; {weights} of weights.", distinct, commands)


def _report_document(
    reports: Sequence[Report], findings: Sequence[Finding], together: Comparison | None = None
) -> dict[str, object]:
    """Return the JSON of a report, which is laid out alike for one model and for several."""
    alone: dict[str, object] = {"rows": [], "fit": None, "commands": [], "failures": []}
    plain = alone if together is None else Result.to_dict(together)
    return {
        "findings": [asdict(finding) for finding in findings],
        "comparison": plain["rows"],
        "fit": plain["fit"],
        "commands": plain["commands"],
        "failures": plain["failures"],
        "models": [report.to_dict() for report in reports],
    }


def _joint_name(rows: Sequence[ComparisonRow]) -> str:
    """Return the name of several models together."""
    roles = dict.fromkeys(row.role for row in rows)
    return f"{count_things(len(rows), 'model(s)')}: {', '.join(roles)}"


def _verdict_commands(made: Report) -> tuple[str, ...]:
    verdict = made.sections.get(VERDICT.name)
    return verdict.commands if isinstance(verdict, Verdict) else ()


def report(
    model: ModelLike,
    options: ReportOptions = ReportOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Analyse one model: `print(graphkit.report(model).to_text())`.

    Args:
        model: The model, or its path.
        options: Which sections, and how.
        progress: Called with the name of each step before it starts.

    Returns:
        The sections, in the order of the report.

    Raises:
        ModelError: An analysis finds the model broken, or needs a data file that is missing.

    Example:
        >>> list(graphkit.report(graphkit.load("example:causal-attention")).sections)[:3]
        ['verdict', 'summary', 'architecture']
    """
    model = as_model(model)
    return _shown_report(model, options, _make_sections(model, options, progress))


def _shown_report(model: Model, options: ReportOptions, made: Mapping[str, Result]) -> Report:
    return Report(model.label, {section.name: made[section.name] for section in sections_of(options)}, model)


def _make_sections(model: Model, options: ReportOptions, progress: Callable[[str], None]) -> dict[str, Result]:
    """Return the sections that options ask for, and those that the verdict rests on where it is one of them."""
    sections = sections_of(options)
    judged = judged_sections(options) if VERDICT in sections else ()
    pending = _start_optimizer(model) if options.optimize and any(section.compares for section in sections) else None
    material = Material(model, options)
    made: dict[str, Result] = {}
    for section in dict.fromkeys((*sections, *judged)):
        if section is VERDICT:
            continue
        if pending is not None and material.optimized is None and section.compares:
            progress("onnxoptimizer")
            material = replace(material, optimized=pending.result())
        if material.inferred is None and section.needs_shapes:
            progress("shapes")
            material = _with_shapes(material)
        progress(section.name)
        made[section.name] = section.make(material)
    if VERDICT in sections:
        rests_on = {section.name: made[section.name] for section in judged}
        made[VERDICT.name] = VERDICT.make(replace(material, model=model, judged=rests_on))
    return made


def _with_shapes(material: Material) -> Material:
    from graphkit.shapes import declarations, infer  # which take as long to import as most sections take

    shapes = infer(declarations(material.model).model)
    return replace(material, model=shapes.model, inferred=shapes)


def _start_optimizer(model: Model) -> Future[Model]:
    """Start onnxoptimizer in a process of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from graphkit.runtime.external_tools import optimized

    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(optimized, model)
    finally:
        executor.shutdown(wait=False)


def compare(
    models: Sequence[ModelLike],
    options: ReportOptions = ReportOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
    keep_going: bool = False,
) -> Comparison:
    """Analyse several models, and compare their main figures.

    Args:
        models: The models, or their paths.
        options: Which sections of each, and how.
        progress: Called with the name of each step before it starts.
        keep_going: Report on the others where one is broken; `failures` of the comparison says which are.

    Returns:
        The comparison, with the report of each model.

    Raises:
        ModelError: A model is broken, or an analysis needs a data file that is missing.

    Example:
        >>> models = graphkit.load("example:causal-attention"), graphkit.load("example:merged-decoder")
        >>> [row.inputs for row in graphkit.compare(models).rows]
        [1, 8]
    """
    parts: list[_Part] = []
    failures: list[Failure] = []
    for model in models:
        try:
            parts.append(_make_part(model, options, progress))
        except ModelError as error:
            if not keep_going:
                raise
            failures.append(Failure(model.label if isinstance(model, Model) else str(model), str(error)))
    together = fit([part.model for part in parts]) if any(part.row.role in DECODERS for part in parts) else None
    facts = _command_facts(parts) if VERDICT in sections_of(options) else ()
    for part, known in zip(parts, facts, strict=False):
        part.made[VERDICT.name] = replace(_verdict_of_part(part), commands=model_steps(known))
    reports = tuple(_shown_report(part.model, options, part.made) for part in parts)
    comparison = Comparison(tuple(part.row for part in parts), together, reports, (), tuple(failures))
    if any(finding.kind == "fit" for finding in comparison.found()):
        return comparison
    return replace(comparison, commands=folder_steps(facts))


def _command_facts(parts: Sequence[_Part]) -> Sequence[Facts]:
    """Return the facts that commands depend on; models of one file name get outputs of different names."""
    stems = distinct_stems(part.model.label for part in parts)
    facts = [facts_of(part.model, part.made, _verdict_of_part(part).faults) for part in parts]
    return [replace(known, stem=stems[part.model.label]) for known, part in zip(facts, parts, strict=True)]


def _verdict_of_part(part: _Part) -> Verdict:
    verdict = part.made[VERDICT.name]
    assert isinstance(verdict, Verdict)
    return verdict


@dataclass(frozen=True)
class _Part:
    """The part of a comparison that is about one model."""

    model: Model
    row: ComparisonRow
    made: dict[str, Result]


def _make_part(source: ModelLike, options: ReportOptions, progress: Callable[[str], None]) -> _Part:
    progress(f"reading {source.label if isinstance(source, Model) else source}")
    model = as_model(source)
    facts, shapes, ports = summary(model), shape_ops(model), interface(model)
    ops = sum(op.total for op in shapes.ops), shapes.on_shapes
    role, puts = architecture(model).role, (ports.input_count, ports.output_count)
    row = ComparisonRow(model.label, role, facts.nodes, *ops, *puts, weight_bytes=facts.total_weight_bytes)
    made = _make_sections(model, options, lambda step: progress(f"{model.label}: {step}"))
    if isinstance(costs := made.get("costs"), Costs):
        row = replace(row, macs=costs.macs, peak_bytes=costs.peak.bytes)
    return _Part(model, row, made)
