"""Findings: faults of a model, as data; and the one table of their kinds, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import Struct

from graphkit.render.result import Result

PAGES = Path(__file__).parent / "finding_pages"


class Kind(Struct, frozen=True):
    """A kind of finding."""

    name: str  # its name for `graphkit report --fail-on`
    section: str  # the section of a report that shows it; `fit` is the part of a folder's report
    says: str  # the fault, in a clause that a verdict begins with
    is_fault: bool = True  # whether --strict fails on it; else it is a note, because nearly every model has one


# The worst first: models that cannot run, faults in use, refusals of a target, costs of speed, limits.
KINDS: tuple[Kind, ...] = (
    Kind("invalid-graph", "summary", "the graph is not valid"),
    Kind("missing-data", "summary", "weights are missing"),
    Kind("never-runs", "hazards", "fails at all dims"),
    Kind("unloadable", "summary", "onnxruntime does not load it"),
    Kind("merged-if", "control-flow", "merged If crashes or slows runtimes"),
    Kind("zero-length-kv", "kv-cache", "the encoder KV comes back empty"),
    Kind("frozen-past", "interface", "runs only after a past of one length"),
    Kind("lost-write", "interface", "new keys and values are lost"),
    Kind("fit", "fit", "models do not fit together"),
    Kind("frozen-size", "interface", "sizes are those of the exporter's example", is_fault=False),
    Kind("lost-past", "kv-cache", "no output feeds a past input"),
    Kind("wrong-shape", "hazards", "gives a wrong shape without an error"),
    Kind("blockers", "blockers", "the target refuses nodes"),
    Kind("empty-dim", "hazards", "fails where a dim is 0"),
    Kind("declared-dims", "interface", "declared dims contradict the nodes"),
    Kind("unknown-shapes", "unknown-shapes", "shapes not known before a run"),
    Kind("no-mask", "interface", "takes no mask, so padding counts as tokens", is_fault=False),
    Kind("lost-positions", "interface", "positions of a prompt are not read", is_fault=False),
    Kind("shape-chains", "shape-ops", "shapes computed at run time", is_fault=False),
    Kind("stored-twice", "summary", "weights are stored twice", is_fault=False),
    Kind("float16", "float16", "float16 cannot hold constants", is_fault=False),
    Kind("legal-sizes", "hazards", "runs at some sizes only", is_fault=False),
    Kind("size-limit", "hazards", "fails above a size", is_fault=False),
    Kind("dims-apart", "hazards", "fails where dims do not fit together", is_fault=False),
)
KIND_NAMES = tuple(kind.name for kind in KINDS)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a model.

    Attributes:
        kind: Its kind, a name in `KINDS`.
        where: The nodes, tensors or dims that show it, in a few words.
        text: The fault, in a sentence.
        key: An identity among findings of its kind, whatever file it is in and however nodes are numbered.
        count: How many nodes, tensors or outputs it concerns.
        model: The model that it is found in, "" where that goes without saying.
        help: The command that prints the page of its kind.
    """

    kind: str
    where: str
    text: str
    key: str = ""
    count: int = 1
    model: str = ""
    help: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "help", f"graphkit explain {self.kind}")

    @property
    def is_fault(self) -> bool:
        """Whether --strict fails on it."""
        return kind_of(self.kind).is_fault

    def of(self, model: str) -> Finding:
        """Return it as a finding of a model."""
        return replace(self, model=model)

    def __str__(self) -> str:
        return f"{self.model}: {self.text}" if self.model else self.text


@dataclass(frozen=True)
class Judged(Result):
    """A result that may have findings."""

    def found(self) -> tuple[Finding, ...]:
        raise NotImplementedError

    def findings(self) -> tuple[str, ...]:
        return tuple(finding.text for finding in self.found() if finding.is_fault)

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of the findings, each once, the worst first."""
        return tuple(kind for kind, _ in in_order(self.found()))

    def explanations(self) -> dict[str, str]:
        return {kind.says: finding_page(kind.name) for kind in self.kinds()}


def finding_page(kind: str) -> str:
    """Return the page of a kind of finding as Markdown: its meaning, why it hurts, and how to mend it."""
    return (PAGES / f"{kind}.md").read_text(encoding="utf-8")


def kind_of(name: str) -> Kind:
    """Return a kind by its name."""
    return BY_NAME[name]


def kinds_named(name: str) -> tuple[Kind, ...]:
    """Return the kind of a name, or all kinds that a section shows; none for any other name."""
    return tuple(kind for kind in KINDS if name in (kind.name, kind.section))


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, each once, those of the worst kind first."""
    return tuple(finding for _, group in in_order(dict.fromkeys(findings)) for finding in group)


def in_order(findings: Iterable[Finding]) -> list[tuple[Kind, Sequence[Finding]]]:
    """Return findings by kind, the worst first."""
    groups: dict[str, list[Finding]] = {name: [] for name in KIND_NAMES}
    for finding in findings:
        groups[finding.kind].append(finding)
    return [(kind_of(name), group) for name, group in groups.items() if group]
