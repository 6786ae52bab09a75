"""The report: selected analyses of one model, or of several models after a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from graphkit.analysis.architecture import architecture
from graphkit.analysis.fit import DECODERS, Fit, fit
from graphkit.analysis.interface import interface
from graphkit.analysis.optimize import optimized
from graphkit.analysis.sections import Material, ReportOptions, sections_of
from graphkit.analysis.shape_ops import shape_ops
from graphkit.analysis.summary import summary
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.blocks import Block, Heading, Prose, table
from graphkit.render.result import Result

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Comparison", "ComparisonRow", "Report", "compare", "report"]


@dataclass(frozen=True)
class Report(Result):
    """Analyses of one model, by section name, in the order of the report."""

    title: ClassVar[str] = "Report"
    model: str
    sections: dict[str, Result]

    def heading(self) -> str:
        return self.model

    def findings(self) -> tuple[str, ...]:
        found = (finding for section in self.sections.values() for finding in section.findings())
        return tuple(dict.fromkeys(found))

    def to_dict(self) -> dict[str, object]:
        sections = {name: section.to_dict() for name, section in self.sections.items()}
        return {"model": self.model, "findings": list(self.findings()), "sections": sections}

    def blocks(self) -> Iterator[Block]:
        for section in self.sections.values():
            yield Heading(section.heading())
            yield from section.blocks()


@dataclass(frozen=True)
class ComparisonRow:
    """One model in a comparison."""

    model: str
    role: str
    nodes: int
    shape_ops: int
    on_shapes: int
    inputs: int
    outputs: int
    weight_bytes: int


@dataclass(frozen=True)
class Comparison(Result):
    """Several models side by side, how they fit together if one is a decoder, and the report of each."""

    title: ClassVar[str] = "Comparison"
    rows: tuple[ComparisonRow, ...]
    fit: Fit | None
    reports: tuple[Report, ...]

    def findings(self) -> tuple[str, ...]:
        found = (f"{report.model}: {finding}" for report in self.reports for finding in report.findings())
        return (*(self.fit.findings() if self.fit is not None else ()), *found)

    def to_dict(self) -> dict[str, object]:
        plain = super().to_dict()
        return {
            "comparison": plain["rows"],
            "fit": plain["fit"],
            "reports": [report.to_dict() for report in self.reports],
        }

    def blocks(self) -> Iterator[Block]:
        yield table(
            "Model:code | Role:note | Nodes:number | Shape ops:number | On shapes:number | In:number | Out:number | "
            "Weights MiB:number",
            [(*astuple(row)[:-1], f"{row.weight_bytes / (1 << 20):,.1f}") for row in self.rows],
        )
        if self.fit is not None:
            yield Heading(self.fit.heading())
            yield from self.fit.blocks()
        for report in self.reports:
            yield Heading(report.heading())
            for section in report.sections.values():
                yield Prose(section.heading())
                yield from section.blocks()


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
        ['summary', 'architecture', 'interface']
    """
    model = as_model(model)
    wanted = sections_of(options)
    pending = _optimizing(model) if options.optimize and any(section.compares for section in wanted) else None
    given = Material(model, options)
    sections: dict[str, Result] = {}
    for section in wanted:
        if pending is not None and given.optimized is None and section.compares:
            progress("onnxoptimizer")
            given = replace(given, optimized=pending.result())
        if given.inferred is None and section.needs_shapes:
            progress("shapes")
            given = _inferred(given)
        progress(section.name)
        sections[section.name] = section.make(given)
    return Report(model.label, sections)


def _inferred(given: Material) -> Material:
    from graphkit.shapes import declarations, infer  # which take as long to import as most sections take

    shapes = infer(declarations(given.model).model)
    return replace(given, model=shapes.model, inferred=shapes)


def _optimizing(model: Model) -> Future[Model]:
    """Start onnxoptimizer in a process of its own."""
    from concurrent.futures import ThreadPoolExecutor

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
) -> Comparison:
    """Analyse several models, and compare their main figures.

    Args:
        models: The models, or their paths.
        options: Which sections of each, and how.
        progress: Called with the name of each step before it starts.

    Returns:
        The comparison, with the report of each model.

    Raises:
        ModelError: An analysis finds a model broken, or needs a data file that is missing.

    Example:
        >>> models = graphkit.load("example:causal-attention"), graphkit.load("example:merged-decoder")
        >>> [row.inputs for row in graphkit.compare(models).rows]
        [1, 8]
    """
    loaded = [as_model(model) for model in models]
    rows = []
    for model in loaded:
        progress(f"{model.label}: comparison")
        facts, shapes, ports = summary(model), shape_ops(model), interface(model)
        ops = sum(op.total for op in shapes.ops), shapes.on_shapes
        puts = ports.input_count, ports.output_count
        rows.append(
            ComparisonRow(
                model.label, architecture(model).role, facts.nodes, *ops, *puts, weight_bytes=facts.total_weight_bytes
            )
        )
    together = fit(loaded) if any(row.role in DECODERS for row in rows) else None
    return Comparison(tuple(rows), together, tuple(report(model, options, progress=progress) for model in loaded))
