"""Counts in sentences: the number of things, and their name in singular or plural."""

from __future__ import annotations

__all__ = ["count_things"]


def count_things(count: int, text: str) -> str:
    """Return a text with its number: `1 node removed` or `3 nodes removed` for "node(s) removed"."""
    return f"{count:,} {text.replace('(s)', '' if count == 1 else 's')}"
