"""The lines that a report begins with: at most eight of 80 columns, whatever there is to say."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from graphkit.render.blocks import Lines

__all__ = ["MARK", "ROWS", "WIDTH", "Line", "cut", "outcome", "rows"]

ROWS, WIDTH = 8, 80
MOST = 4  # rows of a sentence
MARK = 2  # columns of the mark that a line begins with
Line = tuple[str, Literal["plain", "note", "warning", "command"]]


def cut(text: str, width: int = WIDTH - MARK) -> str:
    """Return a text, or as many words of it as fit into one line."""
    return text if len(text) <= width else textwrap.shorten(text, max(width, 10), placeholder=" ...")


def rows(text: str) -> int:
    """Return how many rows of a terminal a line takes, with the mark that it begins with."""
    return len(textwrap.wrap(text, WIDTH - MARK, break_on_hyphens=False)) or 1


def outcome(done: Sequence[str], faults: Sequence[str]) -> Lines:
    """Return the actions done, in sentences, and the first faults, each in one line."""
    lines: list[Line] = [(cut(text, MOST * WIDTH), "plain") for text in done]
    room = max(ROWS - sum(rows(text) for text, _ in lines), 1)
    shown = faults if len(faults) <= room else faults[: room - 1]
    lines += [(cut(text), "warning") for text in shown]
    if len(shown) < len(faults):
        lines.append((f"and {len(faults) - len(shown):,} more", "warning"))
    return Lines(tuple(lines))
