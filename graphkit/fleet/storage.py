"""Where a survey keeps its rows: Parquet files in a folder of this machine, or in any storage that fsspec knows.

A place is a path or a URL. A file is written under another name and renamed, so that whoever reads it finds whole rows.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.errors import GraphkitError, OutputError, UsageError
from graphkit.io import transaction
from graphkit.io.urls import is_url, shown_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem


def require_arrow() -> None:
    """Check that pyarrow is there. Raises UsageError where it is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        hint = "pip install 'onnx-graphkit[survey]'"
        raise UsageError(f"a survey writes Parquet, which needs pyarrow - {hint}") from error


def shown_place(at: str) -> str:
    """Return a place as messages show it, without credentials."""
    return shown_url(at) if is_url(at) else at


def absolute_place(name: str) -> str:
    """Return a path or URL as every process understands it, in whichever folder it runs."""
    return name if is_url(name) else str(Path(name).absolute())


def name_of(at: str) -> str:
    """Return the name of a file without its folder."""
    return at.rpartition("/" if is_url(at) else os.sep)[2]


def place_beside(at: str, name: str) -> str:
    """Return the place of another name in the folder of a file."""
    return f"{at.removesuffix(name_of(at))}{name}"


def place_inside(folder: str, name: str) -> str:
    """Return the place of a name in a folder."""
    return f"{folder}{'/' if is_url(folder) else os.sep}{name}"


def place_exists(at: str) -> bool:
    """Whether there is a file or a folder. Raises OutputError where nobody can tell."""
    from pyarrow.fs import FileType

    with output_errors(shown_place(at), "check the path or URL, and its credentials", "cannot be reached"):
        system, path = _open_place(at)
        return bool(system.get_file_info(path).type is not FileType.NotFound)


def make_folder(at: str) -> None:
    """Make a folder, if it is not there, in one that is; some storages have no folders, and need none."""
    system, path = _open_place(at)
    if not place_exists(at):
        system.create_dir(path, recursive=False)


def remove_folder(at: str) -> None:
    """Remove a folder with all that is in it, as far as that works."""
    with contextlib.suppress(OutputError), output_errors(at, ""):
        system, path = _open_place(at)
        system.delete_dir(path)


def files_in(folder: str, suffix: str) -> list[str]:
    """Return the places of the files in a folder whose names have a suffix such as `parquet`, in order."""
    from pyarrow.fs import FileSelector, PyFileSystem

    with output_errors(shown_place(folder), "check the path or URL, and its credentials", "cannot be read"):
        system, path = _open_place(folder)
        if isinstance(system, PyFileSystem):
            system.handler.fs.invalidate_cache()  # other machines write there
        infos = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(f"{folder}/{info.base_name}" for info in infos if info.extension == suffix)


def read_parquet(at: str) -> pa.Table:
    """Return a table. Libraries of storages raise errors of their own beside OSError and those of pyarrow."""
    from pyarrow import parquet

    system, path = _open_place(at)
    return parquet.read_table(path, filesystem=system)


def write_parquet(table: pa.Table, at: str, folder: str) -> None:
    """Write a table, under another name in a folder first. Raises OutputError where it cannot be written."""
    from pyarrow import parquet

    with output_errors(shown_place(at), "see whether its folder is there, takes files and has room; then start again"):
        system, path = _open_place(at)
        _, new = _open_place(f"{folder}/{uuid.uuid4().hex}.new")
        try:
            parquet.write_table(table, new, filesystem=system)
            system.move(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                system.delete_file(new)
            raise


def write_text(text: str, at: str) -> None:
    """Write a text, so that whoever reads it finds all of it: stores of objects take whole ones alone."""
    if not is_url(at):
        transaction.write_text(Path(at), text)
        return
    with output_errors(shown_place(at), "see whether its folder is there, takes files and has room; then start again"):
        system, path = _open_place(at)
        with system.open_output_stream(path) as stream:
            stream.write(text.encode())


@contextlib.contextmanager
def output_errors(name: str, hint: str, problem: str = "cannot be written") -> Iterator[None]:
    """Let the error of a block that works on a place be one that names it. Raises OutputError where it fails."""
    try:
        yield
    except GraphkitError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())[:200]
        raise OutputError(f"{name}: {problem}: {reason} - {hint}") from error
    except Exception as error:  # pyarrow, and the libraries of storages, raise errors of their own
        raise OutputError(f"{name}: {problem}: {type(error).__name__} - {hint}") from error


def _open_place(at: str) -> tuple[FileSystem, str]:
    """Return the file system of a place, and its path there; UsageError where nothing is known of such places."""
    from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

    if not is_url(at):
        return LocalFileSystem(), at
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(at)
    except ImportError as error:
        hint = f"install onnx-graphkit[remote], such as with pip: {error.name or error} is missing"
        raise UsageError(f"{shown_place(at)}: URLs need packages that are not installed - {hint}") from error
    except ValueError as error:
        raise UsageError(f"{shown_place(at)}: nothing is known of such URLs - check it") from error
    return PyFileSystem(FSSpecHandler(system)), path
