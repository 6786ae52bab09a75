"""Parts of a table: rows that are done, in files beside it while a survey is under way.

Whoever does tasks writes them, on this machine or on another one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from graphkit.fleet import storage
from graphkit.fleet.survey_task import Row

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MARK", "PartWriter", "RowParts", "run_of"]

MARK = b"graphkit.survey"  # key of the metadata of a table
PART_ROWS, PART_SECONDS = 64, 5.0  # rows of a part at most, and seconds until one is written


@dataclass(frozen=True)
class RowParts:
    """Where parts are written, and their columns: plain values, which can be sent to other machines.

    Attributes:
        folder: The path or URL of the folder.
        run: The number of the survey among those that were stopped: rows of a later one are newer.
        columns: The name of each column, and the type of its values.
        mark: The version of graphkit, and what rows depend on besides their file, in text.
    """

    folder: str
    run: int
    columns: Mapping[str, type]
    mark: str

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
        """Write the rows that wait.

        Raises:
            OutputError: They cannot be written.
        """
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
