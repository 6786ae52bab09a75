"""Texts by name that differ, cut where they are long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphkit.graph.view import as_text
from graphkit.matching.change import Change

__all__ = ["changed_entries", "props", "shortened"]

SHORT = 160  # characters of a text


def changed_entries(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of two mappings of texts by name."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(name, shortened(before.get(name)), shortened(after.get(name)))


def props(entries: Any) -> dict[str, str]:
    """Return key and value of entries of a message."""
    return {as_text(entry.key): as_text(entry.value) for entry in entries}


def shortened(text: str | None) -> str | None:
    """Return a text, or its beginning and how long it is."""
    if text is None or len(text) <= SHORT:
        return text
    return f"{text[:SHORT]}... ({len(text):,} characters)"
