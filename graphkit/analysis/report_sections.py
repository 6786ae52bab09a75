"""The sections of a report, in order: the analysis that makes each, and its prerequisites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphkit.analysis.architecture import architecture
from graphkit.analysis.control_flow import control_flow
from graphkit.analysis.kv_cache import DEFAULT_CONTEXT, kv_cache
from graphkit.analysis.model_interface import interface
from graphkit.analysis.shape_ops import shape_ops
from graphkit.analysis.summary import summary
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.render.result import Result
from graphkit.suggest import did_you_mean

if TYPE_CHECKING:
    from graphkit.analysis.hazards import Hazards
    from graphkit.deploy.targets import Target
    from graphkit.shapes import DimSpec, Shapes

__all__ = [
    "BLOCKERS", "EXTRAS", "SECTIONS", "SECTION_NAMES", "VERDICT", "HazardCheck", "Material", "ReportOptions", "Section",
    "judged_sections", "sections_of",
]  # fmt: skip

COST_ROWS = 20
HazardCheck = Callable[[Model, "Hazards", "Shapes"], "Hazards"]


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
        spec: Input dims at which to look for them and to count costs, None for those declared.
        also: Names of sections to show besides those of `only`.
    """

    only: tuple[str, ...] = ()
    optimize: bool = False
    full: bool = False
    hash_weights: bool = False
    context: int = DEFAULT_CONTEXT
    check: HazardCheck | None = None
    target: Target | None = None
    spec: DimSpec | None = None
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.target is None and BLOCKERS.name in (*self.only, *self.also):
            raise UsageError("the section 'blockers' is about a target - name one with --target")
        known = [section.name for section in _sections_for(self.target)]
        unknown = [name for name in (*self.only, *self.also) if name not in known]
        if unknown:
            raise UsageError(f"no section '{unknown[0]}' - {did_you_mean(unknown[0], known)}")


@dataclass(frozen=True)
class Material:
    """The inputs of every section.

    Attributes:
        optimized: The model after onnxoptimizer, None without `options.optimize`.
        inferred: The shapes of the model's tensors, None until a section needs them.
        judged: The sections that the verdict rests on, for the verdict.
    """

    model: Model
    options: ReportOptions
    optimized: Model | None = None
    inferred: Shapes | None = None
    judged: Mapping[str, Result] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model's tensors, for a section that needs them."""
        assert self.inferred is not None
        return self.inferred

    def sized(self) -> dict[str, Any]:
        """Return the sizes of input dims that options give, for a section that counts; else the shapes as declared."""
        spec = self.options.spec
        return {"spec": spec} if spec and (spec.dims or spec.inputs or spec.ranges) else {"shapes": self.shapes}


@dataclass(frozen=True)
class Section:
    """One section of a report.

    Attributes:
        name: Name that `--only` takes.
        needs_shapes: Whether it needs the shapes of the model's tensors.
        compares: Whether it uses the model after onnxoptimizer, with `options.optimize`.
        is_judged: Whether the verdict rests on it.
    """

    name: str
    make: Callable[[Material], Result]
    needs_shapes: bool = False
    compares: bool = False
    is_judged: bool = False


# Importing the shape engine takes as long as most sections, so it is imported only when a section needs it.


def _origins_section(material: Material) -> Result:
    from graphkit.analysis.shape_origins import origins
    from graphkit.shapes import infer

    shapes = material.shapes if material.optimized is None else infer(material.optimized)
    return origins(shapes.model, full=material.options.full, optimized=material.optimized is not None, shapes=shapes)


def _what_if(material: Material) -> Result:
    from graphkit.analysis.what_if import what_if

    return what_if(material.model, shapes=material.shapes)


def _hazards_section(material: Material) -> Result:
    from graphkit.analysis.hazards import hazards

    result, check = hazards(material.model, shapes=material.shapes), material.options.check
    return result if check is None else check(material.model, result, material.shapes)


def _unknown_shapes(material: Material) -> Result:
    from graphkit.analysis.tensor_shapes import unknown_shapes

    return unknown_shapes(material.model, shapes=material.shapes)


def _blockers_section(material: Material) -> Result:
    from graphkit.analysis.blockers import blockers

    target = material.options.target
    assert target is not None
    return blockers(material.model, target, **material.sized())


def _costs_section(material: Material) -> Result:
    from graphkit.analysis.costs.model_costs import costs

    return costs(material.model, top=COST_ROWS, **material.sized())


def _float16_section(material: Material) -> Result:
    from graphkit.analysis.float16_losses import float16_losses

    return float16_losses(material.model)


def _verdict_section(material: Material) -> Result:
    from graphkit.analysis.verdict import verdict_of

    return verdict_of(material.model, material.judged)


VERDICT = Section("verdict", _verdict_section)  # made last, from those that are judged
SECTIONS = (
    VERDICT,
    Section(
        "summary", lambda material: summary(material.model, hash_weights=material.options.hash_weights), is_judged=True
    ),
    Section("architecture", lambda material: architecture(material.model), is_judged=True),
    Section("interface", lambda material: interface(material.model), is_judged=True),
    Section("kv-cache", lambda material: kv_cache(material.model, material.options.context), is_judged=True),
    Section("costs", _costs_section, needs_shapes=True, is_judged=True),
    Section("shape-ops", lambda material: shape_ops(material.model, material.optimized), compares=True, is_judged=True),
    Section("origins", _origins_section, needs_shapes=True, compares=True),
    Section("what-if", _what_if, needs_shapes=True),
    Section("hazards", _hazards_section, needs_shapes=True, is_judged=True),
    Section("unknown-shapes", _unknown_shapes, needs_shapes=True, is_judged=True),
    Section("control-flow", lambda material: control_flow(material.model), is_judged=True),
)
SECTION_NAMES = tuple(section.name for section in SECTIONS)
EXTRAS = (Section("float16", _float16_section, is_judged=True),)  # of a report that names them
BLOCKERS = Section("blockers", _blockers_section, needs_shapes=True, is_judged=True)  # of a report for a target


def sections_of(options: ReportOptions) -> tuple[Section, ...]:
    """Return the sections that options ask for, in order."""
    every = _sections_for(options.target)
    names = options.only or tuple(section.name for section in every if section not in EXTRAS)
    return tuple(section for section in every if section.name in (*names, *options.also))


def judged_sections(options: ReportOptions) -> tuple[Section, ...]:
    """Return the sections that a verdict rests on: all but the extras that options do not ask for."""
    shown = sections_of(options)
    return tuple(
        section
        for section in _sections_for(options.target)
        if section.is_judged and (section not in EXTRAS or section in shown)
    )


def _sections_for(target: Target | None) -> tuple[Section, ...]:
    return (*SECTIONS, *EXTRAS) if target is None else (*SECTIONS, *EXTRAS, BLOCKERS)
