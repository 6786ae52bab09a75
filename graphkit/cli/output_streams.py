"""Errors for output that cannot be written; streams that replace characters they cannot encode."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from graphkit.errors import OutputError

__all__ = ["copied_out", "make_tolerant", "written_out"]

LINES = {"\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-", "\N{FULL BLOCK}": "#"}  # that graphkit draws, in ASCII
IN_ASCII = "graphkit.in_ascii"  # how a stream is told to write what its encoding lacks


def make_tolerant(stream: TextIO) -> None:
    """Let a stream of another encoding write lines in ASCII, and other characters that it lacks as escapes."""
    codecs.register_error(IN_ASCII, _in_ascii)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=IN_ASCII)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(LINES.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking), error.end


class _Output:
    """A stream whose failure is an OutputError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _failing_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _failing_errors():
            self._stream.flush()


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Flush everything that is printed inside.

    Raises:
        OutputError: The output cannot be written.
    """
    before = sys.stdout
    with contextlib.ExitStack() as stack:
        # a stdout that is closed is None
        stream = before or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        sys.stdout = cast(TextIO, _Output(stream))
        try:
            try:
                yield
            finally:
                sys.stdout.flush()
        except OutputError:
            _discard_buffer(stream)
            raise
        finally:
            sys.stdout = before


def copied_out(path: Path) -> None:
    """Copy a file to standard output.

    Raises:
        OutputError: The output cannot be written.
    """
    sys.stdout.flush()
    with path.open("rb") as file, _failing_errors():
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def _failing_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "its reader has closed it" if isinstance(error, BrokenPipeError) else "check where it goes"
        raise OutputError(f"the output cannot be written: {error.strerror} - {hint}") from error


def _discard_buffer(stream: TextIO) -> None:
    """Discard the buffer of a stream, also when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
