"""Changes of results that the user asks for before a pipeline is lowered, and how far they move results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from graphkit.deploy.export_pipeline import Pipeline, changed_by
from graphkit.options import LowerOptions
from graphkit.passes.npu.decompose_operators import GeluToTanh
from graphkit.passes.npu.dequantize import Dequantize
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.verify.lowering_verifier import measure_deviation
from graphkit.verify.originals import Originals

__all__ = ["DEQUANTIZE", "GELU_TO_TANH", "AskedChanges", "asked_changes"]

GELU_TO_TANH, DEQUANTIZE = "--gelu-to-tanh", "--dequantize"


@dataclass(frozen=True)
class _Change:
    """A rewrite that changes results, and how to tell of it."""

    rewrite: Rewrite
    option: str
    done: str
    nothing: str
    progress: str


TANH = _Change(
    GeluToTanh(),
    GELU_TO_TANH,
    f"Gelus are computed by tanh, which changes each by at most {GeluToTanh.largest_error:g}.",
    "No Gelu is computed by erf",
    "what tanh changes",
)
FLOATS = _Change(
    Dequantize(qdq=True),
    DEQUANTIZE,
    "Products of quantised numbers are computed with floats, which no longer rounds their data.",
    "Nothing is quantised that could be computed with floats",
    "what floats change",
)


@dataclass(frozen=True, eq=False)
class AskedChanges:
    """An export, the same with the changes that were asked for, and these; some may have changed nothing."""

    export: Pipeline
    pipeline: Pipeline
    done: tuple[_Change, ...]
    idle: tuple[_Change, ...]

    @property
    def originals(self) -> Originals:
        """The changed models, to compare with."""
        return replace(self.pipeline.originals, is_changed=bool(self.done))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the changes that were made."""
        return tuple(change.option for change in self.done)

    def notes(self, output: Path, options: LowerOptions, progress: Callable[[str], None]) -> Iterator[str]:
        """Yield how far results are from those of the export, measured where a proof was asked for."""
        yield from (f"{change.nothing}: {change.option} changed nothing." for change in self.idle)
        if not self.done:
            return
        said = " ".join(change.done for change in self.done)
        if not options.verify:
            yield said
            return
        progress(f"measuring {' and '.join(change.progress for change in self.done)}")
        measured = measure_deviation(self.export.originals, output, limits=options.limits, progress=progress)
        which = "that change" if len(self.done) == 1 else "these changes"
        without = "it" if len(self.done) == 1 else "them"
        yield f"{said} The proof is against the export with {which}. Without {without}, {measured.words()}."


def asked_changes(export: Pipeline, options: LowerOptions) -> AskedChanges:
    """Make the changes that the options ask for."""
    asked = [change for change, is_asked in ((FLOATS, options.dequantize), (TANH, options.gelu_to_tanh)) if is_asked]
    pipeline, done, idle = export, list[_Change](), list[_Change]()
    for change in asked:
        changed = changed_by(pipeline, change.rewrite)
        (done if changed is not pipeline else idle).append(change)
        pipeline = changed
    return AskedChanges(export, pipeline, tuple(done), tuple(idle))
