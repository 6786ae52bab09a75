"""Where the channels of a tensor are after an operator that only moves elements."""

from __future__ import annotations

from graphkit.graph.view import Node, Value
from graphkit.rewrite.affine import Channels
from graphkit.shapes import Shapes

__all__ = ["moved"]

MOVING = ("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def moved(node: Node, value: Value, channels: Channels, shapes: Shapes) -> Channels | None:
    """Return the channels of a node's output, None where the node does more than move the elements of a tensor."""
    out = node.outputs[0] if len(node.outputs) == 1 else None
    if out is None or not node.is_op(*MOVING) or node.inputs[0] is not value or value in node.inputs[1:]:
        return None
    found = shapes[out]
    if found.dims is None:
        return None
    rank, axis = len(found.dims), channels.axis
    if axis is None or node.is_op("Identity"):
        return Channels(rank, axis, channels.count)
    if node.is_op("Transpose"):
        perm = node.attr("perm", tuple(reversed(range(channels.rank))))
        return Channels(rank, perm.index(axis), channels.count) if perm and axis in perm else None
    keeps_last = node.is_op("Reshape") and axis == channels.rank - 1 and rank > 0 and channels.count > 0
    is_last = keeps_last and found.dims[-1] == channels.count
    return Channels(rank, rank - 1 if is_last else None, channels.count)
