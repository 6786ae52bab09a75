"""The tables of results as CSV (RFC 4180), with numbers as they are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from graphkit.render.document_blocks import Cell, Column, Formula, Link, Table, cell_text, printable

__all__ = ["csv_text", "plain_columns"]

FORMULA = ("=", "+", "-", "@")  # beginnings of a text that spreadsheets compute
NUMBER = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")  # a text that they read as it is


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
        cells = [row[place] for row in table.rows]
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
                if isinstance(cell, bool | str | Formula | Link):
                    text = printable(cell_text(cell))
                    cells.append(text.replace(",", "") if column.kind == "number" else _safe_text(text))
                else:
                    cells.append(cell)
            writer.writerow(cells)
    return file.getvalue()


def _safe_text(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
