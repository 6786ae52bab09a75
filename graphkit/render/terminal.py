"""Results as terminal text, rendered by rich: names are never markup and never broken, and long lines wrap."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from graphkit.render.blocks import Bars, Block, Document, Drawing, Heading, Lines, Prose, Table, cell_text, printable
from graphkit.render.layout import GAP, row_lines, widths_within, wrapped

__all__ = ["Rendered", "text"]

MARKS = {"plain": ("", ""), "note": ("- ", ""), "warning": ("! ", "yellow"), "command": ("$ ", "bold")}
NOTE = 2  # spaces before a note beneath a name


def text(result: Document, width: int = 80, color: bool = False, *, table_width: int | None = None) -> str:
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
        yield from _paragraph(self.result.heading(), options.max_width, "bold")
        for block in self.result.blocks():
            yield from _block(block, options.max_width, self.table_width or options.max_width)


def _block(block: Block, width: int, table_width: int) -> Iterator[Text]:
    if isinstance(block, Heading):
        yield from _paragraph(block.text, width, "bold underline")
    elif isinstance(block, Prose):
        warning = block.tone == "warning"
        yield from _paragraph(f"{'Warning: ' if warning else ''}{block.text}", width, "yellow" if warning else "")
    elif isinstance(block, Lines):
        for words, role in block.rows:
            yield from _marked(words, role, width)
        yield Text("")
    elif isinstance(block, Table):
        if block.title:
            yield from _lines(block.title, width, "italic")
        yield from _table(block, width, table_width)
        yield Text("")
    elif isinstance(block, Bars | Drawing):
        return  # pictures of what a table beside them says: HTML draws both, Markdown drawings


def _paragraph(words: str, width: int, style: str) -> Iterator[Text]:
    yield from _lines(words, width, style)
    yield Text("")


def _lines(words: str, width: int, style: str, indent: int = 0) -> Iterator[Text]:
    for line in wrapped(printable(words), width - indent):
        yield Text(" " * indent).append(line.rstrip(), style)


def _marked(words: str, role: str, width: int) -> Iterator[Text]:
    """Yield a line after its mark, its wrapped rest beneath its first word; a command stays one line, to be copied."""
    mark, style = MARKS[role]
    lines = [printable(words)] if role == "command" else wrapped(printable(words), width - len(mark))
    for number, line in enumerate(lines):
        yield Text(" " * len(mark) if number else mark, style).append(line.rstrip(), style)


def _table(block: Table, width: int, table_width: int) -> Iterator[Text]:
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
                yield from _lines(row[number], width, "dim", indent)
