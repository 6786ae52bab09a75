"""Pieces of Markdown that several pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["contents", "prose", "table"]

ACTIVE = re.compile(r"(`[^`]*`)|([\\*_<>\[\]|{}])")


def prose(text: str) -> str:
    """Return a text of which nothing but code between backticks is markup."""
    return ACTIVE.sub(lambda match: match[1] or f"\\{match[2]}", text)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |\n" for line in lines)


def contents(names: Iterable[str]) -> str:
    """Return the list of pages below one, which the bar at the side shows."""
    return "\n```{toctree}\n:hidden:\n\n" + "".join(f"{name}\n" for name in names) + "```\n"
