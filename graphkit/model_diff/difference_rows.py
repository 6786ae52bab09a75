"""All differences of a diff as rows of one table, none of them joined or left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphkit.matching.change import Change
from graphkit.model_diff.changes import FindingChange, NodeChanges, ShapeChange, WeightChange

__all__ = ["COLUMNS", "difference_rows"]

COLUMNS = "Section | In A:code | In B:code | Difference | A | B"
Row = tuple[str, str, str, str, str | int | None, str | int | None]


def difference_rows(
    headers: Mapping[str, Sequence[Change]],
    nodes: NodeChanges,
    weights: Sequence[WeightChange],
    shapes: Sequence[ShapeChange],
    findings: Mapping[str, Sequence[FindingChange]],
) -> Iterator[Row]:
    """Yield a row for each difference: its section, its names in both models, what differs, and what both have.

    Args:
        headers: Changes by the section that has them.
        nodes: Those of nodes.
        weights: Those of weights.
        shapes: Those of shapes.
        findings: Changes of findings by the section that has them.
    """
    for section, changes in headers.items():
        for change in changes:
            yield section, change.what, change.what, "", change.before, change.after
    for node in nodes.removed:
        yield "nodes", node.node, "", "removed", node.operator, None
    for node in nodes.added:
        yield "nodes", "", node.node, "added", None, node.operator
    for moved in nodes.moved:
        yield "nodes", moved.node, moved.other, "moved", moved.graph, moved.other_graph
    for pair in nodes.changed:
        for change in pair.changes:
            yield "nodes", pair.node, pair.other, change.what, change.before, change.after
    for weight in weights:
        yield "weights", weight.name, weight.other, weight.kind, weight.before, weight.after
    for shape in shapes:
        yield "shapes", shape.value, shape.other, "follows" if shape.follows else "begins", shape.before, shape.after
    for section, finding_changes in findings.items():
        for finding in finding_changes:
            yield section, finding.text, finding.text, finding.kind, finding.before, finding.after
