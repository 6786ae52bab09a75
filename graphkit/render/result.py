"""Result: the base of everything that an analysis returns.

A subclass is a frozen dataclass of plain values with a `title`. Its fields that are `tabled` are tables, and
`introduction` and `remarks` what is said before and after them; text, Markdown, JSON, CSV, HTML and the notebook's
display follow from these. Where that is not enough, a subclass has `blocks` of its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from graphkit.errors import UsageError
from graphkit.render.document_blocks import Block, Cell, NodeMark, Prose, Table, table, table_of

if TYPE_CHECKING:
    from graphkit.render.terminal import Rendered

SCHEMA = 1  # raised when a field of any result changes its name or meaning
NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclasses.dataclass(frozen=True)
class _Shown:
    """How a field is shown: see `tabled`."""

    headings: str
    cells: Callable[[Any], Sequence[Cell]] | None
    most: int | None
    empty: str

    def blocks(self, rows: Sequence[object], most: int | None) -> Iterator[Block]:
        if rows and self.cells is not None:
            yield table(self.headings, [*map(self.cells, rows[:most])])
        elif rows:
            yield table_of(self.headings, rows[:most])
        if most is not None and len(rows) > most:
            yield Prose(f"... and {len(rows) - most:,} more in the JSON report.")


def tabled(
    headings: str,
    *,
    cells: Callable[[Any], Sequence[Cell]] | None = None,
    most: int | None = None,
    empty: str = "",
) -> Mapping[str, object]:
    """Return the metadata of a field of a result, a tuple of rows, that is shown as a table: its headings as in
    `table_of`.

    With `cells` they are as in `table`, and it gives the cells of a row. `most` says how many rows are shown; JSON and
    CSV have all. `empty` is what the result says where none of its tables has a row.
    """
    return {"table": _Shown(headings, cells, most, empty)}


class Sizes(tuple[tuple[str, int], ...]):
    """Sizes by name, as pairs that can be hashed; JSON has an object."""


def versioned_schema(schema: str) -> str:
    """Return the schema's name and version, with which JSON begins: `report/1`."""
    return f"{schema}/{SCHEMA}"


