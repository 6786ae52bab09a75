"""The kinds of block that make up a result, which every renderer handles, and the lines that a report begins with."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

PEAK = "@peak:"  # before the number of a model on a page: its peak memory, which the page finds by running its plan
MOST_COLUMNS = 200  # of more points, each column has the highest of some
ROWS, WIDTH = 8, 80
MARK = 2  # columns of the mark that a line begins with
Line = tuple[str, Literal["plain", "note", "warning", "command"]]


class Formula(Struct, frozen=True):
    """A number that follows from the sizes of the input dims: a page computes it anew where its reader sets others."""

    text: str  # how it is shown
    value: int | None  # the number at the sizes that are shown; None if it is not known
    expression: str  # in the input dims, or `PEAK`; "" if there is none that could be read
    # `B` for bytes, `,` for a number that is told in full; for a part of a whole, `%` for its share, `/` for the
    # quotient, `ratio` for that with two decimals
    unit: Literal["", "B", ",", "%", "/", "ratio"] = ""
    whole: str = ""  # the whole, as an expression
    over: tuple[str, int] | None = None  # a symbol and its size, where the number is told at another size of it
    # the number of its model on a page of several, where the number stands outside of what is about that
    model: int | None = None


class Sentence(str):
    """A text with numbers in it that a page computes anew; to all else it is that text.

    Example:
        >>> Sentence.of("It has ", Formula("3", 3, "batch"), " rows.")
        'It has 3 rows.'
    """

    parts: tuple[str | Formula, ...]

    @classmethod
    def of(cls, *parts: str | Formula) -> Sentence:
        """Join texts and numbers."""
        made = cls("".join(part if isinstance(part, str) else part.text for part in parts))
        made.parts = parts
        return made

    def and_then(self, text: str) -> Sentence:
        """Return it with a text after it."""
        return Sentence.of(*self.parts, text)


class Shortened(str):
    """A text that is the beginning of another one, which CSV has whole."""

    whole: str

    @classmethod
    def of(cls, text: str, whole: str) -> Shortened:
        """Return a text that stands for a longer one."""
        made = cls(text)
        made.whole = whole
        return made


class Link(Struct, frozen=True):
    """A text that leads to another page."""

    text: str
    address: str  # the address of the page, quoted, absolute or from the page that the text is on


Cell = str | int | float | Formula | Link | None


class Heading(Struct, frozen=True):
    """A heading inside a result; an inner one is of a part of what is under the last one that is not.

    What is under a main one is what the result is about, which a screen shows, and not a line of that. An address on a
    page ends with its place, or with its text where that is "".
    """

    text: str
    is_inner: bool = False
    is_main: bool = False
    place: str = ""


class Prose(Struct, frozen=True):
    """A paragraph; a warning stands out, and `sizes` are those at which a page shows its numbers at first."""

    text: str
    tone: Literal["plain", "warning", "sizes"] = "plain"


class Column(Struct, frozen=True):
    """A column."""

    name: str
    # `code` for names and expressions, `number` for cells aligned to the right, `note` for cells that a terminal, to
    # save width, prints beneath the first `code` cell of the row
    kind: Literal["text", "code", "number", "note"] = "text"


class Table(Struct, frozen=True):
    """Rows of cells; integers get thousands separators, and None is an empty cell. Marked rows have a colour."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    marked: Collection[int] = ()


def table(headings: str, rows: Sequence[Sequence[Cell]], title: str = "") -> Table:
    """Return a table whose columns are named in one text, each with its kind unless that is `text`.

    Example:
        >>> table("Op | Count:number", [("Add", 2)]).columns
        (Column(name='Op', kind='text'), Column(name='Count', kind='number'))
    """
    parts = (heading.partition(":") for heading in headings.split(" | "))
    return Table(tuple(Column(name, kind or "text") for name, _, kind in parts), rows, title)  # type: ignore[arg-type]


def table_of(headings: str, items: Iterable[object], title: str = "") -> Table:
    """Return a table with a row for each item, whose attributes are its cells.

    Each heading may be followed by its kind, as in `table`, and after = by the attribute that it shows, if that is not
    called as the heading is. A number that a page computes anew has a method `cell`; dims are told as a list.

    Example:
        >>> table_of("Heading:code=text | Is inner", [Heading("Add")]).rows
        [('Add', False)]
    """
    parts = [heading.partition("=") for heading in headings.split(" | ")]
    names = [name or heading.partition(":")[0].lower().replace(" ", "_") for heading, _, name in parts]
    rows = [tuple(_cell_of(getattr(item, name)) for name in names) for item in items]
    return table(" | ".join(heading for heading, _, _ in parts), rows, title)


def _cell_of(value: object) -> Cell:
    if isinstance(value, tuple):
        return f"[{', '.join('?' if dim is None else str(dim) for dim in value)}]"
    return value.cell() if hasattr(value, "cell") else value  # type: ignore[return-value]


