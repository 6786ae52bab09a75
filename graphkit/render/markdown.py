"""Results as GitHub-flavoured Markdown, and their tables as CSV (RFC 4180); drawings become Mermaid."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from graphkit.render.document_blocks import (
    Cell,
    Column,
    Document,
    Drawing,
    Formula,
    Heading,
    Lines,
    Link,
    Prose,
    Shortened,
    Table,
    cell_text,
    filled_columns,
    printable,
)

# beginnings of a heading, a list, a line or an underlined heading; not -5 and 39.52
STARTS = re.compile(r"^( *)(#(?=#{0,5}(?:\s|$))|[+-](?=\s|$)|-(?=[- ]*$)|=(?==*\s*$)|\d{1,9}(?=[.)](?:\s|$)))")
FORMULA = ("=", "+", "-", "@")  # beginnings of a text that spreadsheets compute
AMOUNT = re.compile(r"([+-]?\d[\d,]*(?:\.\d+)?)(?: ?[%x]| ms)?")  # a number, with a unit that a column has throughout
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
NUMBER = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")  # a text that they read as it is


def as_markdown(result: Document) -> str:
    """Return a result as Markdown."""
    parts = [f"# {escape_markdown(result.heading())}"]
    for block in result.blocks():
        if isinstance(block, Heading):
            parts.append(f"{'###' if block.is_inner else '##'} {escape_markdown(block.text)}")
        elif isinstance(block, Prose):
            parts.append(f"{'> **Warning:** ' if block.tone == 'warning' else ''}{escape_markdown(block.text)}")
        elif isinstance(block, Lines):
            signs = {"warning": "**Warning:** ", "note": "", "plain": ""}
            shown = [f"- {signs[role]}{escape_markdown(text)}" for text, role in block.rows if role != "command"]
            parts += ["\n".join(shown)] if shown else []
            if commands := [printable(text) for text, role in block.rows if role == "command"]:
                fence = _code_fence("\n".join(commands), 3)
                parts.append("\n".join([f"{fence}sh", *commands, fence]))
        elif isinstance(block, Table):
            lines = [f"**{escape_markdown(block.title)}**\n"] if block.title else []
            columns = filled_columns(block)
            lines.append("| " + " | ".join(escape_markdown(block.columns[at].name) for at in columns) + " |")
            lines.append(
                "|" + "|".join("---:" if block.columns[at].kind == "number" else "---" for at in columns) + "|"
            )
            for row in block.rows:
                cells = (_cell_text(cell_text(row[at]), block.columns[at]) for at in columns)
                lines.append("| " + " | ".join(cells) + " |")
            parts.append("\n".join(lines))
        elif isinstance(block, Drawing):
            parts.append(f"{escape_markdown(block.title)}\n\n```mermaid\n{as_mermaid(block)}```")
    return "\n\n".join(parts) + "\n"


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
    return "`" * max(least, max((len(run) for run in re.findall("`+", text)), default=0) + 1)


def as_mermaid(drawing: Drawing) -> str:
    """Return a drawing as a Mermaid flowchart."""
    ids = {node: f"n{number}" for number, (node, _, _) in enumerate(drawing.nodes)}
    lines = ["flowchart TD"]
    for node, label, _ in drawing.nodes:
        safe = printable(label).replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
        lines.append(f'    {ids[node]}["{safe}"]')
    lines += [f"    {ids[start]} --> {ids[end]}" for start, end in drawing.edges]
    return "\n".join(lines) + "\n"


def csv_text(tables: Iterable[Table]) -> str:
    """Return tables as CSV, an empty line between those whose columns differ.

    Tables of the same columns are one, which says in its first column which of them a row is from. A text that a
    spreadsheet would take for a formula gets a ' before it.
    """
    by_columns: dict[tuple[Column, ...], list[Table]] = {}
    for table in tables:
        by_columns.setdefault(tuple(table.columns), []).append(table)
    return "\n".join(_tables_as_csv(columns, alike) for columns, alike in by_columns.items())


def plain_columns(table: Table) -> dict[str, list[Cell]]:
    """Return the columns of a table by name: numbers where all of its cells are, else text; None for an empty cell."""
    found = dict[str, list[Cell]]()
    for place, column in enumerate(table.columns):
        cells = [cell.whole if isinstance(cell := row[place], Shortened) else cell for row in table.rows]
        if column.kind == "number":
            cells = [_plain_number(cell) for cell in cells]
        if any(type(cell) is float for cell in cells):  # of which data frames make no column together with integers
            cells = [float(cell) if type(cell) is int else cell for cell in cells]
        if not all(cell is None or type(cell) in (int, float) for cell in cells):
            cells = [None if cell is None else printable(cell_text(cell)) for cell in cells]
        found[column.name] = cells
    return found


def _tables_as_csv(columns: Sequence[Column], tables: Sequence[Table]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    title = ["Table"] if len({table.title for table in tables}) > 1 else []
    writer.writerow([*title, *(column.name for column in columns)])
    for table in tables:
        for row in table.rows:
            cells: list[Cell] = [_safe_text(table.title) for _ in title]
            for cell, column in zip(row, columns, strict=True):
                is_number = column.kind == "number"
                plain = _plain_number(cell) if is_number else cell.whole if isinstance(cell, Shortened) else cell
                if isinstance(plain, bool | str | Formula | Link):
                    text = cell_text(plain)
                    plain = _safe_text(THOUSANDS.sub("", text) if is_number else text)
                cells.append(plain)
            writer.writerow(cells)
    return file.getvalue()


def _plain_number(cell: Cell) -> Cell:
    """Return what a cell says as a number, in full and without a unit, as far as it is one; else the cell."""
    if isinstance(cell, Formula) and cell.value is not None and cell.unit in ("", "B", ","):
        return cell.value
    match = AMOUNT.fullmatch(cell_text(cell)) if isinstance(cell, str | Formula) else None
    if match is None:
        return cell
    text = match[1].replace(",", "")
    return float(text) if "." in text else int(text)


def _safe_text(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
