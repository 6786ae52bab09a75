"""The report: its sections in order, and those of one model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from graphkit.analysis.architecture import architecture, control_flow
from graphkit.analysis.findings import Finding, Judged, in_order, worst_first
from graphkit.analysis.hazards import Hazards, hazards
from graphkit.analysis.kv_cache import DEFAULT_CONTEXT, kv_cache
from graphkit.analysis.model_costs import Costs, costs
from graphkit.analysis.model_interface import interface
from graphkit.analysis.shape_ops import ShapeOps, shape_ops, unknown_shapes
from graphkit.analysis.shape_origins import origins, what_if
from graphkit.analysis.summary import summary
from graphkit.analysis.verdict import Verdict, verdict_of
from graphkit.errors import UsageError, did_you_mean
from graphkit.model import Model, ModelLike, as_model
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Heading, Lines, Table, table
from graphkit.render.result import Result
from graphkit.shapes import DimSpec, Shapes, declarations, infer

if TYPE_CHECKING:
    from graphkit.targets import Target

COST_ROWS = 20
HazardCheck = Callable[[Model, Hazards, Shapes], Hazards]
LINE = 62  # columns of what a section says, beside its name
ORIGINS, WHAT_IF = "the expressions that compute shapes", "how many nodes would be left if dims were numbers"
HINT = "--only NAME shows a section, --full all of them."


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        only: Names of the sections to show, from `SECTION_NAMES` and `EXTRAS`, and `blockers` for a target; empty for
            all but the extras.
        optimize: Compare the shape operators before and after onnxoptimizer, and show the origins after it.
        full: Show the lists in shape origins in full.
        hash_weights: Read all weights to find tied tensors.
        context: Number of positions for which to state the memory of a KV cache.
        check: Function that runs a model at the dims of its hazards, such as `graphkit.verify.check_hazards`.
        target: The target to look for blockers for, None for none.
        provider: The device to say the placement on, such as "webgpu"; "" for none.
        spec: Input dims at which to look for them and to count costs, None for those declared.
        also: Names of sections to show besides those of `only`.
        brief: Leave out the sections of which `in_brief` says one line, whatever is in them.
    """

    only: tuple[str, ...] = ()
    optimize: bool = False
    full: bool = False
    hash_weights: bool = False
    context: int = DEFAULT_CONTEXT
    check: HazardCheck | None = None
    target: Target | None = None
    provider: str = ""
    spec: DimSpec | None = None
    also: tuple[str, ...] = ()
    brief: bool = False

    def __post_init__(self) -> None:
        if self.target is None and BLOCKERS.name in (*self.only, *self.also):
            raise UsageError("the section 'blockers' is about a target - name one with --target")
        if not self.provider and PLACEMENT.name in (*self.only, *self.also):
            raise UsageError("the section 'placement' is about a device - name one with --provider")
        known = [section.name for section in _sections_for(self)]
        unknown = [name for name in (*self.only, *self.also) if name not in known]
        if unknown:
            raise UsageError(f"no section '{unknown[0]}' - {did_you_mean(unknown[0], known)}")


@dataclass(frozen=True)
class Material:
    """The inputs of every section."""

    model: Model
    options: ReportOptions
    optimized: Model | None = None  # the model after onnxoptimizer, None without `options.optimize`
    inferred: Shapes | None = None  # the shapes of the model's tensors, None until a section needs them
    # the sections that the verdict rests on, for the verdict
    judged: Mapping[str, Result] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model's tensors, for a section that needs them."""
        assert self.inferred is not None
        return self.inferred

    def sized_spec(self) -> dict[str, Any]:
        """Return the sizes of input dims that options give, for a section that counts; else the shapes as declared."""
        spec = self.options.spec
        return {"spec": spec} if spec and (spec.dims or spec.inputs or spec.ranges) else {"shapes": self.shapes}


class Section(Struct, frozen=True):
    """One section of a report."""

    name: str  # name that `--only` takes
    make: Callable[[Material], Result]
    needs_shapes: bool = False  # whether it needs the shapes of the model's tensors
    compares: bool = False  # whether it uses the model after onnxoptimizer, with `options.optimize`
    is_judged: bool = False  # whether the verdict rests on it
    line: str = ""  # what is said of it in brief where nodes compute shapes, whatever is in it


def _origins_section(material: Material) -> Result:
    shapes = material.shapes if material.optimized is None else infer(material.optimized)
    return origins(shapes.model, full=material.options.full, optimized=material.optimized is not None, shapes=shapes)


