"""Bounds of a Slice: which of them mean "to the end"."""

from __future__ import annotations

__all__ = ["INT32_MAX", "INT64_MAX", "is_to_the_end"]

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


def is_to_the_end(bound: int | None) -> bool:
    """Whether an end lies behind every axis: exporters write INT32_MAX or INT64_MAX, and no dim is that large."""
    return bound is not None and bound >= INT32_MAX
