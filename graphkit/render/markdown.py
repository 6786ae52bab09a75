"""Results as GitHub-flavoured Markdown; drawings become Mermaid, and bar charts are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphkit.render.document_blocks import (
    Block,
    Column,
    Document,
    Drawing,
    Heading,
    Lines,
    Prose,
    Table,
    cell_text,
    filled_columns,
    printable,
)

# beginnings of a heading, a list, a line or an underlined heading; not -5 and 39.52
STARTS = re.compile(r"^( *)(#(?=#{0,5}(?:\s|$))|[+-](?=\s|$)|-(?=[- ]*$)|=(?==*\s*$)|\d{1,9}(?=[.)](?:\s|$)))")


def as_markdown(result: Document, level: int = 1) -> str:
    """Return a result as Markdown, with a title of the given level."""
    parts = [f"{'#' * level} {escape_markdown(result.heading())}"]
    for block in result.blocks():
        parts += _block_lines(block, level)
    return "\n\n".join(parts) + "\n"


def _block_lines(block: Block, level: int) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"{'#' * (level + 1 + block.is_inner)} {escape_markdown(block.text)}"
    elif isinstance(block, Prose):
        yield f"{'> **Warning:** ' if block.tone == 'warning' else ''}{escape_markdown(block.text)}"
    elif isinstance(block, Lines):
        yield from _list_lines(block)
    elif isinstance(block, Table):
        yield _table_text(block)
    elif isinstance(block, Drawing):
        yield f"{escape_markdown(block.title)}\n\n```mermaid\n{as_mermaid(block)}```"


def _list_lines(block: Lines) -> Iterator[str]:
    """Yield lines as a list, and the commands among them as a block of code."""
    signs = {"warning": "**Warning:** ", "note": "", "plain": ""}
    shown = [f"- {signs[role]}{escape_markdown(text)}" for text, role in block.rows if role != "command"]
    commands = [printable(text) for text, role in block.rows if role == "command"]
    if shown:
        yield "\n".join(shown)
    if commands:
        fence = _code_fence("\n".join(commands), 3)
        yield "\n".join([f"{fence}sh", *commands, fence])


def escape_markdown(text: str) -> str:
    """Return text in which Markdown and HTML see nothing to interpret, also where it starts a paragraph."""
    plain = re.sub(r"^ {4,}", "   ", printable(text)).replace("&", "&amp;")
    plain = re.sub(r"([\\`*<>|~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])[(:\[])", r"\\\1", plain)
    return STARTS.sub(lambda start: start[1] + (f"{start[2]}\\" if start[2].isdigit() else f"\\{start[2]}"), plain)


def _cell_text(text: str, column: Column) -> str:
    if column.kind != "code" or not text:
        return escape_markdown(text)
    fence = _code_fence(text)
    pad = " " if "`" in text else ""
    text = text.replace("|", "\\|")
    return f"{fence}{pad}{text}{pad}{fence}"


def _code_fence(text: str, least: int = 1) -> str:
    """Return backticks that stand around a text, more than there are in a row in it."""
    return "`" * max(least, max((len(run) for run in re.findall("`+", text)), default=0) + 1)


def _table_text(block: Table) -> str:
    lines = [f"**{escape_markdown(block.title)}**\n"] if block.title else []
    columns = filled_columns(block)
    lines.append("| " + " | ".join(escape_markdown(block.columns[at].name) for at in columns) + " |")
    lines.append("|" + "|".join("---:" if block.columns[at].kind == "number" else "---" for at in columns) + "|")
    for row in block.rows:
        cells = (_cell_text(cell_text(row[at]), block.columns[at]) for at in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_mermaid(drawing: Drawing) -> str:
    """Return a drawing as a Mermaid flowchart."""
    ids = {node: f"n{number}" for number, (node, _, _) in enumerate(drawing.nodes)}
    lines = ["flowchart TD"]
    for node, label, _ in drawing.nodes:
        safe = printable(label).replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
        lines.append(f'    {ids[node]}["{safe}"]')
    lines += [f"    {ids[start]} --> {ids[end]}" for start, end in drawing.edges]
    return "\n".join(lines) + "\n"
