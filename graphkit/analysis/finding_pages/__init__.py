"""A page for each kind of finding: its meaning, why it hurts, where it was seen, and how to mend it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["finding_page"]

FOLDER = Path(__file__).parent


def finding_page(kind: str) -> str:
    """Return the page of a kind of finding, a name in `KINDS`, as Markdown."""
    return (FOLDER / f"{kind}.md").read_text(encoding="utf-8")