class Picture(Struct, frozen=True):
    """A chart that the script of a page draws from data, as `page/figures.mjs` reads it; only pages have it."""

    title: str
    data: Mapping[str, object]


def treemap(title: str, unit: str, parts: Iterable[tuple[str, int, str]]) -> Picture:
    """Return boxes in boxes for the parts of a whole: the path of each, `model/layers.0/mlp`, value and expression."""
    paths: dict[tuple[str, int], list[str]] = {}
    for path, value, expression in parts:
        if value > 0:
            paths.setdefault((expression, value), []).append(path)
    return Picture(title, {"kind": "treemap", "unit": unit, "parts": [[*key, each] for key, each in paths.items()]})


def columns(
    title: str,
    axis: str,
    points: Sequence[tuple[str, float, int | None, bool]],
    unit: Literal["", "B"] = "",
    *,
    is_logarithmic: bool = False,
    is_memory: bool = False,
) -> Picture:
    """Return a column for each point: its name, its value, the number of its node, and whether it stands out.

    The script finds the memory of activations at other sizes by running its plan.
    """
    size = max(1, -(-len(points) // MOST_COLUMNS))
    neighbours = (points[start : start + size] for start in range(0, len(points), size))
    highest = [max(some, key=lambda point: (point[3], point[1])) for some in neighbours]
    shown = highest if any(value > 0 for _, value, _, _ in highest) else []
    kind = {"kind": "columns", "isLogarithmic": is_logarithmic, "isMemory": is_memory}
    return Picture(title, {**kind, "axis": axis, "unit": unit, "points": shown})


def line(title: str, axis: str, points: Sequence[tuple[str, int, int]], here: tuple[str, str] | None) -> Picture:
    """Return a line of bytes: the name of each point, its place along the line, and its value there.

    The script marks the place `here`, which with its value is an expression in the input dims.
    """
    shown = points if any(value > 0 for *_, value in points) else []
    return Picture(title, {"kind": "line", "axis": axis, "unit": "B", "points": shown, "here": here})


class Drawing(Struct, frozen=True):
    """A directed graph: (id, label, role) nodes and (from, to) edges; a role is a kind of node, for its colour."""

    title: str
    nodes: Sequence[tuple[str, str, str]]
    edges: Sequence[tuple[str, str]]


class Lines(Struct, frozen=True):
    """Lines beneath each other: (text, role). A warning stands out, a note does not; a command is to be copied."""

    rows: Sequence[Line]


class NodeMark(Struct, frozen=True):
    """A statement about a node, which the drawing of its model on a page shows as a colour."""

    colour: str  # the choice of colours that it is one of: `Findings`
    meaning: str  # the meaning of the colour, for the key: `fault`
    tone: Literal["fault", "doubt", "fine", ""]  # how bad that is; "" where no colour is worse than another
    node: str  # the path of the node
    text: str = ""  # the statement, "" where the meaning says it


Block = Heading | Prose | Table | Picture | Drawing | Lines


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
    if isinstance(cell, Formula):
        return cell.text
    if isinstance(cell, Link):
        return printable(cell.text)
    return f"{cell:,.3g}" if isinstance(cell, float) else printable(cell)


def cut(text: str, width: int = WIDTH - MARK) -> str:
    """Return a text, or as many words of it as fit into one line."""
    if len(text) <= width:
        return text
    return textwrap.shorten(text, max(width, 10), placeholder=" ...", break_on_hyphens=False)


def rows(text: str) -> int:
    """Return how many rows of a terminal a line takes, with the mark that it begins with."""
    return len(textwrap.wrap(text, WIDTH - MARK, break_on_hyphens=False)) or 1


def outcome(done: Sequence[str], faults: Sequence[str]) -> Lines:
    """Return the actions done and what is proven, in whole sentences, and the first faults, each in one line."""
    lines: list[Line] = [(text, "plain") for text in done]
    room = max(ROWS - sum(rows(text) for text, _ in lines), 1)
    shown = faults if len(faults) <= room else faults[: room - 1]
    lines += [(cut(text), "warning") for text in shown]
    if len(shown) < len(faults):
        lines.append((f"and {len(faults) - len(shown):,} more", "warning"))
    return Lines(tuple(lines))


def size_cell(number: int, unit: Literal["", "B"] = "") -> Formula:
    """Return a number in short, which CSV has in full; no size changes it."""
    return Formula(size_text(number, unit), number, str(number), unit)


def size_text(number: int, unit: str = "") -> str:
    """Return a number in units of a thousand, a million and so on: `117.9 MB`, `29.4 M`."""
    for power, prefix in ((4, "T"), (3, "G" if unit else "B"), (2, "M"), (1, "k")):
        if number >= 1000**power:
            return f"{number / 1000**power:,.1f} {prefix}{unit}"
    return f"{number:,}{f' {unit}' if unit else ''}"
