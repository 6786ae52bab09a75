"""The table of a survey as a result: the worst models first, those that conditions choose."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from graphkit.analysis.findings import KIND_NAMES, KINDS
from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.fleet import storage
from graphkit.fleet.survey import read_table
from graphkit.fleet.survey_task import BLOCKERS, COLUMNS, found_column
from graphkit.graph.names import paths_below
from graphkit.io.urls import is_url
from graphkit.render.document_blocks import Block, Cell, Column, Link, Prose, Table
from graphkit.render.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

CONDITION = re.compile(r"\s*(\w[\w.-]*?)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*")
WORST = (("error", "ascending"), ("faults", "descending"), ("notes", "descending"), ("path", "ascending"))
REPORT = "report"
Value = str | int | float | None
FEW = ("path", "error", "role", "nodes", "faults", "notes")  # columns of a terminal
SHOWN = (*FEW, "bytes", "parameters", "shape_nodes", "macs", "peak_bytes")


@dataclass(frozen=True)
class SurveyTable(Result):
    """Models of a survey, a row each."""

    title: ClassVar[str] = "Survey"
    models: int  # how many the table has
    chosen: int  # how many of them the conditions choose
    errors: int
    columns: tuple[str, ...]  # the columns to show
    rows: tuple[tuple[Value, ...], ...]  # a report is an address, which leads there from the page of the table

    def blocks(self) -> Iterator[Block]:  # noqa: D102 - see Result
        yield Prose(
            f"{self.chosen:,} of {count_things(self.models, 'model(s)')}, {count_things(self.errors, 'error(s)')}; "
            f"{len(self.rows):,} shown."
        )
        rows: list[list[Cell]] = []
        for row in self.rows:  # in which the path leads to the report
            values: dict[str, Cell] = dict(zip(self.columns, row, strict=True))
            if (address := values.pop(REPORT, None)) is not None:
                values["path"] = Link(str(values["path"]), str(address))
            rows.append([*values.values()])
        yield Table([_column_of(name) for name in self.columns if name != REPORT], rows)


def _column_of(name: str) -> Column:
    if name in ("path", "error"):
        return Column(name, "code" if name == "path" else "note")
    return Column(name, "text" if COLUMNS.get(name) is str or name == "kinds" else "number")


def survey_table(
    path: str,
    *,
    where: Sequence[str] = (),
    sort: Sequence[str] = (),
    most: int | None = None,
    folder: str = "",
    is_narrow: bool = False,
) -> SurveyTable:
    """Return `most` models of a table that `graphkit survey` wrote, the worst first.

    `where` are conditions such as `nodes>1000`, `role=encoder`, `path~marian`, or a kind of finding such as
    `merged-if`; all have to hold. `sort` names columns, a `-` before those whose largest values come first. `folder` is
    that of the page that the result is for. `is_narrow` is for a terminal: paths below their common folder, and few
    columns. Raises UsageError where the file is no such table, or a condition or a column is none.
    """
    every = read_table(path)
    chosen = every
    for condition in where:
        chosen = chosen.filter(_row_mask(chosen, condition))
    words = {word: _known_name(word.removeprefix("-"), every, f"--sort {word}") for word in sort}
    order = [(name, "descending" if word.startswith("-") else "ascending") for word, name in words.items()]
    order = order or list(WORST)
    first = chosen.sort_by(order).slice(0, most)
    asked = {*(key for key, _ in order), *(found_column(condition.strip()) for condition in where)}
    asked |= {match[1] for match in map(CONDITION.fullmatch, where) if match}
    order_of = {name: place for place, name in enumerate(SHOWN)}
    names = sorted(every.column_names, key=lambda name: (name == "error", order_of.get(name, len(SHOWN))))
    shown = [name for name in names if name in (*(FEW if is_narrow else SHOWN), *asked) or name.startswith(BLOCKERS)]
    values = {name: first[name].to_pylist() for name in shown}
    if is_narrow:
        below = paths_below(every["path"].to_pylist())
        values["path"] = [below[path] for path in values["path"]]
        return _shown_table(every, chosen, values)
    found = {kind.name: first[column].to_pylist() for kind in KINDS if (column := found_column(kind.name)) in names}
    kinds = [" ".join(name for name in found if found[name][row]) for row in range(len(first))]
    values = {"path": values.pop("path"), "role": values.pop("role"), "kinds": kinds, **values}
    if REPORT in every.column_names and first[REPORT].null_count < len(first):
        values[REPORT] = [report and _report_address(report, path, folder) for report in first[REPORT].to_pylist()]
    return _shown_table(every, chosen, values)


def _shown_table(every: pa.Table, chosen: pa.Table, values: Mapping[str, Sequence[Value]]) -> SurveyTable:
    errors = chosen.num_rows - chosen["error"].null_count
    rows = tuple(zip(*values.values(), strict=True))
    return SurveyTable(every.num_rows, chosen.num_rows, errors, tuple(values), rows)


def kind_lines(path: str) -> Iterator[str]:
    """Yield how many models of a table have each kind of finding, the worst first; UsageError where it is none."""
    every, lines = read_table(path), list[str]()
    for kind in KINDS:
        name = found_column(kind.name)
        if models := _count_models(every, name):
            lines.append(f"{'!' if kind.is_fault else '-'} {models}: {kind.says} ({kind.name})")
    for name in (each for each in every.column_names if each.startswith(BLOCKERS)):
        if models := _count_models(every, name):
            lines.append(f"! {models}: {name.removeprefix(BLOCKERS)} refuses nodes ({name})")
    yield from sorted(lines, key=lambda line: line.startswith("-"))


def _count_models(table: pa.Table, name: str) -> str:
    models = sum(bool(count) for count in table[name].to_pylist()) if name in table.column_names else 0
    return f"{models:,} of {table.num_rows:,}" if models else ""


def _report_address(report: str, table: str, page: str) -> str:
    """Return what leads from the folder of a page to a report, which a table names from its own folder."""
    if is_url(table):
        return storage.place_beside(storage.shown_place(table).partition("?")[0], quote(report))
    here, there = Path(page).absolute(), Path(table).absolute().parent / report
    return there.as_uri() if here.drive != there.drive else quote(Path(os.path.relpath(there, here)).as_posix())


def _row_mask(table: pa.Table, condition: str) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    counted = [found_column(kind.name) for kind in KINDS]
    counted += [name for name in table.column_names if name.startswith(BLOCKERS)]
    asked, column_name = condition, found_column(condition.strip())
    if column_name in counted:  # the models that have findings of this kind
        condition = f"{column_name}>0"
    elif column_name == "error":
        condition = "error!="
    match = CONDITION.fullmatch(condition)
    if match is None:
        hint = did_you_mean(asked, KIND_NAMES, "write one such as nodes>1000 or role=encoder, or a kind of finding")
        raise UsageError(f"--where {asked}: is no condition - {hint}")
    name, sign, text = match.groups()
    column = table[_known_name(name, table, f"--where {condition}")]
    if sign == "~":
        return compute.match_substring(column.cast(pa.string()), text)
    compared = {"=": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal", "<": "less", "<=": "less_equal"}
    if not text:
        return column.is_null() if sign == "=" else column.is_valid()
    try:
        value = pa.scalar(text if pa.types.is_string(column.type) else float(text))
    except ValueError as error:
        raise UsageError(f"--where {condition}: '{name}' is a number - compare it with one") from error
    return compute.call_function(compared[sign], [column, value])


def _known_name(name: str, table: pa.Table, words: str) -> str:
    if name not in table.column_names:
        raise UsageError(f"{words}: no column '{name}' - {did_you_mean(name, table.column_names)}")
    return name
