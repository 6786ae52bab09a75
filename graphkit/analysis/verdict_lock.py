"""A lock file: the verdict on each model of a folder in a few lines that diff well, as a baseline for the next report.

A model is kept by its path below the common folder, so that two files of one name are two models, wherever the
folder lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.findings import Finding
from graphkit.analysis.report import Comparison, Report
from graphkit.analysis.report_sections import VERDICT
from graphkit.analysis.verdict import Verdict
from graphkit.graph.names import paths_below
from graphkit.render.document_blocks import Block, table
from graphkit.render.result import Result

__all__ = ["LockedFinding", "LockedModel", "VerdictLock", "verdict_lock"]


@dataclass(frozen=True)
class LockedFinding:
    """A finding as a lock file keeps it: the fields of `Finding` that tell it from others."""

    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class LockedModel:
    """The fields of a verdict that a later one is compared with.

    Attributes:
        model: Its path below the common folder.
    """

    model: str
    role: str
    target: str
    sections: tuple[str, ...]
    nodes: int
    shape_nodes: int
    bytes: int
    kv_bytes_per_token: int | None
    findings: tuple[LockedFinding, ...]


@dataclass(frozen=True)
class VerdictLock(Result):
    """The verdicts on the models of a folder.

    Attributes:
        fit: The findings on how they fit together.
    """

    title: ClassVar[str] = "Lock file"
    models: tuple[LockedModel, ...]
    fit: tuple[LockedFinding, ...]

    def blocks(self) -> Iterator[Block]:
        rows = [(model.model, model.role, model.nodes, len(model.findings)) for model in self.models]
        yield table("Model:code | Role | Nodes:number | Findings:number", rows)


def verdict_lock(made: Report | Comparison) -> VerdictLock:
    """Return the lock of a report, which must have the section `verdict`."""
    keys = paths_below(report.model for report in made.reports)
    models = {keys[report.model]: _locked(keys[report.model], report) for report in made.reports}
    together = _findings(finding for finding in made.found() if not finding.model)
    return VerdictLock(tuple(models[key] for key in sorted(models)), together)


def _locked(key: str, report: Report) -> LockedModel:
    verdict = report.sections[VERDICT.name]
    assert isinstance(verdict, Verdict)
    return LockedModel(
        model=key,
        role=verdict.role,
        target=verdict.target,
        sections=verdict.sections,
        nodes=verdict.nodes,
        shape_nodes=verdict.shape_nodes,
        bytes=verdict.bytes,
        kv_bytes_per_token=verdict.kv_bytes_per_token,
        findings=_findings(report.found()),
    )


def _findings(findings: Iterable[Finding]) -> tuple[LockedFinding, ...]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for finding in findings:
        counts[finding.kind, finding.key] += finding.count
    return tuple(LockedFinding(kind, key, count) for (kind, key), count in sorted(counts.items()))
