"""Results as terminal text, rendered by rich: names are never markup and never broken, and columns stay in line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from graphkit.render.document_blocks import Block, Document, Heading, Lines, Prose, Table, cell_text, printable

MARKS = {"plain": ("", ""), "note": ("- ", ""), "warning": ("! ", "yellow"), "command": ("$ ", "bold")}
NOTE = 2  # spaces before a note beneath a name


def as_text(result: Document, width: int = 80, color: bool = False, *, table_width: int | None = None) -> str:
    """Return a result as text; its tables may be wider than its paragraphs."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    Rendered(result, table_width).print_on(console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@dataclass(frozen=True)
class Rendered:
    """A result that rich prints, in the width of the console; a console that folds lines folds long names."""

    result: Document
    table_width: int | None = None

    def print_on(self, console: Console) -> None:
        """Print it with every name whole, also one that is wider than the console."""
        console.print(self, overflow="ignore", crop=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _paragraph_lines(self.result.heading(), options.max_width, "bold")
        for block in self.result.blocks():
            yield from block_lines(block, options.max_width, self.table_width or options.max_width)


def block_lines(block: Block, width: int, table_width: int) -> Iterator[Text]:
    """Yield the lines of a block, and an empty one after it."""
    if isinstance(block, Heading):
        yield from _paragraph_lines(block.text, width, "bold underline")
    elif isinstance(block, Prose):
        warning = block.tone == "warning"
        yield from _paragraph_lines(f"{'Warning: ' if warning else ''}{block.text}", width, "yellow" if warning else "")
    elif isinstance(block, Lines):
        for words, role in block.rows:
            yield from _marked_lines(words, role, width)
        yield Text("")
    elif isinstance(block, Table):
        if block.title:
            yield from _wrapped_lines(block.title, width, "italic")
        yield from _table_lines(block, width, table_width)
        yield Text("")
    # the others are pictures of a table beside them: a page has all, Markdown drawings


def _paragraph_lines(words: str, width: int, style: str) -> Iterator[Text]:
    yield from _wrapped_lines(words, width, style)
    yield Text("")


def _wrapped_lines(words: str, width: int, style: str, indent: int = 0) -> Iterator[Text]:
    for line in wrap_text(printable(words), width - indent):
        yield Text(" " * indent).append(line.rstrip(), style)


def _marked_lines(words: str, role: str, width: int) -> Iterator[Text]:
    """Yield a line after its mark, its wrapped rest beneath its first word; a command stays one line, to be copied."""
    mark, style = MARKS[role]
    lines = [printable(words)] if role == "command" else wrap_text(printable(words), width - len(mark))
    for number, line in enumerate(lines):
        yield Text(" " * len(mark) if number else mark, style).append(line.rstrip(), style)


def _table_lines(block: Table, width: int, table_width: int) -> Iterator[Text]:
    shown = [number for number, column in enumerate(block.columns) if column.kind != "note"]
    notes = [number for number, column in enumerate(block.columns) if column.kind == "note"]
    right = [block.columns[number].kind == "number" for number in shown]
    heads = [printable(block.columns[number].name) for number in shown]
    rows = [[cell_text(cell) for cell in row] for row in block.rows]
    columns = [[head, *(row[number] for row in rows)] for head, number in zip(heads, shown, strict=True)]
    widths = widths_within(columns, right, table_width)
    named = next((place for place, number in enumerate(shown) if block.columns[number].kind == "code"), 0)
    indent = sum(widths[:named]) + GAP * named + NOTE
    yield from row_lines(heads, widths, right, table_width, "bold")
    yield Text("─" * min(sum(widths) + GAP * (len(widths) - 1) + 1, table_width))
    for row in rows:
        yield from row_lines([row[number] for number in shown], widths, right, table_width)
        for number in notes:
            if row[number]:
                yield from _wrapped_lines(row[number], width, "dim", indent)


GAP = 2  # spaces between columns


def wrap_text(text: str, width: int) -> list[str]:
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
    least = [
        natural if keep else _widest_word(cells[0]) for natural, keep, cells in zip(widths, fixed, columns, strict=True)
    ]
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
    for number, (cell, column_width, align) in enumerate(zip(cells, widths, right, strict=True)):
        is_last = number == len(cells) - 1
        overflows = _widest_word(cell) > column_width
        lines = wrap_text(cell, max(column_width, width - offset) if is_last or overflows else column_width)
        block.append([f"{' ' * (column_width - cell_len(line))}{line}" if align else line for line in lines])
        offset += column_width + GAP
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
