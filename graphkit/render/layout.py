"""Lay out text in lines: words are never broken, so that every name can be copied, and columns stay in line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

__all__ = ["row_lines", "widths_within", "wrapped"]

GAP = 2  # spaces between columns


def wrapped(text: str, width: int) -> list[str]:
    """Return lines that break at spaces; a word that is wider than the width has a line of its own, whole."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if not lines[-1].strip() or cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def widths_within(columns: Sequence[Sequence[str]], fixed: Sequence[bool], width: int) -> list[int]:
    """Return a width for each column of cells, its head first: as wide as its cells, unless together they are too wide.

    Then the widest column that is not `fixed` becomes narrower, never so narrow that a word of its head breaks.
    """
    widths = [max(map(cell_len, cells)) for cells in columns]
    least = [own if keep else _widest_word(cells[0]) for own, keep, cells in zip(widths, fixed, columns, strict=True)]
    while (excess := sum(widths) + GAP * (len(widths) - 1) - width) > 0:
        wider = sorted((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: -widths[i])
        if not wider:
            break
        next_width = widths[wider[1]] if len(wider) > 1 else 0
        widths[wider[0]] = max(least[wider[0]], widths[wider[0]] - excess, min(next_width, widths[wider[0]] - 1))
    return widths


def row_lines(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], width: int, style: str = ""
) -> Iterator[Text]:
    """Yield the lines of one row; a cell with a word wider than its column is the last on its line."""
    offset = start = 0
    block: list[list[str]] = []
    for number, (cell, own, align) in enumerate(zip(cells, widths, right, strict=True)):
        is_last = number == len(cells) - 1
        overflows = _widest_word(cell) > own
        lines = wrapped(cell, max(own, width - offset) if is_last or overflows else own)
        block.append([f"{' ' * (own - cell_len(line))}{line}" if align else line for line in lines])
        offset += own + GAP
        if overflows or is_last:
            yield from _side_by_side(block, widths[number + 1 - len(block) :], start, style)
            block, start = [], offset


def _side_by_side(block: Sequence[Sequence[str]], widths: Sequence[int], start: int, style: str) -> Iterator[Text]:
    """Yield the lines of cells beside each other, none of them for cells that are all empty."""
    if start and not any(line for cell in block for line in cell):
        return
    for number in range(max(map(len, block))):
        line = Text(" " * start)
        for place, cell in enumerate(block):
            text = cell[number] if number < len(cell) else ""
            pad = widths[place] + GAP - cell_len(text) if place < len(block) - 1 else 0
            line.append(text, style).append(" " * pad)
        line.rstrip()
        yield line


def _widest_word(text: str) -> int:
    return max(map(cell_len, text.split(" ")))
