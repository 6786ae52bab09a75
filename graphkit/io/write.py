"""Write a text file completely or not at all, and never over an input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from graphkit.errors import OutputError
from graphkit.io.transaction import transaction

__all__ = ["write_text"]


def write_text(path: Path, text: str, inputs: Iterable[Path] = ()) -> None:
    """Write a text file, and put it in place when it is whole.

    Args:
        path: The file to write; an earlier one of that name is replaced.
        text: Its content, written as UTF-8.
        inputs: Files that must not be replaced.

    Raises:
        OutputError: `path` is one of the inputs, or cannot be written; then nothing has changed.
    """
    target = Path(os.path.realpath(path))  # a link stays, what it leads to is replaced
    try:
        if target.exists():
            _check_replaceable(path, target, inputs)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror} - check the folder") from error
    with (
        transaction([target], key=target, overwrite=True, hint="check the folder") as place,
        place(target).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        file.write(text)


def _check_replaceable(path: Path, target: Path, inputs: Iterable[Path]) -> None:
    if any(source.exists() and target.samefile(source) for source in inputs):
        raise OutputError(f"{path}: is an input, which is never overwritten - name another output")
    if target.is_dir():
        raise OutputError(f"{path}: is a folder - name a file in it")
    if not target.is_file():  # a device such as /dev/null must not be replaced
        raise OutputError(f"{path}: is not a regular file - name one, or leave the output out to print")
