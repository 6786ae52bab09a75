"""The gate for CI: the findings that make a report fail, alone or compared with an earlier report or a lock file.

A lock file is the verdict on each model of a folder in a few lines that diff well. A model is found in a baseline by
its path below the folder that has all models of the report, so that two files of one name are two models; else by its
file name and as many of the folders around it as agree, else by its role. Findings are matched by kind and key, which
names no node, so that they stay the same ones when an exporter numbers nodes anew.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path, PurePath
from typing import Annotated, ClassVar, NamedTuple, cast

from msgspec import Meta, Struct, ValidationError, convert

from graphkit.analysis.comparison import Comparison
from graphkit.analysis.findings import KIND_NAMES, Finding, kind_of, kinds_named
from graphkit.analysis.report import PLACEMENT, VERDICT, Report
from graphkit.analysis.verdict import Verdict
from graphkit.errors import UsageError
from graphkit.graph.names import group_pairs, paths_below
from graphkit.render.result import Result, tabled, versioned_schema

NEW_MODEL, GONE, OTHER_ROLE = OTHER_MODELS = ("New model: ", "Gone: ", "Other role: ")
FOLDER = "fit"  # no section: part of the report of several models
SLACK = 0.01  # part by which nodes and bytes may grow: exporters note their version and change a node here and there
MEASURED = {"shape-chains"}  # kinds of findings that a measure tells of
HOW = "write it with `graphkit report MODEL -o BASELINE.json`"
Count = Annotated[int, Meta(ge=0)]
VERDICT_FIELDS = ("role", "target", "sections", "nodes", "shape_nodes", "bytes", "kv_bytes_per_token")
PARTITIONS = re.compile(r"(?<![^,\s])partitions:([1-9][0-9]{0,8})(?![^,\s])")


class Measure(NamedTuple):
    """A number of a verdict that must not grow, but for a part of `slack`."""

    field: str
    says: str
    slack: float = 0.0


MEASURES = (
    Measure("shape_nodes", "nodes that compute shapes"),
    Measure("nodes", "nodes", SLACK),
    Measure("bytes", "bytes", SLACK),
    Measure("kv_bytes_per_token", "bytes of the KV cache for each token"),
)


class LockedFinding(Struct, frozen=True):
    """A finding as a lock file keeps it: the fields of `Finding` that tell it from others."""

    kind: str
    key: str
    count: Count


class LockedModel(Struct, frozen=True):
    """The fields of a verdict that a later one is compared with."""

    model: str  # its path below the common folder
    role: str
    target: str
    sections: tuple[str, ...]
    nodes: Count
    shape_nodes: Count
    bytes: Count
    kv_bytes_per_token: Count | None
    findings: tuple[LockedFinding, ...]


@dataclass(frozen=True)
class VerdictLock(Result):
    """The verdicts on the models of a folder."""

    title: ClassVar[str] = "Lock file"
    models: tuple[LockedModel, ...] = field(
        metadata=tabled(
            "Model:code | Role | Nodes:number | Findings:number",
            cells=lambda model: (model.model, model.role, model.nodes, len(model.findings)),
        )
    )
    fit: tuple[LockedFinding, ...]  # the findings on how they fit together


def verdict_lock(made: Report | Comparison) -> VerdictLock:
    """Return the lock of a report, which must have the section `verdict`."""
    keys = paths_below(report.model for report in made.reports)
    models: dict[str, LockedModel] = {}
    for each in made.reports:
        verdict, key = cast(Verdict, each.sections[VERDICT.name]), keys[each.model]
        facts = {name: getattr(verdict, name) for name in VERDICT_FIELDS}
        models[key] = LockedModel(model=key, **facts, findings=_locked_findings(each.found()))
    together = _locked_findings(finding for finding in made.found() if not finding.model)
    return VerdictLock(tuple(models[key] for key in sorted(models)), together)


def _locked_findings(findings: Iterable[Finding]) -> tuple[LockedFinding, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        counts[finding.kind, finding.key] += finding.count
    return tuple(LockedFinding(kind, key, count) for (kind, key), count in sorted(counts.items()))


class Gate(Struct, frozen=True):
    """The conditions under which a report fails."""

    strict: bool = False  # any finding that is no note, of the sections that are shown
    kinds: frozenset[str] = frozenset()  # findings of these kinds
    baseline: Baseline | None = None  # an earlier report; findings that are new or have grown since fail
    locks: bool = False  # whether a lock file is written of it
    partitions: int | None = None  # the most parts that a device may take; None for any number

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that a report needs for it."""
        needed = dict.fromkeys(kind.section for name in sorted(self.kinds) for kind in kinds_named(name))
        verdict = [VERDICT.name] if self.locks or self.baseline is not None else []
        verdict += [PLACEMENT.name] if self.partitions is not None else []
        return (*verdict, *(name for name in needed if name != FOLDER))

    def is_of_others(self, failure: str) -> bool:
        """Whether a line of `failures` says that the baseline is of other models."""
        return failure.startswith(OTHER_MODELS)

    def failures(self, made: Report | Comparison) -> Iterator[str]:
        """Yield why a report fails, a line each."""
        for finding in made.found():
            if (self.strict and finding.is_fault) or finding.kind in self.kinds:
                yield f"Finding: {finding}"
        if self.partitions is not None:
            from graphkit.analysis.node_placement import NodePlacement  # which runs models

            for report in made.reports:
                placed = report.sections.get(PLACEMENT.name)
                if isinstance(placed, NodePlacement) and not 0 < placed.partitions <= self.partitions:
                    allowed = f"{placed.partitions:,} on {placed.provider}, and {self.partitions:,} allowed"
                    parts = allowed if placed.partitions else f"none on {placed.provider}"
                    yield f"Partitions: {report.model}: {parts}"
        if self.baseline is not None:
            yield from self.baseline.regressions(made)


