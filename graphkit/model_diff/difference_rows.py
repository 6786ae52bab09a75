"""All differences of a diff as rows of one table, none of them joined or left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphkit.model_diff.model_diff import ModelDiff

__all__ = ["COLUMNS", "difference_rows"]

COLUMNS = "Section | In A:code | In B:code | Difference | A | B"
Row = tuple[str, str, str, str, str | int | None, str | int | None]


def difference_rows(found: ModelDiff) -> Iterator[Row]:
    """Yield a row for each difference: its section, its names in both models, what differs, and what both have."""
    for section, changes in (("interface", found.interface), ("opsets", found.opsets), ("metadata", found.metadata)):
        for change in changes:
            yield section, change.what, change.what, "", change.before, change.after
    for node in found.nodes.removed:
        yield "nodes", node.node, "", "removed", node.operator, None
    for node in found.nodes.added:
        yield "nodes", "", node.node, "added", None, node.operator
    for pair in found.nodes.changed:
        for change in pair.changes:
            yield "nodes", pair.node, pair.other, change.what, change.before, change.after
    for weight in found.weights:
        yield "weights", weight.name, weight.other, weight.kind, weight.before, weight.after
    for shape in found.shapes:
        yield "shapes", shape.value, shape.other, "follows" if shape.follows else "begins", shape.before, shape.after
    for section, findings in (("findings", found.finding_changes), ("blockers", found.blockers)):
        for finding in findings:
            yield section, finding.text, finding.text, finding.kind, finding.before, finding.after
