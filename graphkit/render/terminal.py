"""Results as text for a terminal, by rich: without markup in names, and folded rather than clipped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from graphkit.render.blocks import Bars, Block, Drawing, Heading, Prose, Table, cell_text, printable

if TYPE_CHECKING:
    from graphkit.render.result import Result

__all__ = ["renderable", "text"]

BAR_WIDTH = 30
BLOCK_BAR = "█"


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
        yield _table(block)
        yield Text("")
    elif isinstance(block, Bars):
        yield _bars(block)
        yield Text("")
    elif isinstance(block, Drawing):
        return  # a picture: Markdown and HTML draw it


def _table(block: Table) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left")
    if block.title:
        table.title = Text(printable(block.title), style="italic")
    for column in block.columns:
        number = column.kind == "number"
        table.add_column(
            column.name, justify="right" if number else "left", no_wrap=number, overflow="fold", header_style="bold"
        )
    for row in block.rows:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    return table


def _bars(block: Bars) -> RichTable:
    table = RichTable(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.title = Text(printable(block.title), style="italic")
    table.add_column(overflow="fold", max_width=30)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    top = max((max(values) for _, values in block.rows), default=0)
    for label, values in block.rows:
        for number, value in enumerate(values):
            bar = BLOCK_BAR * max(round(BAR_WIDTH * value / top) if top else 0, 1 if value else 0)
            table.add_row(Text(printable(label) if not number else ""), f"{value:,}", bar)
    return table
