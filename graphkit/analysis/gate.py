"""The gate for CI: which findings of a report make it fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphkit.analysis.findings import KIND_NAMES, kinds_named
from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.analysis.baseline import Baseline
    from graphkit.analysis.report import Comparison, Report

__all__ = ["Gate", "read_kinds"]

FOLDER = "fit"  # no section: part of the report of several models


@dataclass(frozen=True)
class Gate:
    """The conditions under which a report fails.

    Attributes:
        strict: Any finding that is no note, of the sections that are shown.
        kinds: Findings of these kinds.
        baseline: What is new or has grown since this report.
    """

    strict: bool = False
    kinds: frozenset[str] = frozenset()
    baseline: Baseline | None = None

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that a report needs for it."""
        needed = dict.fromkeys(kind.section for name in sorted(self.kinds) for kind in kinds_named(name))
        verdict = ("verdict",) if self.baseline is not None else ()
        return (*verdict, *(name for name in needed if name != FOLDER))

    def failures(self, made: Report | Comparison) -> Iterator[str]:
        """Yield why a report fails, a line each."""
        for finding in made.found():
            if (self.strict and finding.is_fault) or finding.kind in self.kinds:
                yield f"Finding: {finding}"
        if self.baseline is not None:
            yield from self.baseline.regressions(made)


def read_kinds(text: str) -> frozenset[str]:
    """Return the kinds that a list of kinds and of sections names.

    Raises:
        UsageError: A name is neither.
    """
    found: set[str] = set()
    for name in filter(None, map(str.strip, text.split(","))):
        kinds = kinds_named(name)
        if not kinds:
            raise UsageError(f"--fail-on {name}: no such kind of finding - choose from {', '.join(KIND_NAMES)}")
        found.update(kind.name for kind in kinds)
    return frozenset(found)