def _hazards_section(material: Material) -> Result:
    result, check = hazards(material.model, shapes=material.shapes), material.options.check
    return result if check is None else check(material.model, result, material.shapes)


def _blockers_section(material: Material) -> Result:
    from graphkit.analysis.blockers import blockers  # with the facts of targets, which few reports need

    target = material.options.target
    assert target is not None
    return blockers(material.model, target, **material.sized_spec())


def _placement_section(material: Material) -> Result:
    from graphkit.analysis.node_placement import placement  # which loads the model

    spec = material.options.spec or DimSpec()
    return placement(material.model, material.options.provider, **({"spec": spec} | material.sized_spec()))


def _float16_section(material: Material) -> Result:
    from graphkit.analysis.float16_losses import float16_losses  # which few reports have

    return float16_losses(material.model)


VERDICT = Section("verdict", lambda m: verdict_of(m.model, m.judged))  # made last, from those that are judged
SECTIONS = (
    VERDICT,
    Section("summary", lambda m: summary(m.model, hash_weights=m.options.hash_weights), is_judged=True),
    Section("architecture", lambda m: architecture(m.model), is_judged=True),
    Section("interface", lambda m: interface(m.model), is_judged=True),
    Section("kv-cache", lambda m: kv_cache(m.model, m.options.context), is_judged=True),
    Section("costs", lambda m: costs(m.model, top=COST_ROWS, **m.sized_spec()), needs_shapes=True, is_judged=True),
    Section("shape-ops", lambda m: shape_ops(m.model, m.optimized), compares=True, is_judged=True),
    Section("origins", _origins_section, needs_shapes=True, compares=True, line=ORIGINS),
    Section("what-if", lambda m: what_if(m.model, shapes=m.shapes), needs_shapes=True, line=WHAT_IF),
    Section("hazards", _hazards_section, needs_shapes=True, is_judged=True),
    Section("unknown-shapes", lambda m: unknown_shapes(m.model, shapes=m.shapes), needs_shapes=True, is_judged=True),
    Section("control-flow", lambda m: control_flow(m.model), is_judged=True),
)
SECTION_NAMES = tuple(section.name for section in SECTIONS)
EXTRAS = (Section("float16", _float16_section, is_judged=True),)  # of a report that names them
BLOCKERS = Section("blockers", _blockers_section, needs_shapes=True, is_judged=True)  # of a report for a target

PLACEMENT = Section("placement", _placement_section, needs_shapes=True)  # of a report for a device


def sections_of(options: ReportOptions) -> tuple[Section, ...]:
    """Return the sections that options ask for, in order."""
    every = _sections_for(options)
    usual = (section.name for section in every if section not in EXTRAS and not (options.brief and section.line))
    names = options.only or tuple(usual)
    return tuple(section for section in every if section.name in (*names, *options.also))


def judged_sections(options: ReportOptions) -> tuple[Section, ...]:
    """Return the sections that a verdict rests on: all but the extras that options do not ask for."""
    shown = sections_of(options)
    return tuple(
        section
        for section in _sections_for(options)
        if section.is_judged and (section not in EXTRAS or section in shown)
    )


def _sections_for(options: ReportOptions) -> tuple[Section, ...]:
    asked = ((BLOCKERS, options.target is not None), (PLACEMENT, bool(options.provider)))
    return (*SECTIONS, *EXTRAS, *(section for section, is_asked in asked if is_asked))


class Failure(Struct, frozen=True):
    """A model that could not be reported on."""

    model: str
    problem: str  # the error, which names the file


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
        return {"model": self.model, "sections": {name: section.to_dict() for name, section in self.sections.items()}}

    @property
    def reports(self) -> tuple[Report, ...]:
        """Itself alone, as a comparison has its reports."""
        return (self,)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """None: a comparison has the models without a report."""
        return ()

    def document(self) -> dict[str, object]:
        return report_document((self,), self.found())

    def graphs(self) -> tuple[Mapping[str, object], ...]:
        from graphkit.analysis.page_graph import page_graph

        if self.source is None:
            return ()
        costs = self.sections.get("costs")
        marks = (mark for section in self.sections.values() for mark in section.marks())
        shapes = infer(declarations(self.source).model)
        return (page_graph(shapes, costs if isinstance(costs, Costs) else None, marks=marks),)

    def blocks(self) -> Iterator[Block]:
        for name, section in self.sections.items():
            if name != VERDICT.name and (heading := section.heading()):
                yield Heading(heading, place=name)
            yield from section.blocks()

    def csv_tables(self) -> Iterator[Table]:
        return (single for section in self.sections.values() for single in section.csv_tables())