@dataclasses.dataclass(frozen=True)
class Result:
    """The findings of an analysis, ready to show."""

    title: ClassVar[str]
    computed: ClassVar[tuple[str, ...]] = ()  # names of the properties that JSON has besides the fields

    def heading(self) -> str:
        """The title, with the name of the analysed model if that matters."""
        return self.title

    def page_title(self) -> str:
        """The heading, with the names of the models in it or after it."""
        named = (getattr(self, name, "") for name in ("model", "source", "a", "b"))
        missing = [name for name in named if isinstance(name, str) and name and name not in self.heading()]
        return ": ".join((self.heading(), *([" and ".join(missing)] if missing else [])))

    def introduction(self) -> Iterable[str | Block]:
        """Yield what is said before the tables, in paragraphs."""
        return ()

    def remarks(self) -> Iterable[str | Block]:
        """Yield what is said after them."""
        return ()

    def blocks(self) -> Iterable[Block]:
        """Yield the blocks to show, in order."""
        return self._parts(has_all_rows=False)

    def _parts(self, *, has_all_rows: bool) -> Iterator[Block]:
        """Yield what is said and the tables: where all are empty, what one of them says of that alone."""
        fields = [each for each in dataclasses.fields(self) if "table" in each.metadata]
        tables: list[tuple[_Shown, Sequence[object]]]
        tables = [(each.metadata["table"], getattr(self, each.name)) for each in fields]
        empty = next((shown.empty for shown, _ in tables if shown.empty), "")
        if empty and not any(rows for _, rows in tables):
            yield Prose(empty)
            return
        yield from (Prose(said) if isinstance(said, str) else said for said in self.introduction())
        for shown, rows in tables:
            yield from shown.blocks(rows, len(rows) if has_all_rows else shown.most)
        yield from (Prose(said) if isinstance(said, str) else said for said in self.remarks())

    def in_short(self) -> str:
        """Return what it says in one line, "" where it says that there is nothing: by default its first sentence."""
        first = next(iter(self.blocks()), None)
        text = str(first.text) if isinstance(first, Prose) else ""
        return "" if text.startswith(("None", "No ")) else text.partition(". ")[0].removesuffix(".")

    def csv_tables(self) -> Iterable[Table]:
        """Yield the tables of CSV: those that are shown, with a row for each thing where these have one for many."""
        is_generic = type(self).blocks is Result.blocks
        blocks = self._parts(has_all_rows=True) if is_generic else self.blocks()
        return (block for block in blocks if isinstance(block, Table))

    def graphs(self) -> Sequence[Mapping[str, object]]:
        """Return the graphs that its page can be searched for, as data (see `analysis.page_graph`)."""
        return ()

    def marks(self) -> Iterable[NodeMark]:
        """Yield what the drawing of the model on its page says about nodes."""
        return ()

    def explanations(self) -> Mapping[str, str]:
        """Return the texts that its page explains findings with, by title."""
        return {}

    def findings(self) -> tuple[str, ...]:
        """Return one sentence for each fault; `graphkit report --strict` fails on any."""
        return ()

    @classmethod
    def schema(cls) -> str:
        """The name of the JSON's schema in `graphkit schema`: `fold-report` for a `FoldReport`."""
        return NEW_WORD.sub("-", cls.__name__).lower()

    def to_dict(self) -> dict[str, object]:
        """Return the fields as plain dicts, lists, strings and numbers."""
        plain: dict[str, object] = json.loads(json.dumps(_plain_json(self)))
        return plain

    def document(self) -> dict[str, object]:
        """The fields of the JSON, beside the versions."""
        return self.to_dict()

    def to_json(self) -> str:
        """Return JSON: the versions of graphkit and of the schema, and the document."""
        from graphkit import __version__

        begin = {"graphkit": __version__, "schema": versioned_schema(self.schema())}
        return json.dumps({**begin, **self.document()}, indent=2) + "\n"

    def to_text(self, width: int = 80, color: bool = False) -> str:
        """Return text for a terminal of the given width, with ANSI colours if `color`."""
        from graphkit.render.terminal import as_text

        return as_text(self, width, color)

    def to_markdown(self) -> str:
        """Return GitHub-flavoured Markdown."""
        from graphkit.render.markdown import as_markdown

        return as_markdown(self)

    def to_html(self) -> str:
        """Return one self-contained HTML page."""
        from graphkit.render.html import html_page

        return html_page(self, self.graphs(), self.explanations(), self.page_title())

    def to_csv(self) -> str:
        """Return the tables as CSV, "" where there is none: one after the other, an empty line between them."""
        from graphkit.render.markdown import csv_text

        return csv_text(self.csv_tables())

    def to_dataframe(self) -> Any:
        """Return the first table as a data frame of pandas or polars; UsageError without a table or either of them."""
        from graphkit.render.markdown import plain_columns

        first = next(iter(self.csv_tables()), None)
        library = next((name for name in ("pandas", "polars") if find_spec(name) is not None), "")
        if first is None or not library:
            what = "it has no table" if first is None else "a data frame needs pandas or polars - install one"
            raise UsageError(f"{self.title}: {what}")
        return import_module(library).DataFrame(plain_columns(first))

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Rendered:
        from graphkit.render.terminal import Rendered

        return Rendered(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from graphkit.render.html import html_fragment

        return html_fragment(self)


def json_names(kind: type) -> Sequence[str] | None:
    """Return the names of the fields of a Struct or a dataclass that JSON has, None for another type."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if not dataclasses.is_dataclass(kind):
        return None
    return [field.name for field in dataclasses.fields(kind) if field.metadata.get("in_json", True)]


def _plain_json(value: object) -> Any:
    if (names := json_names(type(value))) is not None:
        more = value.computed if isinstance(value, Result) else ()
        return {name: _plain_json(getattr(value, name)) for name in (*names, *more)}
    if isinstance(value, Sizes):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain_json(item) for item in value]
    return {str(key): _plain_json(item) for key, item in value.items()} if isinstance(value, dict) else value
