"""The kinds of block that make up a result; every renderer handles each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Bars", "Block", "Column", "Document", "Drawing", "Heading", "Lines", "Prose", "Table", "printable", "table"]

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading inside a result."""

    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph; a warning stands out."""

    text: str
    tone: Literal["plain", "warning"] = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        kind: `code` for names and expressions, `number` for what is aligned to the right, `note` for what a
            terminal, to save width, prints beneath the first `code` cell of the row.
    """

    name: str
    kind: Literal["text", "code", "number", "note"] = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; integers get thousands separators, and None is an empty cell."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


def table(headings: str, rows: Sequence[Sequence[Cell]], title: str = "") -> Table:
    """Return a table whose columns are named in one text, each with its kind unless that is `text`.

    Example:
        >>> table("Op | Count:number", [("Add", 2)]).columns
        (Column(name='Op', kind='text'), Column(name='Count', kind='number'))
    """
    parts = (heading.partition(":") for heading in headings.split(" | "))
    return Table(tuple(Column(name, kind or "text") for name, _, kind in parts), rows, title)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart: each row has a label, and one value for each series."""

    title: str
    series: Sequence[str]
    rows: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A directed graph: (id, label, role) nodes and (from, to) edges; a role is a kind of node, for its colour."""

    title: str
    nodes: Sequence[tuple[str, str, str]]
    edges: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines beneath each other: (text, role). A warning stands out, a note does not; a command is to be copied."""

    rows: Sequence[tuple[str, Literal["plain", "note", "warning", "command"]]]


Block = Heading | Prose | Table | Bars | Drawing | Lines


class Document(Protocol):
    """A title and blocks: the view of a result that renderers have."""

    def heading(self) -> str:
        """Return the title."""

    def blocks(self) -> Iterable[Block]:
        """Yield the blocks to show, in order."""


def printable(text: str) -> str:
    """Return text with control characters written out, so that a name in a file cannot drive a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def filled_columns(block: Table) -> list[int]:
    """Return the numbers of the columns to show: all but notes that no row has."""
    return [
        at
        for at, column in enumerate(block.columns)
        if column.kind != "note" or any(row[at] not in (None, "") for row in block.rows)
    ]


def cell_text(cell: Cell) -> str:
    """Return a cell as text: 1,234 for an integer, three significant decimals for a float."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.3g}" if isinstance(cell, float) else printable(cell)
