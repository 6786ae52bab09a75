"""The verdict that a report begins with: the kind of the model, its findings, and the commands to run next."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from msgspec import Struct

from graphkit.analysis.architecture import ENCODERS, Architecture
from graphkit.analysis.findings import Finding, Judged, Kind, in_order, worst_first
from graphkit.analysis.kv_cache import KVCache
from graphkit.analysis.model_costs import Costs
from graphkit.analysis.model_interface import frozen_sizes
from graphkit.analysis.node_costs import Quantity
from graphkit.analysis.shape_ops import ShapeOps
from graphkit.analysis.summary import Summary
from graphkit.analysis.typical_sizes import TYPICAL
from graphkit.errors import count_things
from graphkit.graph.dataflow import find_lookups, table_entries
from graphkit.graph.declared_types import Dim, declared_dims
from graphkit.graph.operator_traits import GROUPED, joined_parts
from graphkit.graph.roles import dim_at
from graphkit.io.byte_source import INPUT
from graphkit.io.urls import is_url
from graphkit.model import Model
from graphkit.options import BUNDLED, LOWERED, SOURCE
from graphkit.render.document_blocks import (
    MARK,
    ROWS,
    WIDTH,
    Block,
    Formula,
    Line,
    Lines,
    Sentence,
    cut,
    rows,
    size_text,
)
from graphkit.render.result import Result, Sizes
from graphkit.shapes.constraints.legal_sizes import symbol_roles

if TYPE_CHECKING:
    from graphkit.analysis.architecture import ControlFlow
    from graphkit.analysis.blockers import Blockers
    from graphkit.analysis.hazards import Hazards
    from graphkit.analysis.shape_ops import UnknownShapes

COMMANDS = 3  # at most
LEFT = 3  # rows for findings that commands leave
ANEW = "export it anew"  # what a way out begins with that no command is; where it is for the worst, none is shown
CANNOT_RUN = {"invalid-graph", "never-runs"}  # missing data can be put beside the model
MENDED = "unloadable"  # which fold mends; nothing else runs before
CHECKABLE = {"wrong-shape", "empty-dim"}
ALONE = ("encoder", "vision", "decoder-only")  # roles that `graphkit lower` takes without other models
RECURRENT = ("recurrent decoder", "recurrent")  # roles that `graphkit bundle` takes without other models
DECODERS = ({"merged decoder"}, {"first-step decoder", "decoder with past"})
PAIRS = ("first-step decoder", "decoder-only", "recurrent decoder")  # of which an export without an encoder has two
FETCHING = ("lower", "bundle")
NOT_ON_CPU = {"bfloat16"}  # dtypes in which onnxruntime runs nothing on a CPU
ASKED = {"gelu-to-tanh": "--gelu-to-tanh", "dequantize": "--dequantize"}  # options that are off by default


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
        size = f"{size_text(self.bytes, 'B')}, {size_text(self.parameters)} parameters"
        first = f"{self.is_a[:1].upper()}{self.is_a[1:]}: {size}."
        others = rows(first) + len(in_order(self.faults)) + len(self.commands[:COMMANDS])
        yield verdict_lines(first, self.faults, self.commands, costs=self._costs(2 if others + 2 <= ROWS else 1))

    def _costs(self, room: int) -> Sentence:
        """Return the costs, as many of their sizes as fit into the rows, and the operators that are not counted."""
        peak = _amount_text(self.peak_bytes.as_peak(), "B")
        costs: list[str | Formula] = ["MACs ", _amount_text(self.macs), ", peak of activations ", peak]
        text = Sentence.of(*costs, ".")
        sizes: list[str | Formula] = []
        for count, (name, size) in enumerate(self.sizes, 1):
            sizes += [f"{', ' if sizes else ', for '}{name} ", Formula(f"{size:,}", size, name, ",")]
            more = f" and {len(self.sizes) - count:,} more" if count < len(self.sizes) else ""
            longer = Sentence.of(*costs, *sizes, f"{more}.")
            text = longer if rows(longer) <= room else text
        why = re.sub("^[?][0-9]+[.]", "", self.uncounted)  # without the number of an unknown dim
        return text.and_then(f" {cut(f'Not counted: {why}.')}") if why else text


def _amount_text(quantity: Quantity, unit: Literal["", "B"] = "") -> str | Formula:
    return "unknown" if quantity.uncounted and not quantity.value else quantity.cell(unit)


def verdict_of(model: Model, sections: Mapping[str, Result]) -> Verdict:
    """Return the verdict on a model, from the sections that it rests on."""
    faults = worst_first(finding for each in sections.values() if isinstance(each, Judged) for finding in each.found())
    facts = facts_of(model, sections, faults)
    summary, architecture = facts.summary, facts.architecture
    shape_ops, cache = cast(ShapeOps, sections["shape-ops"]), cast(KVCache, sections["kv-cache"])
    costs, blockers = cast(Costs, sections["costs"]), facts.blockers
    at = f" at {blockers.dims}" if blockers is not None and blockers.dims else ""
    sizes, dims = dict(costs.sizes), list[tuple[str, Dim]]()
    for port in model.graph.inputs:
        dims += ((f"{port.name}.{axis}", dim) for axis, dim in enumerate(declared_dims(port) or ()))
    # sizes of single dims, as `mask.0`, whose symbol has the same size
    alike = {name for name, dim in dims if isinstance(dim, str) and name in sizes and sizes.get(dim) == sizes[name]}
    layers = f", {count_things(architecture.layers, 'layer(s)')}" if architecture.layers else ""
    return Verdict(
        role=architecture.role,
        is_a=architecture.described + layers,
        bytes=summary.bytes,
        parameters=summary.parameters,
        nodes=summary.nodes,
        shape_nodes=shape_ops.on_shapes,
        sizes=Sizes(each for each in costs.sizes if each[0] not in alike),
        macs=costs.macs,
        peak_bytes=costs.peak.bytes,
        uncounted=costs.uncounted,
        kv_bytes_per_token=cache.bytes_per_token if cache.feeds else 0,
        sections=tuple(sections),
        target="" if blockers is None else f"{blockers.target}{at}",
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
        limits = f"; {count_things(len(groups), 'limit(s)')}:" if groups else "."
        about[-1] = about[-1].and_then(f" No faults{limits}")
    ways = ((kind, each.text.rpartition(" - ")[2]) for kind, found in groups for each in found)
    kind, anew = next(((kind, way) for kind, way in ways if way.startswith(ANEW)), (None, ""))
    is_worst = kind is not None and kind.is_fault and kind is groups[0][0]
    kept = list(commands[: 0 if is_worst else COMMANDS])
    taken = sum(map(rows, about))
    if kept and taken + min(len(groups), LEFT) + rows(anew) + len(kept) > ROWS:
        anew = ""  # what can go on is told how
    taken += rows(anew) if anew else 0
    while kept and taken + min(len(groups), LEFT) + len(kept) > ROWS:
        kept.pop()
    lines = _found_lines(groups, ROWS - taken - len(kept))
    lines += [(anew, "note")] if anew else []
    return Lines((*((text, "plain") for text in about), *lines, *((command, "command") for command in kept)))


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
    more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
    room = WIDTH - MARK - len(f"{more} ({kind.section})")
    first = cut(f"{kind.says}: {places[0]}", room)
    if more and len(first) < len(kind.says) + len(places[0]) / 2:  # too little is left of a place that is cut
        return f"{kind.says}: {len(places):,} cases ({kind.section})"
    return f"{first}{more} ({kind.section})"


class Facts(Struct, frozen=True):
    """The facts that the commands for a model depend on."""

    model: Model
    kinds: Collection[str]  # the kinds of its findings
    summary: Summary
    architecture: Architecture
    control: ControlFlow
    hazards: Hazards
    unknown: UnknownShapes
    blockers: Blockers | None  # the obstacles on the target, None without a target
    stem: str = ""  # what the names of outputs begin with, "" for the model's own name

    @property
    def name(self) -> str | None:
        """The model's name in commands, None where no command can name it."""
        label = self.model.label
        return label if self.model.path is not None and label != INPUT and _is_word(label) else None

    @property
    def runs(self) -> bool:
        """Whether onnxruntime can run it, as far as the graph tells; every proof needs that."""
        return self.can_fold and MENDED not in self.kinds

    @property
    def can_fold(self) -> bool:
        dtypes = {row.dtype for row in self.summary.weight_bytes}
        stuck = CANNOT_RUN & set(self.kinds) or self.hazards.undecided
        return not (stuck or self.summary.custom or dtypes & NOT_ON_CPU)

    @property
    def has_slots(self) -> bool:
        """Whether new tokens join each cache as it is, so that slots can take them."""
        roles = self.model.roles
        pasts = [entry.past for entry in roles.cache if not roles.is_cross(entry)]
        readers = [[node for node, _ in past.consumers if not node.is_op("Shape")] if past else [] for past in pasts]
        return bool(pasts) and all(each and all(n.is_op(GROUPED) or joined_parts(n) for n in each) for each in readers)

    def within(self, option: str, default: int) -> tuple[str, ...]:
        """Return an option for a length, where the model fails at the default or has fewer positions."""
        limits = [hazard for hazard in self.hazards.hazards if hazard.kind == "limit"]
        sizes: list[int | None] = []
        for hazard in limits:  # of past and new tokens, those of one alone tell how many fit together
            alone = [dims for dims in hazard.examples if sum(size > 0 for _, size in dims) == 1]
            sizes += [max(size for _, size in dims) - 1 for dims in alone or hazard.examples if dims]
        lookups = (lookup for value in self.model.roles.all("positions") for lookup in find_lookups(value))
        sizes += [table_entries(*lookup) for lookup in lookups]
        most = min((size for size in sizes if size is not None), default=default)
        return (option, str(most)) if 0 < most < default else ()


