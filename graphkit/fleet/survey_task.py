"""The models of a survey, each a unit of work; and the columns of the row that it becomes.

Tasks and rows are plain values, so that any executor can send them anywhere.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkit import __version__
from graphkit.analysis.findings import KIND_NAMES
from graphkit.errors import UsageError
from graphkit.io.remote.open_url import models_of_listing
from graphkit.io.urls import is_listing, is_url, shown_url

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
STREAM = "-"
UNKNOWN = "?"  # the data files of a model that could not be read so far


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
    return {name: _as_cell(fact) for name, fact in row.items()}


def _as_cell(fact: object) -> object:
    """Return a fact as a table has it: none for a number of more than 64 bits, as of sizes that nothing has."""
    if isinstance(fact, str):
        return _escape_text(fact)
    return None if isinstance(fact, int) and fact.bit_length() >= 64 else fact


def failed_row(task: SurveyTask, error: str, seconds: float) -> Row:
    """Return the row of a model that there are no facts of."""
    return row_of(task, {"error": error}, seconds)


def _escape_text(text: str) -> str:
    """Return a text with the bytes of names that are not UTF-8, which a table cannot have, as escapes."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def models_of(sources: Iterable[str], stdin: Iterable[str]) -> dict[str, str]:
    """Return the path or URL of each model, once, in order, each with a text that changes with the file.

    The text is the commit for a model of a repository that is listed; it is "" where nobody knows: for other URLs, and
    for a file that is missing. Sources are model files, URLs, folders, patterns such as `**/decoder*.onnx`,
    organisations and repositories of the hub, text files with one of these in each line, and `-` for such lines on
    standard input. Raises UsageError where a source is nothing of all that, or has no model.
    """
    models: dict[str, str] = {}
    for source in sources:
        expanded = dict(_expand_source(source, stdin))
        if not expanded:
            raise UsageError(f"{source}: has no .onnx file in it - name a folder, a pattern, or a list of models")
        models |= expanded
    return dict(sorted(models.items()))


def data_revisions(model: str, locations: Iterable[str]) -> str | None:
    """Return the files beside a model in text that changes with them, None for none."""
    folder = Path(model).parent
    revisions = {location: _file_revision(os.path.join(folder, location)) for location in sorted(locations)}
    return json.dumps(revisions, ensure_ascii=False) if revisions else None


def is_same_data(model: str, revisions: str | None) -> bool:
    """Whether the files beside a model are those of `data_revisions`."""
    if revisions is None:
        return True
    return revisions != UNKNOWN and data_revisions(model, json.loads(revisions)) == revisions


def _file_revision(path: str) -> str:
    """Return the size of a file and when it was written; "" for a URL or a missing file."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{state.st_size}-{state.st_mtime_ns}"


def _expand_source(source: str, stdin: Iterable[str]) -> Iterator[tuple[str, str]]:
    if source == STREAM:
        yield from _models_of_list(stdin)
    elif is_listing(source):
        yield from models_of_listing(source).items()
    elif is_url(source) or source.startswith("example:"):
        yield source, ""
    elif Path(source).is_file() and not source.endswith(".onnx"):
        try:
            lines = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source}: cannot be read as a list of models - write one path in each line") from error
        yield from _models_of_list(lines)
    else:
        paths: Iterable[str] = [source]  # where it is missing, a row says so
        if os.path.isdir(source):
            paths = _models_below(source)
        elif not Path(source).is_file() and glob.has_magic(source):
            matches = glob.iglob(source, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            paths = (model for path in matches for model in (_models_below(path) if os.path.isdir(path) else [path]))
        elif not source.endswith(".onnx"):
            raise UsageError(f"{source}: No such file or folder - check the path")
        yield from ((path, _file_revision(path)) for path in paths)


def _models_below(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(place, name) for name in files if name.endswith(".onnx") and not name.startswith("."))


def _models_of_list(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what the lines of a list name; empty lines and those that begin with # name nothing."""
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            is_path = line.endswith(".onnx") and not is_url(line)
            if is_path and glob.has_magic(line) and not os.path.lexists(line):  # a file may be called like a pattern
                is_path = next(glob.iglob(line, recursive=True), None) is None  # noqa: PTH207 - as above
            yield from [(line, _file_revision(line))] if is_path else _expand_source(line, ())
