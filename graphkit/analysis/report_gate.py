"""The gate for CI: the findings that make a report fail, alone or compared with the JSON of an earlier report.

A model is found in a baseline by its path below the folder that has all models of the report, so that two files of one
name are two models; else by its file name and as many of the folders around it as agree, else by its role. Findings are
matched by kind and key, which names no node, so that they stay the same ones when an exporter numbers nodes anew.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from graphkit.analysis.findings import KIND_NAMES, Finding, kind_of, kinds_named
from graphkit.analysis.report import Comparison, Report
from graphkit.analysis.report_sections import VERDICT
from graphkit.analysis.verdict import Verdict
from graphkit.errors import UsageError
from graphkit.graph.names import counted, paths_below
from graphkit.render.result import versioned

__all__ = ["MEASURES", "Baseline", "Gate", "Measure", "read_baseline", "read_kinds"]

FOLDER = "fit"  # no section: part of the report of several models


@dataclass(frozen=True)
class Gate:
    """The conditions under which a report fails.

    Attributes:
        strict: Any finding that is no note, of the sections that are shown.
        kinds: Findings of these kinds.
        baseline: An earlier report; findings that are new or have grown since fail.
        locks: Whether a lock file is written of it.
    """

    strict: bool = False
    kinds: frozenset[str] = frozenset()
    baseline: Baseline | None = None
    locks: bool = False

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that a report needs for it."""
        needed = dict.fromkeys(kind.section for name in sorted(self.kinds) for kind in kinds_named(name))
        verdict = ("verdict",) if self.locks or self.baseline is not None else ()
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
    names_of_kinds: set[str] = set()
    for name in filter(None, map(str.strip, text.split(","))):
        kinds = kinds_named(name)
        if not kinds:
            raise UsageError(f"--fail-on {name}: no such kind of finding - choose from {', '.join(KIND_NAMES)}")
        names_of_kinds.update(kind.name for kind in kinds)
    return frozenset(names_of_kinds)


SLACK = 0.01  # part by which nodes and bytes may grow: exporters note their version and change a node here and there


@dataclass(frozen=True)
class Measure:
    """A number that must not grow.

    Attributes:
        field: The field of a verdict.
        slack: The part by which it may grow.
    """

    field: str
    says: str
    slack: float = 0.0


MEASURES = (
    Measure("shape_nodes", "nodes that compute shapes"),
    Measure("nodes", "nodes", SLACK),
    Measure("bytes", "bytes", SLACK),
    Measure("kv_bytes_per_token", "bytes of the KV cache for each token"),
)
MEASURED = {"shape-chains"}  # kinds of findings that a measure tells of
Counts = Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class _Earlier:
    """The facts that a baseline records of one model."""

    model: str
    verdict: Mapping[str, Any]
    counts: Counts


@dataclass(frozen=True)
class Baseline:
    """An earlier report.

    Attributes:
        file: Where it was read from.
        models: Its record of each model.
        fit: Its findings on how they fit together.
    """

    file: str
    models: tuple[_Earlier, ...]
    fit: Counts

    def regressions(self, made: Report | Comparison) -> Iterator[str]:
        """Yield the findings and counts that are new or have grown in a report, a line each.

        Raises:
            UsageError: The baseline is one of other models, or was written with other options.
        """
        pairs = self._pairs(made.reports)
        yield from _grown(self.fit, [finding for finding in made.found() if not finding.model])
        for report, earlier in pairs:
            verdict = _verdict(report)
            self._check(report.model, verdict, earlier)
            yield from _grown(earlier.counts, report.found())
            for measure in MEASURES:
                yield from _measured(report.model, measure, earlier.verdict.get(measure.field), verdict)

    def _pairs(self, reports: Sequence[Report]) -> list[tuple[Report, _Earlier]]:
        """Return each report with the baseline's record of the same model."""
        if len(reports) == len(self.models) == 1:
            return [(reports[0], self.models[0])]
        pairs = self._of_one_path(reports)
        paired = {id(thing) for pair in pairs for thing in pair}
        unmatched = [earlier for earlier in self.models if id(earlier) not in paired]
        for report in (report for report in reports if id(report) not in paired):
            earlier = self._like(report, unmatched)
            unmatched.remove(earlier)
            pairs.append((report, earlier))
        if unmatched:
            raise UsageError(
                f"{self.file}: it has a model {unmatched[0].model}, and this report has none - write it anew"
            )
        return pairs

    def _of_one_path(self, reports: Sequence[Report]) -> list[tuple[Report, _Earlier]]:
        """Return the reports on models that the baseline has by their path below the common folder."""
        now, before = paths_below(report.model for report in reports), paths_below(model.model for model in self.models)
        by_path = {before[earlier.model]: earlier for earlier in reversed(self.models)}
        first = {now[report.model]: report for report in reversed(reports)}
        return [(report, by_path[path]) for path, report in reversed(first.items()) if path in by_path]

    def _like(self, report: Report, unmatched: Sequence[_Earlier]) -> _Earlier:
        """Return the baseline's record of a report's model: of those of its name, the one whose folders agree."""
        shared = {id(record): _shared_parts(record.model, report.model) for record in unmatched}
        most = max(shared.values(), default=0)
        named = [record for record in unmatched if most and shared[id(record)] == most]
        role = _verdict(report).role
        alike = (
            named if len(named) == 1 else [record for record in named or unmatched if record.verdict["role"] == role]
        )
        if len({record.model for record in alike}) != 1:  # one that is reported on twice is in it twice
            like = counted(len(alike), "model(s)")
            raise UsageError(
                f"{self.file}: it has {like} like {report.model} - write the baseline anew, of the same models in "
                "folders of the same names"
            )
        return alike[0]

    def _check(self, model: str, verdict: Verdict, earlier: _Earlier) -> None:
        role, sections, target = (earlier.verdict[name] for name in ("role", "sections", "target"))
        if role != verdict.role:
            raise UsageError(f"{self.file}: it is of a model that is '{role}', and {model} is '{verdict.role}'")
        missing = [name for name in verdict.sections if name not in sections]
        if missing:
            raise UsageError(f"{self.file}: it was written without {missing[0]} - write it with the same options")
        if target != verdict.target:
            raise UsageError(
                f"{self.file}: it is for {target or 'no target'}, and this report for {verdict.target or 'none'} - "
                "write it with the same options"
            )


