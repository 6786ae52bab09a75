"""The report: chosen analyses of one model, or of several with a comparison first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from graphkit.analysis import SECTIONS
from graphkit.analysis.architecture import architecture
from graphkit.analysis.control_flow import control_flow
from graphkit.analysis.fit import DECODERS, Fit, fit
from graphkit.analysis.interface import interface
from graphkit.analysis.kv_cache import DEFAULT_CONTEXT, kv_cache
from graphkit.analysis.optimize import optimized
from graphkit.analysis.shape_ops import shape_ops
from graphkit.analysis.summary import summary
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.render.blocks import Block, Column, Heading, Prose, Table
from graphkit.render.result import Result

if TYPE_CHECKING:
    from concurrent.futures import Future

    from graphkit.analysis.hazards import Hazards
    from graphkit.shapes import Shapes

__all__ = ["Comparison", "ComparisonRow", "HazardCheck", "Report", "ReportOptions", "compare", "report"]

HazardCheck = Callable[[Model, "Hazards", "Shapes"], "Hazards"]
OPTIMIZED = {"shape-ops", "origins"}  # sections that look at the graph after onnxoptimizer
INFERRED = {"origins", "what-if", "hazards"}  # sections that rest on the shape engine


@dataclass(frozen=True)
class ReportOptions:
    """What to put into a report.

    Attributes:
        only: Sections to show, of `graphkit.analysis.SECTIONS`; empty for all.
        optimize: Compare the shape operators with those after onnxoptimizer, and take the origins there.
        full: Write out the lists in shape origins.
        hash_weights: Read all weights to find tied tensors.
        context: Positions for which to state the memory of a KV cache.
        check: What runs a model at the dims of its hazards, such as `graphkit.verify.check_hazards`; None for not.
    """

    only: tuple[str, ...] = ()
    optimize: bool = False
    full: bool = False
    hash_weights: bool = False
    context: int = DEFAULT_CONTEXT
    check: HazardCheck | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.only if name not in SECTIONS]
        if unknown:
            raise UsageError(f"no section '{unknown[0]}' - there are: {', '.join(SECTIONS)}")


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
    """Several models side by side, how they fit together where one is a decoder, then the report of each."""

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
        yield Table(
            (
                Column("Model", "code"),
                Column("Role", "note"),
                Column("Nodes", "number"),
                Column("Shape ops", "number"),
                Column("On shapes", "number"),
                Column("In", "number"),
                Column("Out", "number"),
                Column("Weights MiB", "number"),
            ),
            [
                (
                    r.model,
                    r.role,
                    r.nodes,
                    r.shape_ops,
                    r.on_shapes,
                    r.inputs,
                    r.outputs,
                    f"{r.weight_bytes / (1 << 20):,.1f}",
                )
                for r in self.rows
            ],
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
    model: Model,
    options: ReportOptions = ReportOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Analyse one model.

    Args:
        model: The model.
        options: Which sections, and how.
        progress: Called with the name of each step before it starts.

    Raises:
        ModelError: The model is broken in a way that only shows now, or its data file is needed and missing.
    """
    wanted = [name for name in SECTIONS if not options.only or name in options.only]
    pending, after = _optimizing(model) if options.optimize and OPTIMIZED.intersection(wanted) else None, None
    sections: dict[str, Result] = {}
    shapes = None
    for name in wanted:
        if after is None and pending is not None and name in OPTIMIZED:
            progress("onnxoptimizer")
            after = pending.result()
        if shapes is None and name in INFERRED:
            from graphkit.shapes import (  # what most sections do without takes as long to import as they do
                declarations,
                infer,
            )

            progress("shapes")
            shapes = infer(declarations(model).model)
        progress(name)
        sections[name] = (
            _section(name, model, after, options) if shapes is None else _inferred(name, shapes, after, options)
        )
    return Report(model.label, sections)


def _optimizing(model: Model) -> Future[Model]:
    """Start onnxoptimizer, in a process that works beside this one."""
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(optimized, model)
    finally:
        executor.shutdown(wait=False)


def _inferred(name: str, shapes: Shapes, after: Model | None, options: ReportOptions) -> Result:
    from graphkit.analysis.hazards import hazards
    from graphkit.analysis.origins import origins
    from graphkit.analysis.what_if import what_if
    from graphkit.shapes import infer

    if name == "origins":
        found = shapes if after is None else infer(after)
        return origins(found.model, full=options.full, optimized=after is not None, shapes=found)
    if name == "what-if":
        return what_if(shapes.model, shapes=shapes)
    if name == "hazards":
        hazardous = hazards(shapes.model, shapes=shapes)
        return hazardous if options.check is None else options.check(shapes.model, hazardous, shapes)
    return _section(name, shapes.model, after, options)


def _section(name: str, model: Model, after: Model | None, options: ReportOptions) -> Result:
    if name == "summary":
        return summary(model, hash_weights=options.hash_weights)
    if name == "architecture":
        return architecture(model)
    if name == "interface":
        return interface(model)
    if name == "kv-cache":
        return kv_cache(model, options.context)
    if name == "shape-ops":
        return shape_ops(model, after)
    return control_flow(model)


def compare(
    models: Sequence[Model],
    options: ReportOptions = ReportOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Analyse several models, with a comparison of the main figures first.

    Args:
        models: The models.
        options: Which sections of each, and how.
        progress: Called with the name of each step before it starts.
    """
    rows = []
    for model in models:
        progress(f"{model.label}: comparison")
        facts, shapes, ports = summary(model), shape_ops(model), interface(model)
        total = sum(op.total for op in shapes.ops)
        role = architecture(model).role
        rows.append(
            ComparisonRow(
                model.label,
                role,
                facts.nodes,
                total,
                shapes.on_shapes,
                ports.input_count,
                ports.output_count,
                facts.total_weight_bytes,
            )
        )
    together = fit(models) if any(row.role in DECODERS for row in rows) else None
    return Comparison(tuple(rows), together, tuple(report(model, options, progress=progress) for model in models))
