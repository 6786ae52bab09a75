"""Docstrings for Sphinx: they are Google style with Markdown's backticks, and indented blocks in them are code."""

from __future__ import annotations

import re

__all__ = ["as_restructured_text"]

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|Source):")


def as_restructured_text(
    app: object,  # noqa: ARG001 - the signature is Sphinx's
    what: str,
    name: str,  # noqa: ARG001
    thing: object,  # noqa: ARG001
    options: object,  # noqa: ARG001
    lines: list[str],
) -> None:
    """Mark indented blocks as code, in place, and keep napoleon from taking what stands before a colon for a type.

    Blocks are those behind a line that ends with a colon and an empty one.
    """
    for number, line in enumerate(lines[:-2]):
        is_before_block = line.rstrip().endswith(":") and not lines[number + 1].strip()
        if is_before_block and not SECTION.match(line) and lines[number + 2].startswith(_indent(line) + "    "):
            lines[number] = f"{line.rstrip()}:"
    if what in {"property", "attribute", "data"}:
        lines.insert(0, "")
    if "Returns:" in lines:
        _mark_returns(lines, lines.index("Returns:"))


def _mark_returns(lines: list[str], start: int) -> None:
    """Make the section of what is returned a field, in place, which napoleon leaves as it is."""
    end = next((at for at in range(start + 1, len(lines)) if not lines[at].strip()), len(lines))
    lines[start:end] = [f":returns: {lines[start + 1].strip()}", *lines[start + 2 : end]]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