@dataclass(frozen=True)
class Overview(Result):
    """A line for each section of a report of which the verdict says nothing, and the commands to run next."""

    title: ClassVar[str] = ""
    rows: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]

    def blocks(self) -> Iterator[Block]:
        cut = ((text[: LINE - 4].rsplit(" ", 1)[0] + " ..." if len(text) > LINE else text) for _, text in self.rows)
        if self.rows:
            yield table("Section:code | What it says", list(zip((name for name, _ in self.rows), cut, strict=True)))
        yield Lines(((HINT, "plain"), *((command, "command") for command in self.commands)))


def in_brief(full: Report, kept: Collection[str] = ()) -> Report:
    """Return a report of its verdict, a line for each section, and the commands to run next.

    Where sections are kept, these are shown, and others have no line.
    """
    verdict = full.sections[VERDICT.name]
    assert isinstance(verdict, Verdict)
    told = {VERDICT.name, *kept, *(kind.section for kind, _ in in_order(verdict.faults))}
    texts = {name: section.in_short() for name, section in full.sections.items()}
    shape_ops = full.sections.get("shape-ops")
    has_lines = isinstance(shape_ops, ShapeOps) and shape_ops.on_shapes > 0
    texts |= {section.name: section.line * has_lines for section in SECTIONS if section.line}
    order = (*SECTION_NAMES, *(name for name in texts if name not in SECTION_NAMES))
    rows = tuple((name, texts[name]) for name in order if texts.get(name) and not (kept or name in told))
    overview = Overview(rows, verdict.commands)
    shown = {name: section for name, section in full.sections.items() if name in kept}
    return replace(full, sections={VERDICT.name: replace(verdict, commands=()), **shown, "sections": overview})


def report_document(
    reports: Sequence[Report], findings: Sequence[Finding], together: Result | None = None
) -> dict[str, object]:
    """Return the JSON of a report, which is laid out alike for one model and for several."""
    alone: dict[str, object] = {"rows": [], "fit": None, "commands": [], "failures": []}
    plain = alone if together is None else Result.to_dict(together)
    return {
        "findings": [asdict(finding) for finding in findings],
        "comparison": plain["rows"],
        **{name: plain[name] for name in ("fit", "commands", "failures")},
        "models": [report.to_dict() for report in reports],
    }


def report(
    model: ModelLike, options: ReportOptions = ReportOptions(), *, progress: Progress = lambda _: None
) -> Report:
    """Return the analyses of one model, in the order of the report: `print(graphkit.report(model).to_text())`.

    Args:
        model: The model, or its path.
        options: Which sections, and how.
        progress: Called with the name of each step before it starts.

    Raises:
        ModelError: An analysis finds the model broken, or needs a data file that is missing.

    Example:
        >>> list(graphkit.report(graphkit.load("example:causal-attention")).sections)[:3]
        ['verdict', 'summary', 'architecture']
    """
    model = as_model(model)
    return shown_report(model, options, make_sections(model, options, progress))


def shown_report(model: Model, options: ReportOptions, made: Mapping[str, Result]) -> Report:
    """Return the report of the sections that options ask for."""
    return Report(model.label, {section.name: made[section.name] for section in sections_of(options)}, model)


def make_sections(model: Model, options: ReportOptions, progress: Progress) -> dict[str, Result]:
    """Return the sections that options ask for, and those that the verdict rests on where it is one of them."""
    sections = sections_of(options)
    judged = judged_sections(options) if VERDICT in sections else ()
    material = Material(model, options)
    made: dict[str, Result] = {}
    for section in dict.fromkeys((*sections, *judged)):
        if section is VERDICT:
            continue
        if options.optimize and material.optimized is None and section.compares:
            from graphkit.runtime.external_tools import optimized

            progress("onnxoptimizer")
            material = replace(material, optimized=optimized(model))
        if material.inferred is None and section.needs_shapes:
            progress("shapes")
            shapes = infer(declarations(material.model).model)
            material = replace(material, model=shapes.model, inferred=shapes)
        progress(section.name)
        made[section.name] = section.make(material)
    if VERDICT in sections:
        rests_on = {section.name: made[section.name] for section in judged}
        made[VERDICT.name] = VERDICT.make(replace(material, model=model, judged=rests_on))
    return made