def read_partitions(text: str) -> tuple[str, int | None]:
    """Take `partitions:N` out of a list of kinds, and return the list and the number; None where it has none."""
    return PARTITIONS.sub("", text), min(map(int, PARTITIONS.findall(text)), default=None)


def read_kinds(text: str) -> frozenset[str]:
    """Return the kinds that a list of kinds and of sections names. Raises UsageError where a name is neither."""
    found: set[str] = set()
    for name in filter(None, map(str.strip, text.split(","))):
        if not kinds_named(name):
            raise UsageError(f"--fail-on {name}: no such kind of finding - choose from {', '.join(KIND_NAMES)}")
        found.update(kind.name for kind in kinds_named(name))
    return frozenset(found)


class Baseline(Struct, frozen=True):
    """An earlier report, or a lock file: where it was read from, and what it records."""

    file: str
    lock: VerdictLock

    def regressions(self, made: Report | Comparison) -> Iterator[str]:
        """Yield the models that are new, gone or in another role, and what has grown in the others, a line each.

        A UsageError says that the baseline was written with other options.
        """
        pairs, gone = self._pair_models(made)
        known = {id(report) for report, _ in pairs}
        yield from (f"{NEW_MODEL}{report.model}" for report in made.reports if id(report) not in known)
        yield from (f"{GONE}{earlier.model}, which {self.file} has" for earlier in gone)
        yield from _grown_findings(self.lock.fit, [finding for finding in made.found() if not finding.model])
        for report, earlier in pairs:
            verdict = cast(Verdict, report.sections[VERDICT.name])
            missing = [name for name in verdict.sections if name not in earlier.sections]
            if missing:
                raise UsageError(f"{self.file}: it was written without {missing[0]} - write it with the same options")
            if earlier.target != verdict.target:
                targets = f"{earlier.target or 'no target'}, and this report for {verdict.target or 'none'}"
                raise UsageError(f"{self.file}: it is for {targets} - write it with the same options")
            if earlier.role != verdict.role:
                yield f"{OTHER_ROLE}{report.model}: from '{earlier.role}' to '{verdict.role}'"
                continue
            yield from _grown_findings(earlier.findings, report.found())
            for measure in MEASURES:
                before, now = getattr(earlier, measure.field), getattr(verdict, measure.field)
                if before is not None and now is not None and now > before * (1 + measure.slack):
                    yield f"Grown: {report.model}: {measure.says}: from {before:,} to {now:,}"

    def _pair_models(self, made: Report | Comparison) -> tuple[list[tuple[Report, LockedModel]], list[LockedModel]]:
        """Return the reports of models that the baseline knows, each with its record, and the records of no model."""
        reports, models, broken = made.reports, self.lock.models, [failure.model for failure in made.failures]
        if len(reports) + len(broken) == len(models) == 1:
            return [(report, models[0]) for report in reports], []
        now = paths_below([*(report.model for report in reports), *broken])
        before = paths_below(model.model for model in models)
        by_path = {before[earlier.model]: earlier for earlier in reversed(models)}
        first = {now[report.model]: report for report in reversed(reports)}
        pairs = [(report, by_path[path]) for path, report in reversed(first.items()) if path in by_path]
        paired = {id(thing) for pair in pairs for thing in pair}
        unseen = {now[model] for model in broken}
        unmatched = [each for each in models if id(each) not in paired and before[each.model] not in unseen]
        for report in (report for report in reports if id(report) not in paired):
            # of the records of its name, the one whose folders agree; none for a model that is new, or like several
            parts = PurePath(report.model).parts[::-1]
            shared = {
                id(record): len(commonprefix([parts, PurePath(record.model).parts[::-1]]))  # noqa: RUF071 - of parts
                for record in unmatched
            }
            most = max(shared.values(), default=0)
            named = [record for record in unmatched if most and shared[id(record)] == most]
            role = cast(Verdict, report.sections[VERDICT.name]).role
            alike = named if len(named) == 1 else [record for record in named or unmatched if record.role == role]
            if len({record.model for record in alike}) == 1:  # reported on twice, it is in it twice
                unmatched.remove(alike[0])
                pairs.append((report, alike[0]))
        return pairs, unmatched