def facts_of(model: Model, sections: Mapping[str, Result], findings: Sequence[Finding]) -> Facts:
    """Return the facts that the commands depend on, from the sections that the verdict rests on."""
    names = ("summary", "architecture", "control-flow", "hazards", "unknown-shapes", "blockers")
    return Facts(model, {finding.kind for finding in findings}, *(cast("Any", sections.get(name)) for name in names))


def model_steps(facts: Facts) -> tuple[str, ...]:
    """Return the commands to run next on a model, the most useful first."""
    return () if facts.name is None else tuple(_command_steps(facts, facts.name, facts.stem or facts.name))


def _command_steps(facts: Facts, name: str, stem: str) -> Iterator[str]:
    role, refused = facts.architecture.role, facts.blockers.blockers if facts.blockers is not None else ()
    if facts.runs:
        if "merged-if" in facts.kinds:
            if len({merged.condition for merged in facts.control.merged}) == 1:
                yield _command_text("split-merged", name, "-o", _output_name(stem, ".split"))
        elif "blockers" in facts.kinds and role in ALONE:
            yield from _lower_commands(name, stem, [facts])
        elif "shape-chains" in facts.kinds or any(each.pass_name == "sequence-to-split" for each in refused):
            yield _command_text("fold", name, "-o", _output_name(stem, ".folded.onnx"))
        tokens = facts.model.roles.first("tokens")
        if role == "decoder-only" and facts.has_slots and (tokens is None or dim_at(tokens, 1) != 1):
            yield _bundle_command(name, stem, [facts])
        elif role in RECURRENT:
            yield _command_text("bundle", name, "-o", _output_name(stem, ".bundle"))
        if CHECKABLE & set(facts.kinds):
            yield _command_text("report", name, "--only", "hazards", "--check-hazards")
    elif facts.can_fold:
        yield _command_text("fold", name, "-o", _output_name(stem, ".folded.onnx"))
    cause = next(iter(facts.unknown.causes), None)
    if cause is not None and _is_word(cause.name) and not (cause.op == "If" and "merged-if" in facts.kinds):
        yield _command_text("shapes", name, "--why", cause.name)


