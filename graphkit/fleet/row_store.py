"""Rows on disk: a Parquet table, and parts beside it while a survey is under way, so that nothing done is done again.

A part is written under another name and renamed, and so is the table; what a killed run leaves is whole rows. The next
run takes the rows of parts, and of the table, whose file, revision and version of graphkit are the same.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from graphkit import __version__
from graphkit.errors import OutputError, UsageError
from graphkit.fleet.survey_task import Row

if TYPE_CHECKING:
    import pyarrow as pa

try:
    import fcntl
except ImportError:  # Windows: there two surveys into one table are not noticed
    fcntl = None  # type: ignore[assignment]

__all__ = ["MARK", "RowStore", "arrow", "read_table"]

MARK = b"graphkit.survey"  # key of the metadata of a table
PART_ROWS, PART_SECONDS = 64, 5.0  # rows of a part at most, and seconds until one is written


def arrow() -> None:
    """Check that pyarrow is there.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise UsageError("a survey writes Parquet, which needs pyarrow - pip install 'graphkit[survey]'") from error


def read_table(path: Path) -> pa.Table:
    """Return the table of a survey.

    Raises:
        UsageError: It cannot be read, or is none.
    """
    arrow()
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        problem = " ".join(str(error).split())[:120]
        raise UsageError(f"{path}: cannot be read as a table: {problem} - name one that a survey wrote") from error
    if MARK not in (table.schema.metadata or {}):
        raise UsageError(f"{path}: is no table of a survey - name one that `graphkit survey` wrote")
    return table


class RowStore:
    """The rows of a survey.

    Args:
        table: The Parquet file.
        columns: Its columns, and the type of each.
        facts: What rows depend on besides their file, in text: those of other facts are not taken over.

    Raises:
        UsageError: The file is there and is no table of a survey, or another survey writes it.
        OutputError: Its folder takes no files.
    """

    def __init__(self, table: Path, columns: Mapping[str, type], facts: str) -> None:
        arrow()
        import pyarrow as pa

        kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        mark = json.dumps({"graphkit": __version__, "facts": facts}).encode()
        self._schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata={MARK: mark})
        self._table, self._parts = table, table.with_name(f".{table.name}.parts")
        self._rows: list[Row] = []
        self._written = time.monotonic()
        if table.exists():
            read_table(table)
        try:
            self._parts.mkdir(exist_ok=True)
            self._lock = (self._parts / "lock").open("w")
        except OSError as error:
            raise OutputError(f"{table}: cannot be written: {error.strerror} - name another file") from error
        self._take_lock()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.flush()
        self._lock.close()

    def done(self, revisions: Mapping[str, str], *, retries: bool = False) -> dict[str, bool]:
        """Return the models whose rows need not be made again, each with whether its row is an error."""
        rows, kept = self._kept(revisions, retries=retries)
        paths, errors = rows["path"], rows["error"]
        return {paths[at].as_py(): errors[at].is_valid for at in kept}

    def add(self, row: Row) -> None:
        """Keep a row; rows are written together."""
        self._rows.append(row)
        if len(self._rows) >= PART_ROWS or time.monotonic() - self._written > PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are not written yet."""
        import pyarrow as pa

        rows, self._rows, self._written = self._rows, [], time.monotonic()
        if rows:
            plain = [dict(row) for row in rows]
            self._write(pa.Table.from_pylist(plain, self._schema), self._parts / f"{uuid.uuid4().hex}.parquet")

    def finish(self, revisions: Mapping[str, str]) -> None:
        """Write the table, with a row for each model, by path; the parts are no longer needed."""
        import pyarrow as pa

        self.flush()
        rows, kept = self._kept(revisions, retries=False)
        self._write(rows.take(pa.array(kept, pa.int64())), self._table)
        shutil.rmtree(self._parts, ignore_errors=True)

    def _kept(self, revisions: Mapping[str, str], *, retries: bool) -> tuple[pa.Table, Sequence[int]]:
        """Return all rows on disk, and the place of the row of each model, by path."""
        import pyarrow as pa

        tables = [*self._read_parts(), self._read(self._table)]
        new = sum(table.num_rows for table in tables[:-1])
        rows = pa.concat_tables(tables)
        kept: dict[str, int] = {}
        columns = (rows[name].to_pylist() for name in ("path", "revision", "error"))
        for at, (path, revision, error) in enumerate(zip(*columns, strict=True)):
            is_known = revision or at < new  # a URL, whose revision nobody knows, is read anew for another table
            if is_known and revisions.get(path) == revision and not (retries and error and at >= new):
                kept.setdefault(path, at)
        return rows, [kept[path] for path in sorted(kept)]

    def _read_parts(self) -> Iterator[pa.Table]:
        for part in sorted(self._parts.glob("*.parquet")):
            yield self._read(part)

    def _read(self, path: Path) -> pa.Table:
        """Return the rows of a file; none where it was written by another graphkit, or for other targets."""
        from pyarrow import parquet

        nothing = self._schema.empty_table()
        if not path.exists():
            return nothing
        table = parquet.read_table(path)
        return table if table.schema.equals(self._schema, check_metadata=True) else nothing

    def _write(self, rows: pa.Table, path: Path) -> None:
        from pyarrow import parquet

        beside = self._parts / f"{uuid.uuid4().hex}.new"
        try:
            parquet.write_table(rows, beside)
            beside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise OutputError(
                f"{path}: cannot be written: {error.strerror or error} - make room, and start again"
            ) from error

    def _take_lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{self._table}: another survey writes it - wait, or name another file") from error
        for left in self._parts.glob("*.new"):
            left.unlink()
