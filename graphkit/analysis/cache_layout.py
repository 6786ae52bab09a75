"""How a tensor of a KV cache is laid out: heads, head dim, layers, the axis that grows, and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.dtypes import BITS
from graphkit.graph.kv import CacheEntry, growing_axis
from graphkit.graph.types import TensorType

__all__ = ["Layout", "cache_layout"]


@dataclass(frozen=True)
class Layout:
    """How one cache tensor is laid out.

    Attributes:
        heads, head_dim: Sizes, None if the shape does not show them.
        axis: The axis that grows with the sequence, None if there is none or it is unknown.
        bytes_per_token: Bytes for one position of one sequence; None if a dim is unknown.
        fixed_bytes: Bytes for one sequence of a tensor that does not grow.
        layers: Layers in this tensor.
    """

    heads: int | None
    head_dim: int | None
    axis: int | None
    bytes_per_token: int | None
    fixed_bytes: int | None
    layers: int = 1


def cache_layout(past: TensorType | None, present: TensorType | None, entry: CacheEntry) -> Layout:
    """Read the layout of a cache tensor from its declared shapes.

    Args:
        past: Type of the input; where there is none, the layout is read from `present`.
        present: Type of the output.
        entry: What the tensor is for.
    """
    declared = past or present
    unknown = Layout(None, None, None, None, None)
    if declared is None or declared.dims is None:
        return unknown
    dims, bits = declared.dims, BITS.get(declared.dtype, 0)
    axis = growing_axis(declared, present if past is not None else None)
    leading = _leading(dims)
    rest = [dim for at, dim in enumerate(dims) if at >= leading and at not in (axis, leading)]
    if any(not isinstance(dim, int) for dim in rest):
        return Layout(None, rest[-1] if rest and isinstance(rest[-1], int) else None, axis, None, None)
    sizes = [dim for dim in [*dims[:leading], *rest] if isinstance(dim, int)]
    size = math.prod(sizes) * bits // 8
    layers = (
        1 if entry.slot.index else _stacked_layers(entry.slot.kind, [d for d in dims[:leading] if isinstance(d, int)])
    )
    if axis is None:
        return Layout(None, None, None, 0, size, layers)
    inner = [dim for dim in rest if isinstance(dim, int)]
    heads, head_dim = (inner[0], inner[1]) if len(inner) == 2 else (None, inner[0] if len(inner) == 1 else None)
    return Layout(heads, head_dim, axis, size, 0, layers)


def _stacked_layers(kind: str, stacked: list[int]) -> int:
    """Return the layers in a tensor of all layers; one that holds keys and values has an axis of 2 for these."""
    if kind == "both" and len(stacked) == 2 and stacked[0] == 2 != stacked[1]:
        return stacked[1]
    return stacked[0] if stacked else 1


def _leading(dims: Sequence[object]) -> int:
    """Return how many axes stand before the batch: a stack of layers, of key and value, or both."""
    extra = len(dims) - 4
    if extra <= 0:
        return 0
    return extra if all(isinstance(dim, int) for dim in dims[:extra]) else 0
