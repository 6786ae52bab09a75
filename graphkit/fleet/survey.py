"""The engine of a survey: which models are to be done, their rows from any executor, one table of them.

Rows that are done are in files beside the table while a survey is under way; whoever does tasks writes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol

from graphkit import __version__
from graphkit.errors import OutputError, UsageError, count_things
from graphkit.fleet import storage
from graphkit.fleet.survey_task import Row, RowOptions, SurveyTask, is_same_data, row_name, table_columns
from graphkit.io.urls import is_url
from graphkit.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT = RowOptions()
MARK = b"graphkit.survey"  # key of the metadata of a table
PART_ROWS, PART_SECONDS = 64, 5.0  # rows of a part at most, and seconds until one is written
AT_ONCE = 16  # parts that are read
OTHER_FILE = "name another file"


class Executor(Protocol):
    """The machines that tasks run on."""

    def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
        """Do tasks in any order, and put their rows into parts; yield how many more are done, and how many are errors.

        No model makes it raise. GraphkitError says that machines are lost, or cannot write rows; what is done is kept.
        """


@dataclass(frozen=True)
class Survey:
    """The counts of a survey."""

    models: int  # rows of the table
    kept: int  # those of an earlier run, whose models are the same
    errors: int  # those of models that could not be read or analysed
    seconds: float  # the time that it took


def survey_models(
    models: Mapping[str, str],
    table: str,
    executor: Executor,
    options: RowOptions = DEFAULT,
    *,
    retries: bool = False,
    progress: Progress = lambda _: None,
) -> Survey:
    """Write a table with a row for each model; models that an earlier run has done are not done again.

    Models are paths or URLs, each with a text that changes with the file, "" where that is unknown. `retries` says
    whether to do those again that were errors in an earlier table. Raises what `RowStore` and `Executor` do.
    """
    start = time.monotonic()
    facts = ""
    for name in options.targets:
        from graphkit.targets import load_target  # which a survey without targets need not wait for

        facts += f"{name} {hashlib.sha256(repr(load_target(name)).encode()).hexdigest()} "
    facts += ("folded " if options.folds else "") + ("reports" if options.reports else "")
    with RowStore(table, table_columns(options.targets), facts) as store:
        if options.reports:
            with storage.output_errors(storage.shown_place(options.reports), "name another table"):
                storage.make_folder(options.reports)
        revisions = {row_name(model): revision for model, revision in models.items()}
        kept = store.done(revisions, options.reports, retries=retries)
        tasks = [SurveyTask(path, revision, options) for path, revision in models.items() if row_name(path) not in kept]
        done, errors = 0, sum(kept.values())
        with contextlib.closing(executor.run(tasks, store.parts)) as counts:
            for more, broken in counts:
                done, errors = done + more, errors + broken
                rate = done / max(time.monotonic() - start, 1e-9)
                minutes, seconds = divmod(round((len(tasks) - done) / rate), 60)
                left = f"{minutes}:{seconds:02} left, {errors:,} errors"
                progress(f"{done:,} of {len(tasks):,} models, {rate:.1f} a second, {left}")
        store.finish(revisions)
    return Survey(len(revisions), len(kept), errors, time.monotonic() - start)


@dataclass(frozen=True)
class RowParts:
    """Where parts are written, and their columns: plain values, which can be sent to other machines."""

    folder: str  # the path or URL of the folder
    run: int  # the number of the survey among those that were stopped: rows of a later one are newer
    columns: Mapping[str, type]  # the name of each column, and the type of its values
    mark: str  # the version of graphkit, and what rows depend on besides their file, in text

    def schema(self) -> pa.Schema:
        """Return the schema of parts, and of the table."""
        import pyarrow as pa

        kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        fields = [(name, kinds[kind]) for name, kind in self.columns.items()]
        return pa.schema(fields, metadata={MARK: self.mark.encode()})


class PartWriter:
    """Writes rows, many together; those that wait are written at the end of a block, too."""

    def __init__(self, parts: RowParts) -> None:
        self._parts, self._schema = parts, parts.schema()
        self._rows: list[Row] = []
        self._written = time.monotonic()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.flush()

    def add(self, row: Row) -> None:
        """Keep a row."""
        self._rows.append(row)
        if len(self._rows) >= PART_ROWS or time.monotonic() - self._written > PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait. Raises OutputError where they cannot be written."""
        import pyarrow as pa

        rows, self._rows, self._written = self._rows, [], time.monotonic()
        if rows:
            folder, run = self._parts.folder, self._parts.run
            table = pa.Table.from_pylist([dict(row) for row in rows], self._schema)
            storage.write_parquet(table, f"{folder}/{run:06}-{uuid.uuid4().hex}.parquet", folder)


def run_of(part: str) -> int:
    """Return the number of the survey that wrote a part."""
    number = storage.name_of(part).partition("-")[0]
    return int(number) if number.isdecimal() else 0


try:
    import fcntl