def _shared_parts(path: str, other_path: str) -> int:
    """Return how many parts the ends of two paths have in common."""
    pairs = zip(reversed(PurePath(path).parts), reversed(PurePath(other_path).parts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda parts: parts[0] == parts[1], pairs))


def _verdict(report: Report) -> Verdict:
    verdict = report.sections[VERDICT.name]
    assert isinstance(verdict, Verdict)
    return verdict


def _counts(findings: Iterable[tuple[str, str, int]]) -> Counts:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for kind, key, count in findings:
        counts[kind, key] += count
    return counts


def _grown(earlier: Counts, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings that the earlier report has not, or that concern more now."""
    first = {(finding.kind, finding.key): finding for finding in reversed(findings)}
    for key, count in _counts((finding.kind, finding.key, finding.count) for finding in findings).items():
        finding = first[key]
        if finding.kind in MEASURED:
            continue
        if key not in earlier:
            yield f"New: {finding}"
        elif count > earlier[key]:
            model = f"{finding.model}: " if finding.model else ""
            yield f"Grown: {model}{kind_of(finding.kind).says}, {finding.where}: from {earlier[key]:,} to {count:,}"


def _measured(model: str, measure: Measure, before: object, verdict: Verdict) -> Iterator[str]:
    now = getattr(verdict, measure.field)
    if isinstance(before, int) and now is not None and now > before * (1 + measure.slack):
        yield f"Grown: {model}: {measure.says}: from {before:,} to {now:,}"


def read_baseline(path: Path) -> Baseline:
    """Read a report that `graphkit report -f json` wrote, or a lock file.

    Raises:
        UsageError: It cannot be read, is neither of this version, or has no verdict.
    """
    from graphkit.analysis.verdict_lock import VerdictLock

    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: it cannot be read as a baseline: {error} - {_HOW}") from error
    expected = versioned("report")
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema not in (expected, versioned(VerdictLock.schema())):
        raise UsageError(f"{path}: it is no report of the version {expected}, but {schema!r} - {_HOW}")
    try:
        if schema != expected:
            return Baseline(str(path), tuple(map(_locked, _list(plain["models"]))), _all(_list(plain["fit"])))
        models = tuple(_earlier(record, plain["findings"]) for record in _list(plain["models"]))
        return Baseline(str(path), models, _of(plain["findings"], ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: it has no verdict, or is no whole report - {_HOW}") from error


_HOW = "write it with `graphkit report MODEL -o BASELINE.json`"


def _earlier(plain: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> _Earlier:
    model = plain["model"]
    return _checked(model, plain["sections"][VERDICT.name], _of(findings, model))


def _locked(plain: Mapping[str, Any]) -> _Earlier:
    return _checked(plain["model"], plain, _all(_list(plain["findings"])))


def _checked(model: str, verdict: Mapping[str, Any], counts_of: Counts) -> _Earlier:
    texts, counts = (model, verdict["role"], verdict["target"]), [verdict[measure.field] for measure in MEASURES]
    if not all(isinstance(text, str) for text in (*texts, *_list(verdict["sections"]))):
        raise TypeError
    if not all(count is None or _is_count(count) for count in counts):
        raise TypeError
    return _Earlier(model, verdict, counts_of)


def _of(findings: Sequence[Mapping[str, Any]], model: str) -> Counts:
    """Return how much the findings of a model, or of none, concern."""
    if not all(isinstance(finding["model"], str) for finding in _list(findings)):
        raise TypeError
    every = _all(findings)  # so that a fault in any of them is told
    of_model = [finding for finding in findings if finding["model"] == model]
    return every if len(of_model) == len(findings) else _all(of_model)


def _all(findings: Sequence[Mapping[str, Any]]) -> Counts:
    """Return how much findings concern, by kind and key."""
    for finding in findings:
        if not all(isinstance(finding[name], str) for name in ("kind", "key")) or not _is_count(finding["count"]):
            raise TypeError
    return _counts((finding["kind"], finding["key"], finding["count"]) for finding in findings)


def _list(plain: object) -> Sequence[Any]:
    if not isinstance(plain, list):
        raise TypeError
    return plain


def _is_count(plain: object) -> bool:
    return isinstance(plain, int) and not isinstance(plain, bool) and plain >= 0
