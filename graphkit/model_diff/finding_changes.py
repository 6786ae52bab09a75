"""Findings of a report, blockers of a target included, that one model has and the other has not, or has more of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphkit.analysis.findings import Finding
from graphkit.analysis.report import report
from graphkit.analysis.report_sections import ReportOptions, judged_sections
from graphkit.model import Model
from graphkit.model_diff.changes import COSTS, FindingChange

if TYPE_CHECKING:
    from graphkit.deploy.targets import Target

__all__ = ["finding_changes", "findings_of"]


def findings_of(model: Model, target: Target | None) -> tuple[Finding, ...]:
    """Return the findings of a report, blockers of a target included where there is one."""
    sections = [section.name for section in judged_sections(ReportOptions(target=target))]
    only = tuple(name for name in sections if name != COSTS)  # which find nothing, and take a while
    return report(model, ReportOptions(only=only, target=target)).found()


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[FindingChange]:
    """Yield the findings that are new, gone, or concern another number; matched by kind and key as in a baseline."""
    counts: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], Finding] = {}
    for side, findings in enumerate((before, after)):
        for finding in findings:
            key = finding.kind, finding.key
            counts.setdefault(key, [0, 0])[side] += finding.count
            first[key] = finding
    for key, (was, now) in counts.items():
        if was != now:
            yield FindingChange(kind=key[0], text=first[key].text, before=was, after=now)
