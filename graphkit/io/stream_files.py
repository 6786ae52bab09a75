"""Temporary files that stand for standard input and output: reading a model and proving it want a file.

A model is read at any byte, as often as something asks for a weight, and onnxruntime reads it again in another process;
so what comes through a pipe waits on disk, and never in memory.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from graphkit.errors import ModelError, OutputError
from graphkit.io.wire import MAX_PROTO

INPUT, OUTPUT = "standard input", "standard output"
STREAMED = f"a model on {INPUT} or {OUTPUT} is kept there"
REWRITTEN = "weights that change are kept there until they are written"
FETCHED = "what is fetched is kept there"
CHUNK = 1 << 20
_FOLDERS: set[Path] = set()
_PLACES: dict[Path, Path | str] = {}  # of files and folders that messages name otherwise: by a path, or as they are


@contextlib.contextmanager
def stream_file(name: str) -> Iterator[Path]:
    """Give the path of a file that stands for a stream, and remove the file at the end.

    Raises:
        OutputError: There is no folder for temporary files.
    """
    with kept_in_temporary(STREAMED):
        folder = Path(tempfile.mkdtemp(prefix="graphkit-"))
    _FOLDERS.add(folder)
    try:
        yield folder / name
    finally:
        _FOLDERS.discard(folder)
        shutil.rmtree(folder, ignore_errors=True)


def copy_stream(stream: BinaryIO, path: Path) -> None:
    """Copy a stream to a file, part by part.

    Raises:
        ModelError: It gives more than a model file can have.
        OutputError: There is no room for it.
    """
    size = 0
    with kept_in_temporary(STREAMED), path.open("wb") as file:
        while part := stream.read(CHUNK):
            size += len(part)
            if size > MAX_PROTO:
                raise ModelError(
                    f"more than {MAX_PROTO:,} bytes, which is the most that a protobuf has",
                    file=path.name,
                    hint="name the model file, whose weights may lie in files of their own",
                )
            file.write(part)


def shown_path(path: Path) -> str:
    """Return a path as messages name it: the stream or URL it stands for, or its place once it is written."""
    for place in (path, *path.parents) if _PLACES else ():
        if place in _PLACES:
            known, rest = _PLACES[place], path.relative_to(place)
            return shown_path(known / rest) if isinstance(known, Path) else "/".join((known, *rest.parts))
    return path.name if path.parent in _FOLDERS else str(path)


def in_shown_paths(message: str) -> str:
    """Return a message of another library with the paths in it as messages of ours name them."""
    for place in sorted(_PLACES, key=lambda place: -len(str(place))):
        message = message.replace(str(place), shown_path(place))
    return message


def standing_for(path: Path, label: str) -> Callable[[], None]:
    """Let messages name a file or a folder, and all in it, by a label, until the returned function is called."""
    _PLACES[path] = label

    def end() -> None:
        _PLACES.pop(path, None)

    return end


@contextlib.contextmanager
def name_as_staged(stage: Path, place: Path | str) -> Iterator[None]:
    """Let messages name files of a folder as those of another place: of a URL, or a folder they are to be moved to."""
    _PLACES[stage] = place
    try:
        yield
    finally:
        del _PLACES[stage]


@contextlib.contextmanager
def kept_in_temporary(what: str) -> Iterator[None]:
    """Let an error of a block, which keeps something in the folder for temporary files, be told as one of that folder.

    Raises:
        OutputError: The folder takes no files.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{tempfile.gettempdir()}: {what}, and it takes none: {error.strerror} - name a folder with more space in "
            "TMPDIR"
        ) from error


# A temporary file for weights that rewrites make, so that no more of them than a part is ever in memory.
#
# A weight that takes the place of another one is as large as that, and there may be gigabytes of them. Their bytes wait
# here until the model is written; the file goes with the last model that refers to it.


class Scratch:
    """The file, which is made when the first weight comes.

    Attributes:
        location: What tensors call it as external data. Nobody can guess it, so that no model file can claim it.
    """

    def __init__(self) -> None:
        self.location = f"graphkit-{secrets.token_hex(16)}"
        self._folder: Path | None = None

    @property
    def path(self) -> Path:
        """Where it is.

        Raises:
            OutputError: There is no folder for temporary files.
        """
        if self._folder is None:
            with kept_in_temporary(REWRITTEN):
                self._folder = Path(tempfile.mkdtemp(prefix="graphkit-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / "weights"

    def append(self, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write bytes behind those that are there, part by part; return where they start, and how many they are.

        Raises:
            OutputError: There is no room for them.
        """
        with kept_in_temporary(REWRITTEN), self.path.open("ab") as file:
            start = file.tell()
            for part in parts:
                file.write(part)
            return start, file.tell() - start