except ImportError:  # Windows: there two surveys into one table are not noticed
    fcntl = None  # type: ignore[assignment]


def read_table(table: str) -> pa.Table:
    """Return the table of a survey. Raises UsageError where it cannot be read, or is none."""
    storage.require_arrow()
    try:
        rows = storage.read_parquet(table)
    except (OSError, ValueError) as error:  # of pyarrow too, and of a name that is not UTF-8
        problem = " ".join(str(error).split())[:120]
        name = storage.shown_place(table)
        raise UsageError(f"{name}: cannot be read as a table: {problem} - name one that a survey wrote") from error
    if MARK not in (rows.schema.metadata or {}):
        name = storage.shown_place(table)
        raise UsageError(f"{name}: is no table of a survey - name one that `graphkit survey` wrote")
    return rows


class RowStore:
    """The rows of a survey in a table, of columns that have types.

    `facts` say what rows depend on besides their file: those of other facts are not taken over. Raises UsageError where
    the file is no table of a survey, or another survey writes it; OutputError where its folder takes no files.
    """

    def __init__(self, table: str, columns: Mapping[str, type], facts: str) -> None:
        storage.require_arrow()
        self._name, self._table = storage.shown_place(table), storage.absolute_place(table)
        if storage.place_exists(self._table):
            read_table(table)
        folder = storage.place_beside(self._table, f".{storage.name_of(self._table)}.parts")
        with storage.output_errors(self._name, OTHER_FILE):
            storage.make_folder(folder)
        self._lock = None if is_url(table) else self._lock_folder(Path(folder))
        runs = (run_of(part) for part in storage.files_in(folder, "parquet"))
        mark = json.dumps({"graphkit": __version__, "facts": facts})
        self.parts = RowParts(folder, max(runs, default=0) + 1, columns, mark)  # where the rows of tasks go
        self._schema = self.parts.schema()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.close()

    def done(self, revisions: Mapping[str, str], pages: str, *, retries: bool = False) -> dict[str, bool]:
        """Return the models whose rows need not be made again, each with whether its row is an error.

        Rows that have pages need them in that folder. `retries` says whether errors of the table are made again.
        """
        rows, kept, new = self._kept(revisions)
        columns = (rows[name].take(kept).to_pylist() for name in ("path", "error", "data_files", "report"))
        written = set(map(storage.name_of, storage.files_in(pages, "html"))) if pages else set()
        return {
            path: error is not None
            for at, path, error, data, page in zip(kept.to_pylist(), *columns, strict=True)
            if not (retries and error and at >= new)
            and is_same_data(path, data)
            and (page is None or page.rpartition("/")[2] in written)
        }

    def finish(self, revisions: Mapping[str, str]) -> None:
        """Write the table, with a row for each model, by path; the parts are no longer needed."""
        rows, kept, _ = self._kept(revisions)
        if missing := len(revisions) - len(kept):
            problem = f"{count_things(missing, 'row(s)')} that workers wrote cannot be found here"
            raise OutputError(f"{self._name}: {problem} - name a table in a folder that all workers share")
        storage.write_parquet(rows.take(kept), self._table, self.parts.folder)
        storage.remove_folder(self.parts.folder)

    def _kept(self, revisions: Mapping[str, str]) -> tuple[pa.Table, pa.Array, int]:
        """Return all rows on disk; the places of the newest row of each model, by path; and how many are of parts."""
        import pyarrow as pa

        with ThreadPoolExecutor(AT_ONCE) as pool:  # those of the last run first
            parts = [*pool.map(self._read_rows, reversed(storage.files_in(self.parts.folder, "parquet")))]
        table = self._read_rows(self._table) if storage.place_exists(self._table) else self._schema.empty_table()
        rows, new = pa.concat_tables([*parts, table]), sum(part.num_rows for part in parts)
        kept: dict[str, int] = {}
        columns = (rows[name].to_pylist() for name in ("path", "revision"))
        for at, (path, revision) in enumerate(zip(*columns, strict=True)):
            is_known = revision or at < new  # a URL, whose revision nobody knows, is read anew for another table
            if is_known and revisions.get(path) == revision:
                kept.setdefault(path, at)
        return rows, pa.array([kept[path] for path in sorted(kept)], pa.int64()), new

    def _read_rows(self, at: str) -> pa.Table:
        """Return the rows of a file; none where it was written by another graphkit, or for other targets."""
        with storage.output_errors(storage.shown_place(at), "remove it, and start again", "cannot be read"):
            rows = storage.read_parquet(at)
        return rows if rows.schema.equals(self._schema, check_metadata=True) else self._schema.empty_table()

    def _lock_folder(self, folder: Path) -> IO[str]:
        """Return the open file that keeps other surveys away."""
        with storage.output_errors(self._name, OTHER_FILE):
            lock = (folder / "lock").open("w")
        if fcntl is None:
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise UsageError(f"{self._name}: another survey writes it - wait, or {OTHER_FILE}") from error
        for leftover in folder.glob("*.new"):
            leftover.unlink()
        return lock
