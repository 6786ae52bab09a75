"""Target facts: the known targets, and the facts about one, each with its source and date."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from msgspec import Struct, structs
from onnx.defs import get_all_schemas

from graphkit.dtypes import BITS, dtype_name
from graphkit.graph.names import group_pairs
from graphkit.render.document_blocks import Block, Prose, table, table_of
from graphkit.render.result import Result
from graphkit.targets import ANYTHING, NAMES, Facts, Limit, Target, joint_verdict, load_target, tflite_spellings

Answer = Literal["allowed", "in part", "refused", "unknown"]
LIMITS = {"max_rank": "highest rank", "static_shapes": "static shapes", "max_opset": "newest opset"}
LIMITS |= {"quantized": "quantised only"}
SHOWN_LIMITS = ("max_rank", "static_shapes", "max_opset")  # in the list of targets


class OperatorCounts(Struct, frozen=True):
    """How many operators of ONNX a target takes; `in_part` under conditions."""

    allowed: int
    in_part: int
    refused: int
    unknown: int


class LimitRow(Struct, frozen=True):
    """A limit; the value is "unknown" where no source says it."""

    limit: str
    value: str
    note: str
    source: str


class FactRow(Struct, frozen=True):
    """A fact about operators of ONNX or TFLite, or about dtypes."""

    of: str
    verdict: str  # `allowed`, `refused`, `unknown`, or `as in TFLite`: as that which it becomes there
    names: tuple[str, ...]  # of the operators or dtypes; "all others" for the rest
    note: str = ""  # further words of the source
    condition: str = ""  # under which it is allowed, "" for always
    source: str = ""


class SourceRow(Struct, frozen=True):
    """A source."""

    key: str
    title: str
    url: str
    date: str

    def __str__(self) -> str:
        return f"{self.title}, {self.date}"


@dataclass(frozen=True)
class TargetFacts(Result):
    """The facts about one target."""

    title: ClassVar[str] = "Target"
    name: str
    description: str
    operators: OperatorCounts  # how many operators of ONNX it takes
    limits: tuple[LimitRow, ...]
    facts: tuple[FactRow, ...]
    sources: tuple[SourceRow, ...]

    def heading(self) -> str:
        return f"{self.title} {self.name}"

    def blocks(self) -> Iterator[Block]:
        yield Prose(self.description)
        yield table_of("Limit:code | Value | Source | Note:note", self.limits)
        ops = self.operators
        yield Prose(
            f"Of the operators of ONNX, {ops.allowed:,} are allowed, {ops.in_part:,} allowed under conditions, "
            f"{ops.refused:,} refused, {ops.unknown:,} unknown."
        )
        for of in dict.fromkeys(row.of for row in self.facts):
            rows = [row for row in self.facts if row.of == of]
            cells = [
                (", ".join(r.names), r.verdict, r.source, r.condition and f"only with {r.condition}", r.note)
                for r in rows
            ]
            yield table("Names:code | Is | Source | If:note | Note:note", cells, of)
        yield table_of("Source:code=key | Date | Title:note | Where:note=url", self.sources, "Sources")


@dataclass(frozen=True)
class Targets(Result):
    """The targets that ship with graphkit."""

    title: ClassVar[str] = "Targets"
    targets: tuple[TargetFacts, ...]

    def blocks(self) -> Iterator[Block]:
        limits = [{row.limit: row.value for row in facts.limits} for facts in self.targets]
        yield table(
            "Target:code | Rank | Static | Opset | Allowed:number | In part:number | Refused:number | Unknown:number",
            [
                (facts.name, *(values[LIMITS[name]] for name in SHOWN_LIMITS), *structs.astuple(facts.operators))
                for facts, values in zip(self.targets, limits, strict=True)
            ],
            title="Limits, and operators of ONNX",
        )
        yield table(
            "Target:code | What it is:note | Sources:note",
            [(facts.name, facts.description, "; ".join(map(str, facts.sources))) for facts in self.targets],
            title="What they are, and where the facts come from",
        )
        yield Prose("`graphkit targets NAME` shows the facts of one; a TOML file of your own works by its path.")


def targets() -> Targets:
    """Return the targets that ship with graphkit."""
    return Targets(tuple(target_facts(load_target(name)) for name in NAMES))


def target_facts(target: Target) -> TargetFacts:
    """Return the facts about a target."""
    spelled = tflite_spellings() if target.tflite is not None else {}
    answers = [_answer_for(target, name) for name in _onnx_operators()]
    used = {row.source for rows in spelled.values() for row in rows}
    return TargetFacts(
        target.name,
        target.description,
        OperatorCounts(*(answers.count(answer) for answer in ("allowed", "in part", "refused", "unknown"))),
        tuple(_limit_row(text, getattr(target, name)) for name, text in LIMITS.items()),
        (*(_joint_facts(target) if target.others else _own_facts(target)),),
        tuple(SourceRow(s.key, s.title, s.url, s.date.isoformat()) for s in (*target.sources, *sorted(used, key=str))),
    )


def _own_facts(target: Target) -> Iterator[FactRow]:
    otherwise = "as in TFLite" if target.tflite is not None else "unknown"
    yield from _fact_rows("Operators of ONNX", target.operators, otherwise)
    if target.tflite is not None:
        yield from _fact_rows("Operators of TFLite", target.tflite)
    yield from _fact_rows("Dtypes of data", target.dtypes)


def _joint_facts(target: Target) -> Iterator[FactRow]:
    """Yield the joint facts of several targets, by those that refuse an operator, whatever the node."""
    for of, names, answer in (
        ("Operators of ONNX", _onnx_operators(), _answer_for),
        (
            "Dtypes of data",
            sorted(map(dtype_name, BITS)),
            lambda part, name: getattr(part.dtype(name), "verdict", "unknown"),
        ),
    ):
        groups = group_pairs(
            (tuple(part.name for part in target.others if answer(part, name) == "refused"), name) for name in names
        )
        for refusing, members in sorted(groups.items()):
            if refusing:
                yield FactRow(of, "refused", tuple(members), f"by {', '.join(refusing)}")
        yield FactRow(of, "as in the others", ("all others",))


def _onnx_operators() -> list[str]:
    return sorted({schema.name for schema in get_all_schemas() if not schema.domain})


def _limit_row(text: str, limit: Limit | None) -> LimitRow:
    if limit is None:
        return LimitRow(text, "unknown", "", "")
    value = limit.value
    shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return LimitRow(text, shown, limit.note, limit.source.key)


def _fact_rows(of: str, facts: Facts, otherwise: str = "unknown") -> Iterator[FactRow]:
    for fact in facts.facts:
        yield FactRow(of, fact.verdict, fact.names, fact.note, fact.conditions, fact.source.key)
    if facts.source is not None:
        yield FactRow(of, facts.otherwise, ("all others",), facts.note, source=facts.source.key)
    else:
        yield FactRow(of, otherwise, ("all others",))


def _answer_for(target: Target, name: str) -> Answer:
    if target.others:
        answers = [_answer_for(part, name) for part in target.others]
        verdict = joint_verdict(["allowed" if answer == "in part" else answer for answer in answers])
        return "in part" if verdict == "allowed" and "in part" in answers else verdict
    if target.tflite is None or name in target.operators:
        fact = target.operators[name]
        if fact is None:
            return "unknown"
        return "in part" if fact.condition != ANYTHING else fact.verdict
    verdicts: set[Answer] = set()
    for spelling in tflite_spellings().get(name, ()):
        facts = [target.tflite[operator] for operator in spelling.becomes]
        each: set[Answer] = {"unknown" if fact is None else fact.verdict for fact in facts}
        verdicts.add("refused" if "refused" in each else "unknown" if "unknown" in each else "allowed")
    if len(verdicts) > 1:
        return "in part"
    return verdicts.pop() if verdicts else "unknown"
