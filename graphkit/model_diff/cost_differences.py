"""Costs of two models side by side: they follow from other differences, so that they are none of their own."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.analysis.costs.cost_changes import CostChange, cost_change_blocks
from graphkit.render.document_blocks import Block

__all__ = ["cost_blocks", "is_dearer"]


def is_dearer(costs: CostChange) -> bool:
    """Whether B has more bytes, more multiply-accumulates or a higher peak of memory; not where they are not known."""
    a, b = costs.before, costs.after
    if a is None or b is None:
        return False
    pairs = ((a.macs.value, b.macs.value), (a.peak_bytes.value, b.peak_bytes.value), (a.bytes, b.bytes))
    return any(was is not None and now is not None and now > was for was, now in pairs)


def cost_blocks(costs: CostChange) -> Iterator[Block]:
    """Yield the costs of both where they differ, or why they cannot be counted."""
    if costs.unknown or costs.before != costs.after:
        yield from cost_change_blocks([costs], "Costs", ("A", "B"))
