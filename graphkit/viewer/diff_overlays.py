"""The nodes that differ between two models, laid over the graphs of both."""

from __future__ import annotations

from graphkit.graph.view import Node
from graphkit.model_diff.node_changes import node_changes
from graphkit.model_diff.node_matching import NodeMatching
from graphkit.viewer.explorer_format import NodeDataResult
from graphkit.viewer.overlays import Overlay, colored_text

__all__ = ["diff_overlays"]

REMOVED, ADDED, CHANGED = "#ef9a9a", "#a5d6a7", "#ffe082"


def diff_overlays(matching: NodeMatching) -> tuple[Overlay, Overlay]:
    """Return the nodes of each model that the other one lacks, or has in another way."""
    changes, _ = node_changes(matching)
    texts = {(each.node, each.other): "; ".join(map(str, each.changes)) for each in changes.changed}
    pairs = [
        (pair, texts[paths]) for pair in matching.forth.items() if (paths := (pair[0].path, pair[1].path)) in texts
    ]
    results: tuple[dict[Node, NodeDataResult], dict[Node, NodeDataResult]] = {}, {}
    for (node_a, node_b), text in pairs:
        results[0][node_a] = results[1][node_b] = colored_text(f"changed: {text}", CHANGED)
    for result, nodes, word, color in zip(results, matching.alone, ("removed", "added"), (REMOVED, ADDED), strict=True):
        result.update({node: colored_text(word, color) for node in nodes if not node.is_op("Constant")})
    return Overlay("diff", results[0]), Overlay("diff", results[1])
