"""Copy bytes of source files into new files: data files with each distinct tensor once, and models with weights.

Source files are read, not mapped, so that a file that has shrunk since its model was read raises an error, and does not
end the process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from graphkit.errors import ModelError
from graphkit.io.stream_files import shown_path

__all__ = ["Body", "DataPlan", "Files", "Piece", "shrunk_file_error", "write_body", "write_data"]

ALIGNMENT = 4096
CHUNK = 4 << 20
SAMPLE = 4096  # bytes at either end that tell most different tensors of one size apart


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a source file."""

    path: Path
    offset: int
    length: int

    def part(self, start: int, length: int) -> Piece:
        """Return at most so many of its bytes."""
        return Piece(self.path, self.offset + start, min(length, self.length - start))


class Files:
    """Source files, each opened once."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def open(self, path: Path) -> BinaryIO:
        """Return an open file.

        Raises:
            ModelError: It cannot be opened.
        """
        if path not in self._files:
            try:
                self._files[path] = path.open("rb", buffering=0)
            except OSError as error:
                raise _unreadable_error(path, error) from error
        return self._files[path]

    def read(self, piece: Piece) -> bytes:
        """Return bytes, all of them.

        Raises:
            ModelError: The file cannot be read, or ends before.
        """
        file = self.open(piece.path)
        try:
            file.seek(piece.offset)
            data = file.read(piece.length)
            while len(data) < piece.length and (more := file.read(piece.length - len(data))):
                data += more
        except OSError as error:
            raise _unreadable_error(piece.path, error) from error
        if len(data) < piece.length:
            raise shrunk_file_error(piece.path)
        return data


def _unreadable_error(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"cannot be read: {error.strerror}", file=shown_path(path), hint="check its permissions and its disk"
    )


def shrunk_file_error(path: Path, tensor: str | None = None) -> ModelError:
    """Return the error for a file that ends before the data it should hold."""
    return ModelError(
        "it ends before its tensors do: it has shrunk since the model was read",
        file=shown_path(path),
        tensor=tensor,
        hint="fetch or export it again",
    )


Body = Sequence["bytes | memoryview | Piece"]  # a model file, part by part


@dataclass
class DataPlan:
    """A data file to write: each distinct piece once, aligned."""

    pieces: list[tuple[int, Piece]] = field(default_factory=list)
    size: int = 0
    _placed: dict[Piece, int] = field(default_factory=dict)
    _samples: dict[tuple[int, bytes, bytes], list[Piece]] = field(default_factory=dict)

    def place(self, piece: Piece, files: Files) -> int:
        """Return the offset of a piece in the data file, that of an equal one where there is one."""
        if piece not in self._placed:
            head, tail = piece.part(0, SAMPLE), piece.part(max(piece.length - SAMPLE, 0), SAMPLE)
            sample = (piece.length, files.read(head), files.read(tail))
            twin = next(
                (stored for stored in self._samples.get(sample, ()) if _has_equal_bytes(stored, piece, files)), None
            )
            if twin is not None:
                self._placed[piece] = self._placed[twin]
            else:
                offset = -(-self.size // ALIGNMENT) * ALIGNMENT
                self.pieces.append((offset, piece))
                self.size = offset + piece.length
                self._placed[piece] = offset
                self._samples.setdefault(sample, []).append(piece)
        return self._placed[piece]


def _has_equal_bytes(a: Piece, b: Piece, files: Files) -> bool:
    starts = range(0, a.length, CHUNK)
    return all(files.read(a.part(at, CHUNK)) == files.read(b.part(at, CHUNK)) for at in starts)


@contextlib.contextmanager
def _open_new_file(path: Path) -> Iterator[FileIO]:
    """Open a new file, of which errors name the path, as those of writing do not by themselves."""
    try:
        with path.open("xb", buffering=0) as target:
            yield target
    except OSError as error:
        error.filename = str(path)
        raise


def write_data(path: Path, plan: DataPlan, files: Files) -> None:
    """Write a data file."""
    with _open_new_file(path) as target:
        for offset, piece in plan.pieces:
            _copy_piece(piece, files, target, offset)
        target.truncate(plan.size)


def write_body(path: Path, body: Body, files: Files) -> None:
    """Write a model in pieces, the small ones together."""
    with _open_new_file(path) as target:
        offset, small = 0, bytearray()
        for part in body:
            if not isinstance(part, Piece):
                small += part
                continue
            offset = _write_at(target, offset, small)
            small.clear()
            offset = _copy_piece(part, files, target, offset)
        _write_at(target, offset, small)


def _write_at(target: FileIO, offset: int, data: bytes | bytearray) -> int:
    """Write bytes at an offset, and return the one behind them."""
    target.seek(offset)
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += target.write(view[done:])
    return offset + len(data)


def _copy_piece(piece: Piece, files: Files, target: FileIO, offset: int) -> int:
    """Copy bytes from file to file, in the kernel where it can; return the offset behind them."""
    done, source = 0, files.open(piece.path).fileno()
    if hasattr(os, "copy_file_range"):
        try:
            while done < piece.length:
                remaining, start = piece.length - done, piece.offset + done
                count = os.copy_file_range(source, target.fileno(), remaining, start, offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            if error.errno not in (1, 18, 22, 38, 95):  # EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: not here
                raise
    while done < piece.length:
        part = piece.part(done, CHUNK)
        _write_at(target, offset + done, files.read(part))
        done += part.length
    return offset + piece.length
