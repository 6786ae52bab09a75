"""Blockers: the nodes that a target does not take, why, and which pass removes each; and those unknown to all sources.

Nodes that compute from constants and shapes alone, or change nothing, are told apart: folding removes them once the
dims are numbers. A node in the body of an If, Loop or Scan that stays on the CPU stays there with it.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct
from onnx import defs

from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.node_costs import count_macs
from graphkit.analysis.target_lint import CAUSES, INPUT_DIMS, UNSAID, Cause, Lint, Obstacle
from graphkit.errors import count_things
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import by_family, group_pairs
from graphkit.graph.view import Node, Scope, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, NodeMark, Prose, table
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, const, infer
from graphkit.symbolic.expr import TooComplexError
from graphkit.targets import Target, load_target

SHOWN = 5  # nodes of one group, in a text
NO_REWRITE = "no rewrite known"
FREEZABLE: tuple[Cause, str] = ("dynamic shape", INPUT_DIMS)
Group = tuple[Cause, str, str, str | None]


class Share(Struct, frozen=True):
    """The part of a model that stays on the CPU."""

    nodes: int  # nodes that stay there
    macs: str  # their multiply-accumulates: a number, an expression in the input dims, or "?" where it is too large
    part: float | None  # their part of all multiply-accumulates, None where it depends on the dims or there are none


@dataclass(frozen=True)
class Blockers(Judged):
    """The nodes and dtypes that keep a model from a target.

    Attributes:
        target: Name of the target.
        dims: The input dims that were given, by symbol or input.
        nodes: Nodes that are linted, without constants and nodes that folding removes.
        folded: Nodes that folding removes.
        blockers: Obstacles of nodes, in file order; the opset, which is no node's, first.
        unknown: Facts about nodes that no source states or no shape decides.
        macs: Multiply-accumulates of all nodes, as in `Share`.
        uncounted: Paths of nodes whose multiply-accumulates are not known.
        as_is: The share on the CPU of the model as it is.
        frozen: The share there once the dims are frozen and shape arithmetic is folded.
        max_opset: The newest opset that the target takes, None where no source says.
    """

    title: ClassVar[str] = "Blockers"
    target: str
    dims: str
    nodes: int
    folded: int
    blockers: tuple[Obstacle, ...]
    unknown: tuple[Obstacle, ...]
    macs: str
    uncounted: tuple[str, ...]
    as_is: Share
    frozen: Share
    max_opset: int | None = field(default=None, metadata={"in_json": False})

    @property
    def open_nodes(self) -> int:
        """Of how many nodes something is not known."""
        return count_nodes(self.unknown)

    def heading(self) -> str:
        return f"{self.title} for {self.target}{f' at {self.dims}' if self.dims else ''}"

    def found(self) -> tuple[Finding, ...]:
        groups: Counter[tuple[str, str]] = Counter()
        for (kind, what, _, _), rows in _group_obstacles(self.blockers).items():
            groups[kind, what] += len(rows)
        findings = []
        for (cause, what), count in groups.items():
            shown = "dynamic dims" if (cause, what) == FREEZABLE else what
            refused = what if cause == "opset" else f"{count_things(count, 'node(s)')}: {shown}"
            text = f"{self.target} refuses {refused}"
            key = f"{self.target}: {cause} {what}"
            findings.append(Finding("blockers", f"{shown} ({count:,})", text, key, count))
        return tuple(findings)

    def marks(self) -> Iterator[NodeMark]:
        colour = f"Blockers for {self.target}"
        for each in self.blockers:
            yield NodeMark(colour, "refused", "fault", each.path, f"{each.what}: {each.reason}")
        for each in self.unknown:
            yield NodeMark(colour, "not known", "doubt", each.path, f"{each.what}: {each.reason}")

    def blocks(self) -> Iterator[Block]:
        nodes = count_things(self.nodes, "node(s)")
        open_ = f"; of {count_things(self.open_nodes, 'node(s)')} it is not known" if self.unknown else ""
        none = f"0 blockers: nothing is known that keeps {self.target} from any of {nodes}{open_}."
        some = f"{self.target} does not take {self.as_is.nodes:,} of {nodes}."
        yield Prose(some if self.blockers else none, "warning" if self.blockers else "plain")
        if self.folded:
            more = f"{self.folded:,} more node{' computes' if self.folded == 1 else 's compute'}"
            yield Prose(
                f"{more} from constants and shapes alone, or nothing: folding removes them once dims are numbers."
            )
        if self.nodes:
            shares = {"as it is": self.as_is, "dims frozen, shapes folded": self.frozen}
            rows = []
            for name, share in list(shares.items())[: 1 + (self.frozen != self.as_is)]:
                macs = f"{int(share.macs):,}" if share.macs.isdecimal() else "depends on dims"
                parts = _percent_text(share.nodes / self.nodes), _percent_text(share.part)
                rows.append((name, share.nodes, parts[0], macs, parts[1]))
            yield table("Stays on the CPU | Nodes:number | Of all:number | MACs:number | Of all:number", rows)
        if self.uncounted:
            nodes = count_things(len(self.uncounted), "node(s)")
            yield Prose(f"The multiply-accumulates of {nodes} are not known, such as {self.uncounted[0]}.")
        yield from _obstacle_tables(self.blockers, "What it does not take", "Pass that removes it")
        silent = Counter(f"{each.cause} {each.what}" for each in self.unknown if each.reason == UNSAID)
        if silent:
            counts = ", ".join(f"{what} ({count:,})" for what, count in silent.most_common())
            yield Prose(f"No source says whether {self.target} takes these: {counts}.")
        told = [each for each in self.unknown if each.reason != UNSAID]
        yield from _obstacle_tables(told, "What it takes in part, and no shape tells which", "")


def count_nodes(obstacles: Iterable[Obstacle]) -> int:
    """Return of how many nodes these are: one may have several."""
    return len({(obstacle.scope, obstacle.node) for obstacle in obstacles})


def blockers(
    model: ModelLike,
    target: Target | str | os.PathLike[str],
    spec: DimSpec = AS_DECLARED,
    *,
    shapes: Shapes | None = None,
    passed: Collection[str] = (),
) -> Blockers:
    """Return the nodes and dtypes that keep a model from a target, and the passes that remove them.

    Args:
        model: The model, or its path.
        target: The target, or its name or file as `load_target` takes it.
        spec: Sizes of input dims, as if they were frozen.
        shapes: The inferred shapes of the model at these sizes, if they are known already.
        passed: Names of passes that have run already, and so do not remove what is left.

    Raises:
        UsageError: There is no such target, the model has no such symbol or input, or the sizes contradict each other.

    Example:
        >>> graphkit.blockers("example:causal-attention", "ethos-u85").target
        'ethos-u85'
    """
    model = as_model(model)
    target = target if isinstance(target, Target) else load_target(target)
    shapes = shapes or infer(model, spec)
    lint, folded, unknown, found = Lint(target, shapes, passed), 0, list[Obstacle](), dict[Node, tuple[Obstacle, ...]]()
    for node, folds in _walk_linted(shapes.model.graph, lint):
        if folds:
            folded += 1 + sum(len(inner.nodes) for body in node.bodies.values() for inner in body.walk())
        else:
            found[node], more = lint.obstacles(node)
            unknown += more
    counts = {node: count_macs(node, shapes) for node in found}
    total = _sum_counts(counts.values())
    kept = {node for node, obstacles in found.items() if any((o.cause, o.what) != FREEZABLE for o in obstacles)}
    sizes = [f"{name}={size}" for name, size in spec.dims]
    sizes += [f"{name}={'x'.join(map(str, shape))}" for name, shape in spec.inputs]
    return Blockers(
        target=target.name,
        dims=", ".join(sizes),
        nodes=len(found),
        folded=folded,
        blockers=(*_opset_obstacles(target, shapes.model), *itertools.chain.from_iterable(found.values())),
        unknown=tuple(unknown),
        macs=_count_text(total),
        uncounted=tuple(node.path for node, count in counts.items() if count is None),
        as_is=_share_of({node for node, obstacles in found.items() if obstacles}, counts, total),
        frozen=_share_of(kept, counts, total),
        max_opset=target.max_opset.value if target.max_opset is not None else None,
    )


def _walk_linted(scope: Scope, lint: Lint) -> Iterator[tuple[Node, bool]]:
    """Yield each node but constants, and whether folding removes it, with all that is in it."""
    for node in scope.nodes:
        if node.is_op("Constant"):
            continue
        folds = lint.folds(node)
        yield node, folds
        for body in () if folds else node.bodies.values():
            yield from _walk_linted(body, lint)


def _opset_obstacles(target: Target, model: Model) -> Iterator[Obstacle]:
    limit, opset = target.max_opset, model.graph.opset()
    if limit is not None and opset > limit.value:
        used = {node.op_type for node in all_nodes(model.scopes) if not node.domain}
        is_known = all(defs.has(op_type, max_inclusive_version=limit.value) for op_type in used)
        yield Obstacle(
            cause="opset",
            what=f"opset {opset}",
            reason=f"at most {limit.value} ({limit.source.key})",
            pass_name="convert-opset" if is_known else None,
        )


def _share_of(blocked: set[Node], counts: Mapping[Node, Expr | None], total: Expr | None) -> Share:
    """Return the share of blocked nodes and of those in their bodies."""
    inside = {inner for node in blocked for inner in all_nodes(tuple(node.bodies.values()))}
    stays = [node for node in counts if node in blocked or node in inside]
    staying = _sum_counts(counts[node] for node in stays)
    if staying is None or total is None or total == 0:
        part = None
    elif staying == 0 or staying == total:
        part = 0.0 if staying == 0 else 1.0
    else:
        numbers = staying.constant, total.constant
        part = None if numbers[0] is None or numbers[1] is None else numbers[0] / numbers[1]
    return Share(len(stays), _count_text(staying), part)


def _sum_counts(counts: Iterable[Expr | None]) -> Expr | None:
    """Return the sum of the known counts, None where it outgrows an expression."""
    total = const(0)
    try:
        for count in counts:
            total = total if count is None else total + count
    except TooComplexError:
        return None
    return total


def _count_text(count: Expr | None) -> str:
    return "?" if count is None else str(count)


def _percent_text(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.3g} %"


def _group_obstacles(obstacles: Sequence[Obstacle]) -> dict[Group, list[Obstacle]]:
    named = ("operator", "control flow", "function")
    groups = group_pairs(((o.cause, o.what, o.op if o.cause in named else "", o.pass_name), o) for o in obstacles)
    return dict(sorted(groups.items(), key=lambda item: CAUSES.index(item[0][0])))


def _obstacle_tables(obstacles: Sequence[Obstacle], title: str, passes: str) -> Iterator[Block]:
    groups = _group_obstacles(obstacles)
    if not groups:
        return
    yield table(
        f"Cause | What:code | Because:note | Nodes:number{f' | {passes}' if passes else ''}",
        [
            (cause, what, rows[0].reason, len(rows), *([name or NO_REWRITE] if passes else []))
            for (cause, what, _, name), rows in groups.items()
        ],
        title,
    )
    for (cause, what, _, name), rows in groups.items():
        if cause == "opset":
            continue
        shown = by_family((row.path, (row.op, row.rank, row.dtype, shape_text(row.dims))) for row in rows)[:SHOWN]
        cells = [(label, *known) for label, known, _ in shown]
        headings = "Node:code | Op | Rank:number | Dtype | Dims:note"
        yield table(headings, cells, f"{cause}: {what}{f', {name}' if name else ''}")
        if more := len(rows) - sum(count for *_, count in shown):
            yield Prose(f"... and {more:,} more (see the JSON).")
