"""Values that are written in place: who else reads them."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.graph.view import Node, Value

__all__ = ["readers_beside"]


def readers_beside(before: Value, after: Value) -> Iterator[Node]:
    """Yield the nodes that read an input whose memory an output is written to, beside the node that writes it.

    onnxruntime runs nodes that do not depend on each other in any order, so that these read the old or the new content.

    Args:
        before: The input.
        after: The output; its producer writes in place what its first input is.
    """
    writer = after.producer
    for node, index in before.consumers:
        if node is not writer or index != 0:
            yield node