def folder_steps(models: Sequence[Facts]) -> tuple[str, ...]:
    """Return the commands to run next on a folder of models that fit together."""
    paths = {facts.model.path for facts in models}
    roles = [role for facts in models if (role := facts.architecture.role) != "other"]  # parts beside a decoder
    folder = next((path.parent for path in paths if path is not None), None)
    if folder is None or not _is_word(str(folder)) or paths != set(folder.glob("*.onnx")):
        return ()
    if len(set(roles)) < len(roles) or not all(facts.runs for facts in models):
        return ()
    is_whole = bool(set(ENCODERS) & set(roles)) and any(needed <= set(roles) for needed in DECODERS)
    frozen = [row.about for facts in models for row in frozen_sizes(facts.model).rows]
    if "source" in frozen or (not is_whole and len(set(PAIRS) & set(roles)) < 2):
        return ()
    name = str(folder)
    lowered = _lower_commands(name, name, models) if any("blockers" in facts.kinds for facts in models) else ()
    return (*lowered,) or (_bundle_command(name, name, models),)


def asked_options(blockers: Blockers) -> dict[str, str]:
    """Return the options of `lower` that ask for a pass, by the name of the pass."""
    return {**ASKED, "convert-opset": f"--opset {blockers.max_opset}"}


def _lower_commands(name: str, stem: str, models: Sequence[Facts]) -> Iterator[str]:
    """Yield the command that lowers for a target, where a pass is known for each blocker."""
    targets = [facts.blockers for facts in models if facts.blockers is not None]
    is_split = len(models) > 1 and any("merged-if" in facts.kinds for facts in models)  # before all else
    found = [blocker for target in targets for blocker in target.blockers if not (is_split and blocker.op == "If")]
    passes = {blocker.pass_name for blocker in found}
    if None in passes:
        return
    lengths = [*_length_options(models, "--src-len", "--max-cache-len", LOWERED, LOWERED)]
    asked = [word for name, option in asked_options(targets[0]).items() if name in passes for word in option.split()]
    roles = {symbol: role for facts in models for symbol, role in symbol_roles(facts.model).items()}
    pixels = [f"{symbol}={TYPICAL['space']}" for symbol, role in roles.items() if role == "space"]
    asked += [word for size in pixels for word in ("--dim", size)]
    yield _command_text(
        "lower", name, "-o", _output_name(stem, ".lowered"), "--target", targets[0].target, *lengths, *asked
    )


