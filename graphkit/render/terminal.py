"""Results as terminal text, rendered by rich: names are never markup, and long lines wrap."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from graphkit.render.blocks import Bars, Block, Drawing, Heading, Prose, Table, cell_text, printable

if TYPE_CHECKING:
    from graphkit.render.result import Result

__all__ = ["renderable", "text"]


def text(result: Result, width: int = 80, color: bool = False) -> str:
    """Return a result as text."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    console.print(renderable(result))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def renderable(result: Result) -> RenderableType:
    """Return a result as something that rich prints."""
    parts: list[RenderableType] = [Text(printable(result.heading()), style="bold"), Text("")]
    for block in result.blocks():
        parts += _block(block)
    return Group(*parts)


def _block(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Heading):
        yield Text(printable(block.text), style="bold underline")
        yield Text("")
    elif isinstance(block, Prose):
        warning = block.tone == "warning"
        yield Text(("Warning: " if warning else "") + printable(block.text), style="yellow" if warning else "")
        yield Text("")
    elif isinstance(block, Table):
        if block.title:
            yield Text(printable(block.title), style="italic")
        yield _table(block)
        yield Text("")
    elif isinstance(block, Bars | Drawing):
        return  # pictures of what a table beside them says: HTML draws both, Markdown drawings


def _table(block: Table) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in block.columns:
        number = column.kind == "number"
        if column.kind != "note":
            table.add_column(
                column.name, justify="right" if number else "left", no_wrap=number, overflow="fold", header_style="bold"
            )
    for row in block.rows:
        pairs = list(zip(row, block.columns, strict=True))
        notes = [
            Padding(Text(cell_text(cell), style="dim"), (0, 0, 0, 2))
            for cell, column in pairs
            if column.kind == "note" and cell is not None
        ]
        cells: list[RenderableType] = []
        for cell, column in pairs:
            if column.kind == "code" and notes:
                cells.append(Group(Text(cell_text(cell)), *notes))
                notes = []
            elif column.kind != "note":
                cells.append(Text(cell_text(cell)))
        table.add_row(*cells)
    return table