def _grown_findings(earlier: Sequence[LockedFinding], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings that the earlier report has not, or that concern more now."""
    before: Counter[tuple[str, str]] = Counter()
    for known in earlier:
        before[known.kind, known.key] += known.count
    for key, group in group_pairs(((finding.kind, finding.key), finding) for finding in findings).items():
        finding, count, was = group[0], sum(each.count for each in group), before.get(key)
        if finding.kind in MEASURED:
            continue
        if was is None:
            yield f"New: {finding}"
        elif count > was:
            model = f"{finding.model}: " if finding.model else ""
            yield f"Grown: {model}{kind_of(finding.kind).says}, {finding.where}: from {was:,} to {count:,}"


def read_baseline(path: Path) -> Baseline:
    """Read a report that `graphkit report -f json` wrote, or a lock file; a UsageError says that it is neither."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: it cannot be read as a baseline: {error} - {HOW}") from error
    expected = versioned_schema("report")
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema not in (expected, versioned_schema(VerdictLock.schema())):
        raise UsageError(f"{path}: it is no report of the version {expected}, but {schema!r} - {HOW}")
    try:
        if schema == expected:  # the JSON of a report becomes that of a lock file, in which findings may come twice
            found, models = plain["findings"], []
            for each in plain["models"]:
                own = [finding for finding in found if finding["model"] == each["model"]]
                models.append({**each["sections"][VERDICT.name], "model": each["model"], "findings": own})
            plain = {"models": models, "fit": [finding for finding in found if finding["model"] == ""]}
        return Baseline(str(path), convert(plain, VerdictLock))
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: it has no verdict, or is no whole report - {HOW}") from error