def _bundle_command(name: str, stem: str, models: Sequence[Facts]) -> str:
    lengths = _length_options(models, "--max-source", "--max-cache", SOURCE, BUNDLED)
    return _command_text("bundle", name, "-o", _output_name(stem, ".bundle"), *lengths)


def _length_options(models: Sequence[Facts], source: str, cache: str, most: int, slots: int) -> Iterator[str]:
    """Yield options for the lengths at which models run that fail at the defaults."""
    for option, default, is_cache in ((source, most, False), (cache, slots, True)):
        options_of = [f.within(option, default) for f in models if bool(f.model.roles.cache) is is_cache]
        yield from min((words for words in options_of if words), key=lambda words: int(words[1]), default=())


def _is_word(name: str) -> bool:
    """Whether a name can be copied from a terminal and is no option."""
    return name.isprintable() and not name.startswith("-")


def _command_text(command: str, name: str, *options: str) -> str:
    """Return a command; those that read all weights of a model on a server fetch it."""
    fetched = ("--download",) if command in FETCHING and is_url(name) else ()
    return shlex.join(("graphkit", command, name, *options, *fetched))


def _output_name(name: str, suffix: str) -> str:
    """Return the name of an output in the current folder that does not exist yet."""
    base = Path(name.removeprefix("example:")).name.removesuffix(".onnx") or Path(name).resolve().name
    names = itertools.chain([base + suffix], (f"{base}-{number}{suffix}" for number in itertools.count(2)))
    return next(free for free in names if not os.path.lexists(free))
