"""A unit of work of a survey, one model; and the columns of the row that it becomes.

Tasks and rows are plain values, so that any executor can send them anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from graphkit import __version__
from graphkit.analysis.findings import KIND_NAMES
from graphkit.io.urls import is_url, shown_url

Row = Mapping[str, object]
BLOCKERS = "blockers_"  # what the columns of targets begin with

COLUMNS: Mapping[str, type] = {
    "path": str,
    "revision": str,
    "graphkit": str,
    "error": str,
    "report": str,
    "data_files": str,
    "bytes": int,
    "role": str,
    "architecture": str,
    "opset": int,
    "producer": str,
    "dtypes": str,
    "parameters": int,
    "nodes": int,
    "shape_nodes": int,
    "shape_nodes_folded": int,
    "unknown_shapes": int,
    "kv_bytes_per_token": int,
    "macs": int,
    "peak_bytes": int,
    "faults": int,
    "notes": int,
    "seconds": float,
}  # and one for each kind of finding, and for each target


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How the rows of a survey are made."""

    targets: tuple[str, ...] = ()  # the names or files of the targets to look for blockers for
    folds: bool = False  # whether to count the nodes that compute shapes after a fold too
    reports: str = ""  # the path or URL of the folder that a page about each model is written into; "" for no pages
    download: bool = False  # how models on servers are read: see `graphkit.RemoteOptions`
    cache: bool = True
    timeout: float = 60.0


@dataclass(frozen=True)
class SurveyTask:
    """A model of a survey."""

    path: str  # the path or URL of the model
    revision: str = ""  # a text that changes with the file; "" where that is unknown
    options: RowOptions = RowOptions()

    @property
    def name(self) -> str:
        """The model as its row and messages name it."""
        return row_name(self.path)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> SurveyTask:
        """Return the task that `plain` gave."""
        options = {**plain["options"], "targets": tuple(plain["options"]["targets"])}
        return cls(plain["path"], plain["revision"], RowOptions(**options))


def table_columns(targets: Iterable[str]) -> dict[str, type]:
    """Return the columns of a table of models, and the type of each; any but the first three may be empty."""
    finding_columns = {found_column(name): int for name in KIND_NAMES if name != "fit"}
    return {**COLUMNS, **finding_columns, **{blockers_column(target): int for target in targets}}


def found_column(kind: str) -> str:
    """Return the name of the column of a kind of finding: of how many nodes, tensors or outputs it concerns."""
    return kind.replace("-", "_")


def blockers_column(target: str) -> str:
    """Return the name of the column of a target."""
    return f"{BLOCKERS}{target}"


def row_name(path: str) -> str:
    """Return a path or URL without what may be credentials; a digest tells queries from each other."""
    path = _escape_text(path)
    if not is_url(path):
        return path
    query = path.partition("?")[2]
    return f"{shown_url(path)}#{hashlib.sha256(query.encode()).hexdigest()[:12]}" if query else shown_url(path)


def row_of(task: SurveyTask, facts: Row, seconds: float) -> Row:
    """Return the row of a model."""
    start = {"path": task.name, "revision": task.revision, "graphkit": __version__}
    row = {**start, **facts, "seconds": round(seconds, 3)}
    return {name: _escape_text(fact) if isinstance(fact, str) else fact for name, fact in row.items()}


def failed_row(task: SurveyTask, error: str, seconds: float) -> Row:
    """Return the row of a model that there are no facts of."""
    return row_of(task, {"error": error}, seconds)


def _escape_text(text: str) -> str:
    """Return a text with the bytes of names that are not UTF-8, which a table cannot have, as escapes."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
