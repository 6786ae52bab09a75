"""Blockers: the nodes that a target does not take, why, and which pass removes each; and those unknown to all sources.

Nodes that compute from constants and shapes alone, or change nothing, are told apart: folding removes them once the
dims are numbers. A node in the body of an If, Loop or Scan that stays on the CPU stays there with it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from onnx import defs

from graphkit.analysis.costs.operations import count_macs
from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.target_lint import CAUSES, INPUT_DIMS, Cause, Lint, Obstacle
from graphkit.deploy.targets import Target, load_target
from graphkit.graph.declared_types import shape_text
from graphkit.graph.name_families import by_family
from graphkit.graph.view import Node, Scope, all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, const, infer
from graphkit.symbolic.expr import TooComplexError

__all__ = ["Blockers", "Share", "blockers"]

SHOWN = 5  # nodes of one group, in a text
NO_REWRITE = "no rewrite known"
FREEZABLE: tuple[Cause, str] = ("dynamic shape", INPUT_DIMS)


@dataclass(frozen=True)
class Share:
    """The part of a model that stays on the CPU.

    Attributes:
        nodes: Nodes that stay there.
        macs: Their multiply-accumulates: a number, an expression in the input dims, or "?" where it is too large.
        part: Their part of all multiply-accumulates, None where it depends on the dims or there are none.
    """

    nodes: int
    macs: str
    part: float | None


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
        return len({(obstacle.scope, obstacle.node) for obstacle in self.unknown})

    def heading(self) -> str:
        return f"{self.title} for {self.target}{f' at {self.dims}' if self.dims else ''}"

    def found(self) -> tuple[Finding, ...]:
        groups: dict[tuple[str, str], int] = {}
        for (cause, what, _, _), rows in _group_obstacles(self.blockers).items():
            groups[cause, what] = groups.get((cause, what), 0) + len(rows)
        return tuple(self._finding(cause, what, count) for (cause, what), count in groups.items())

    def _finding(self, cause: str, what: str, count: int) -> Finding:
        shown = "dynamic dims" if (cause, what) == FREEZABLE else what
        text = f"{self.target} refuses {what if cause == 'opset' else f'{_nodes_text(count)}: {shown}'}"
        return Finding("blockers", f"{shown} ({count:,})", text, f"{self.target}: {cause} {what}", count)

    def blocks(self) -> Iterator[Block]:
        yield Prose(self._verdict(), "warning" if self.blockers else "plain")
        if self.folded:
            more = f"{self.folded:,} more node{' computes' if self.folded == 1 else 's compute'}"
            yield Prose(
                f"{more} from constants and shapes alone, or nothing: folding removes them once dims are numbers."
            )
        if self.nodes:
            yield self._shares()
        if self.uncounted:
            yield Prose(
                f"The multiply-accumulates of {_nodes_text(len(self.uncounted))} are not known, such as "
                f"{self.uncounted[0]}."
            )
        yield from _obstacle_tables(self.blockers, "What it does not take", "Pass that removes it")
        if self.unknown:
            yield from _obstacle_tables(self.unknown, "What no source says, and no shape tells", "")

    def _verdict(self) -> str:
        if not self.blockers:
            open_ = f"; of {_nodes_text(self.open_nodes)} it is not known" if self.unknown else ""
            nodes = _nodes_text(self.nodes)
            return f"0 blockers: nothing is known that keeps {self.target} from any of {nodes}{open_}."
        return f"{self.target} does not take {self.as_is.nodes:,} of {_nodes_text(self.nodes)}."

    def _shares(self) -> Table:
        rows = [("as it is", self.as_is)]
        if self.as_is != self.frozen:
            rows.append(("dims frozen, shapes folded", self.frozen))
        return table(
            "Stays on the CPU | Nodes:number | Of all:number | MACs:number | Of all:number",
            [
                (
                    name,
                    share.nodes,
                    _percent_text(share.nodes / self.nodes),
                    _macs_text(share.macs),
                    _percent_text(share.part),
                )
                for name, share in rows
            ],
        )


def blockers(
    model: ModelLike,
    target: Target | str | os.PathLike[str],
    spec: DimSpec = AS_DECLARED,
    *,
    shapes: Shapes | None = None,
    passed: Collection[str] = (),
) -> Blockers:
    """Return the nodes and dtypes that keep a model from a target.

    Args:
        model: The model, or its path.
        target: The target, or its name or file as `load_target` takes it.
        spec: Sizes of input dims, as if they were frozen.
        shapes: The inferred shapes of the model at these sizes, if they are known already.
        passed: Names of passes that have run already, and so do not remove what is left.

    Returns:
        The blockers, and the passes that remove them.

    Raises:
        UsageError: There is no such target, the model has no such symbol or input, or the sizes contradict each other.

    Example:
        >>> graphkit.blockers("example:causal-attention", "ethos-u85").target
        'ethos-u85'
    """
    model = as_model(model)
    target = target if isinstance(target, Target) else load_target(target)
    return _Model(target, shapes or infer(model, spec), passed).result(_spec_text(spec))


class _Model:
    """The nodes of a model, each with its obstacles for a target and its multiply-accumulates."""

    def __init__(self, target: Target, shapes: Shapes, passed: Collection[str]) -> None:
        self.target, self.shapes, self.lint = target, shapes, Lint(target, shapes, passed)
        self.folded = 0
        self.linted: list[Node] = []
        self.found: dict[Node, tuple[Obstacle, ...]] = {}
        self.unknown: list[Obstacle] = []
        self._walk(shapes.model.graph)

    def _walk(self, scope: Scope) -> None:
        for node in scope.nodes:
            if node.is_op("Constant"):
                continue
            if self.lint.folds(node):
                self.folded += 1 + sum(len(inner.nodes) for body in node.bodies.values() for inner in body.walk())
                continue
            self.linted.append(node)
            self.found[node], unknown = self.lint.obstacles(node)
            self.unknown += unknown
            for body in node.bodies.values():
                self._walk(body)

    def result(self, dims: str) -> Blockers:
        counts = {node: count_macs(node, self.shapes) for node in self.linted}
        total = _sum_counts(counts.values())
        as_is = self._share({node for node in self.linted if self.found[node]}, counts, total)
        kept = {node for node in self.linted if any((o.cause, o.what) != FREEZABLE for o in self.found[node])}
        return Blockers(
            target=self.target.name,
            dims=dims,
            nodes=len(self.linted),
            folded=self.folded,
            blockers=(*self._opset(), *(obstacle for node in self.linted for obstacle in self.found[node])),
            unknown=tuple(self.unknown),
            macs=_count_text(total),
            uncounted=tuple(node.path for node, count in counts.items() if count is None),
            as_is=as_is,
            frozen=self._share(kept, counts, total),
            max_opset=self.target.max_opset.value if self.target.max_opset is not None else None,
        )

    def _opset(self) -> Iterator[Obstacle]:
        limit, opset = self.target.max_opset, self.shapes.model.graph.opset()
        if limit is not None and opset > limit.value:
            reason = f"at most {limit.value} ({limit.source.key})"
            remedy = "convert-opset" if self._is_known_in(limit.value) else None
            what = f"opset {opset}"
            none = {"scope": "", "node": "", "op": "", "tensor": "", "rank": None, "dtype": "", "dims": None}
            yield Obstacle(cause="opset", what=what, reason=reason, pass_name=remedy, **none)  # type: ignore[arg-type]

    def _is_known_in(self, opset: int) -> bool:
        """Whether an older operator set has all operators of the model."""
        used = {node.op_type for node in all_nodes(self.shapes.model.scopes) if not node.domain}
        return all(defs.has(op_type, max_inclusive_version=opset) for op_type in used)

    def _share(self, blocked: set[Node], counts: Mapping[Node, Expr | None], total: Expr | None) -> Share:
        """Return the share of blocked nodes and of those in their bodies."""
        stays = [node for node in self.linted if node in blocked or self._is_inside(node, blocked)]
        staying = _sum_counts(counts[node] for node in stays)
        return Share(len(stays), _count_text(staying), _share_of(staying, total))

    @staticmethod
    def _is_inside(node: Node, blocked: set[Node]) -> bool:
        owner = node.scope.owner
        while owner is not None:
            if owner in blocked:
                return True
            owner = owner.scope.owner
        return False


def _sum_counts(counts: Iterable[Expr | None]) -> Expr | None:
    """Return the sum of the known counts, None where it outgrows an expression."""
    total = const(0)
    try:
        for count in counts:
            total = total if count is None else total + count
    except TooComplexError:
        return None
    return total


def _share_of(staying: Expr | None, total: Expr | None) -> float | None:
    if staying is None or total is None or total == 0:
        return None
    if staying == 0 or staying == total:
        return 0.0 if staying == 0 else 1.0
    part, whole = staying.constant, total.constant
    return None if part is None or whole is None else part / whole


def _count_text(count: Expr | None) -> str:
    return "?" if count is None else str(count)


def _macs_text(text: str) -> str:
    if text.isdecimal():
        return f"{int(text):,}"
    return "depends on dims"


def _percent_text(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.3g} %"


def _nodes_text(number: int) -> str:
    return f"{number:,} node{'' if number == 1 else 's'}"


def _spec_text(spec: DimSpec) -> str:
    sizes = [f"{name}={size}" for name, size in spec.dims]
    return ", ".join([*sizes, *(f"{name}={'x'.join(map(str, shape))}" for name, shape in spec.inputs)])


Group = tuple[Cause, str, str, str | None]


def _group_obstacles(obstacles: Sequence[Obstacle]) -> dict[Group, list[Obstacle]]:
    """Return obstacles by cause, subject, operator and pass, in the order in which they are met."""
    groups: dict[Group, list[Obstacle]] = {}
    for obstacle in obstacles:
        op = obstacle.op if obstacle.cause in ("operator", "control flow", "function") else ""
        groups.setdefault((obstacle.cause, obstacle.what, op, obstacle.pass_name), []).append(obstacle)
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
