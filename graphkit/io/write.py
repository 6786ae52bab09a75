"""Write outputs: whole or not at all, and never over an input."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from graphkit.errors import OutputError

__all__ = ["write_text"]


def write_text(path: Path, text: str, inputs: Iterable[Path] = ()) -> None:
    """Write a text file through a temporary file beside it and a rename.

    Args:
        path: The file to write; an earlier one of that name is replaced.
        text: Its content, written as UTF-8.
        inputs: Files that must not be replaced.

    Raises:
        OutputError: `path` is one of the inputs, or cannot be written; then nothing has changed.
    """
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise OutputError(f"{path}: is an input, which is never overwritten - name another output")
    if path.is_dir():
        raise OutputError(f"{path}: is a folder - name a file in it")
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror} - check the folder") from error
