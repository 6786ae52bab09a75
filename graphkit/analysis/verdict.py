"""The verdict that a report begins with: the kind of the model, its findings, and the commands to run next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from graphkit.analysis.architecture import Architecture
from graphkit.analysis.costs.cost_table import Costs, Quantity
from graphkit.analysis.findings import Finding, Judged, Kind, in_order, worst_first
from graphkit.analysis.kv_cache import KVCache
from graphkit.analysis.next_commands import facts_of, model_steps
from graphkit.analysis.shape_ops import ShapeOps
from graphkit.analysis.summary import Summary
from graphkit.graph.names import count_things
from graphkit.model import Model
from graphkit.render.document_blocks import MARK, ROWS, WIDTH, Block, Formula, Line, Lines, Sentence, cut, rows, sized
from graphkit.render.result import Result, Sizes

__all__ = ["Verdict", "verdict_lines", "verdict_of"]

COMMANDS = 3  # at most
LEFT = 3  # rows for findings that commands leave


@dataclass(frozen=True)
class Verdict(Judged):
    """The first lines of a report.

    Attributes:
        role: The role, as in `Architecture`.
        is_a: The kind of model, in words.
        bytes: Bytes of the graph and its weights.
        parameters: Weights, counted.
        nodes, shape_nodes: All nodes, and those that compute shapes.
        sizes: Those of the input dims for which the next two are: given ones, and typical ones.
        macs: Multiply-accumulates.
        peak_bytes: The peak memory of activations.
        uncounted: Why some of these are not counted, "" if all are.
        kv_bytes_per_token: Bytes that each token adds to the KV cache; 0 without one, None where that is unknown.
        sections: The sections that it rests on.
        target: The target that it is for, with the dims that were given; "" for none.
        faults: The findings, the worst first.
        commands: The commands to run next.
    """

    title: ClassVar[str] = "Verdict"
    role: str
    is_a: str
    bytes: int
    parameters: int
    nodes: int
    shape_nodes: int
    sizes: Sizes
    macs: Quantity
    peak_bytes: Quantity
    uncounted: str
    kv_bytes_per_token: int | None
    sections: tuple[str, ...]
    target: str
    faults: tuple[Finding, ...]
    commands: tuple[str, ...]

    def found(self) -> tuple[Finding, ...]:
        return self.faults

    def blocks(self) -> Iterator[Block]:
        size = f"{sized(self.bytes, 'B')}, {sized(self.parameters)} parameters"
        first = f"{self.is_a[:1].upper()}{self.is_a[1:]}: {size}."
        others = rows(first) + len(in_order(self.faults)) + len(self.commands[:COMMANDS])
        yield verdict_lines(first, self.faults, self.commands, costs=self._costs(2 if others + 2 <= ROWS else 1))

    def _costs(self, room: int) -> Sentence:
        """Return the costs, as many of their sizes as fit into the rows, and the operators that are not counted."""
        peak = _amount_text(self.peak_bytes.as_peak(), "B")
        costs: list[str | Formula] = ["MACs ", _amount_text(self.macs), ", peak of activations ", peak]
        text = Sentence.of(*costs, ".")
        for count in range(1, len(self.sizes) + 1):
            more = f" and {len(self.sizes) - count:,} more" if count < len(self.sizes) else ""
            longer = Sentence.of(*costs, ", for ", *_list_sizes(self.sizes[:count]), f"{more}.")
            text = longer if rows(longer) <= room else text
        return text.and_then(f" {cut(f'Not counted: {self.uncounted}.')}") if self.uncounted else text


def _list_sizes(sizes: Sequence[tuple[str, int]]) -> Iterator[str | Formula]:
    for number, (name, size) in enumerate(sizes):
        yield f"{', ' if number else ''}{name} "
        yield Formula(f"{size:,}", size, name, ",")


def _amount_text(quantity: Quantity, unit: Literal["", "B"] = "") -> str | Formula:
    return "unknown" if quantity.uncounted and not quantity.value else quantity.cell(unit)


def verdict_of(model: Model, sections: Mapping[str, Result]) -> Verdict:
    """Return the verdict on a model, from the sections that it rests on."""
    summary, architecture = sections["summary"], sections["architecture"]
    shape_ops, cache, costs = sections["shape-ops"], sections["kv-cache"], sections["costs"]
    assert isinstance(summary, Summary)
    assert isinstance(architecture, Architecture)
    assert isinstance(shape_ops, ShapeOps)
    assert isinstance(cache, KVCache)
    assert isinstance(costs, Costs)
    faults = worst_first(
        finding for section in sections.values() if isinstance(section, Judged) for finding in section.found()
    )
    facts = facts_of(model, sections, faults)
    layers = f", {count_things(architecture.layers, 'layer(s)')}" if architecture.layers else ""
    return Verdict(
        role=architecture.role,
        is_a=architecture.described + layers,
        bytes=summary.bytes,
        parameters=summary.parameters,
        nodes=summary.nodes,
        shape_nodes=shape_ops.on_shapes,
        sizes=costs.sizes,
        macs=costs.macs,
        peak_bytes=costs.peak.bytes,
        uncounted=costs.uncounted,
        kv_bytes_per_token=cache.bytes_per_token if cache.feeds else 0,
        sections=tuple(sections),
        target=facts.target,
        faults=faults,
        commands=model_steps(facts),
    )


def verdict_lines(
    first: str, findings: Iterable[Finding], commands: Sequence[str], costs: Sentence | None = None
) -> Lines:
    """Return a verdict of at most eight lines: the subject, its costs, the findings, the commands to run next.

    Lines have 80 columns. A command is a line however long its paths are, so that these change nothing else.
    """
    groups = in_order(findings)
    about = [Sentence.of(first), costs] if costs else [Sentence.of(first)]
    if not any(kind.is_fault for kind, _ in groups):
        about[-1] = about[-1].and_then(f" {_no_faults(len(groups))}")
    kept, taken = list(commands[:COMMANDS]), sum(map(rows, about))
    while kept and taken + min(len(groups), LEFT) + len(kept) > ROWS:
        kept.pop()
    lines = _found_lines(groups, ROWS - taken - len(kept))
    return Lines((*((text, "plain") for text in about), *lines, *((command, "command") for command in kept)))


def _no_faults(limits: int) -> str:
    return f"No faults; {count_things(limits, 'limit(s)')}:" if limits else "No faults."


def _found_lines(groups: Sequence[tuple[Kind, Sequence[Finding]]], room: int) -> list[Line]:
    """Return a line for each kind of finding, the worst first; the last one names the kinds without a line."""
    shown = groups if len(groups) <= room else groups[: room - 1]
    spare = room - len(shown) - (len(shown) < len(groups))
    lines: list[Line] = []
    for kind, findings in shown:
        text = _finding_line(kind, findings, 1 + min(spare, 1))
        spare -= rows(text) - 1
        lines.append((text, "warning" if kind.is_fault else "note"))
    if hidden := [kind.name for kind, _ in groups[len(shown) :]]:
        lines.append((cut(f"also: {', '.join(hidden)}"), "note"))
    return lines


def _finding_line(kind: Kind, findings: Sequence[Finding], most: int) -> str:
    """Return a kind of finding with as many places as fit into some rows, and the section that shows it."""
    places = [finding.where for finding in findings]
    for count in range(len(places), 0, -1):
        more = f" and {len(places) - count:,} more" if count < len(places) else ""
        text = f"{kind.says}: {', '.join(places[:count])}{more} ({kind.section})"
        if rows(text) <= most:
            return text
    if len(places) > 1 and " " not in places[0]:  # nothing is left of a name that is cut
        return f"{kind.says}: {len(places):,} places ({kind.section})"
    more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
    room = WIDTH - MARK - len(f"{more} ({kind.section})")
    return f"{cut(f'{kind.says}: {places[0]}', room)}{more} ({kind.section})"
