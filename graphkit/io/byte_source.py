"""Files as bytes: those of this machine or of a server, external data of models, and temporary files.

A path names each source. That of a file on a server stands for it: nothing lies there, so that nobody reads it by
mistake, and `source_of` gives the source, which fetches what is asked for.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import stat
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO, NamedTuple

from onnx import TensorProto

from graphkit.errors import ModelError, OutputError
from graphkit.io.wire import MAX_PROTO, Buffer, Mapped

_SOURCES: weakref.WeakValueDictionary[Path, ByteSource] = weakref.WeakValueDictionary()
INPUT, OUTPUT = "standard input", "standard output"
STREAMED = f"a model on {INPUT} or {OUTPUT} is kept there"
REWRITTEN = "weights that change are kept there until they are written"
FETCHED = "what is fetched is kept there"
CHUNK = 1 << 20
_FOLDERS: set[Path] = set()
_PLACES: dict[Path, Path | str] = {}  # of files and folders that messages name otherwise: by a path, or as they are


class ByteSource(ABC):
    """A file of which parts are read."""

    path: Path  # the path that names it
    is_local: bool  # whether the file itself lies at its path

    @property
    @abstractmethod
    def size(self) -> int:
        """Its bytes. Raises ModelError where it is missing, or no regular file."""

    @abstractmethod
    def buffer(self) -> Buffer:
        """Return its bytes, read as somebody looks at them. Raises ModelError where it cannot be read."""

    @abstractmethod
    def local(self, spans: Sequence[tuple[int, int]]) -> Path:
        """Return a file of this machine that has these parts in the same places; ModelError without them."""

    @abstractmethod
    def beside(self, location: str) -> tuple[Path, int | None]:
        """Return the path that names a file at a location relative to this one, and its size; None where it is missing.

        Raises ModelError where it is a link that leads elsewhere, or no regular file.
        """

    def read(self) -> None:  # noqa: B027 - a file of this machine has nothing to do
        """Note that the graph was read: what was looked at may be kept for another time."""


def register_source(source: ByteSource) -> None:
    """Let a path name a source, as long as somebody has the source."""
    _SOURCES[source.path] = source


def source_of(path: Path) -> ByteSource:
    """Return the source that a path names: the file at it, or one on a server."""
    return _SOURCES.get(path) or LocalFile(path)


class LocalFile(ByteSource):
    """A file of this machine."""

    is_local = True

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size(self) -> int:
        """Its bytes."""
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ModelError(f"cannot be opened: {reason}", file=str(self.path), hint="check the path") from error
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelError(f"is {kind}", file=str(self.path), hint="name a model file, such as model.onnx")
        return status.st_size

    def buffer(self) -> Buffer:
        """Return a memory map."""
        data = map_file(self.path)
        # The weights between the nodes are not worth reading ahead.
        if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            data.madvise(mmap.MADV_RANDOM)
        return data

    def local(self, spans: Sequence[tuple[int, int]]) -> Path:  # noqa: ARG002 - it has them all
        """Return its path."""
        return self.path

    def beside(self, location: str) -> tuple[Path, int | None]:
        """Return the path and the size of a file in its folder.

        Where it is a link, the folder of the file that it leads to will do too: the cache of Hugging Face links both
        the model and its data to such a folder.
        """
        hint = "put the data file into the model's folder and name it by a relative path"
        path = self.path.parent / location
        real = Path(os.path.realpath(path))
        inside = real.is_relative_to(os.path.realpath(self.path.parent))
        if not inside and not real.is_relative_to(Path(os.path.realpath(self.path)).parent):
            problem = f"external data at {location!r:.80} is a link that leads out of the model's folder"
            raise ModelError(problem, hint=hint)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return path, None
        except OSError as error:
            problem = f"external data at {location!r:.80} cannot be opened: {error.strerror}"
            raise ModelError(problem, hint=hint) from error
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"external data at {location!r:.80} is not a regular file", hint=hint)
        return path, status.st_size


def map_file(path: Path) -> Mapped:
    """Map a file, read-only; an empty one is empty bytes. Raises ModelError where it cannot be opened."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file=str(path), hint="check its permissions") from error


# External data: where the bytes of a tensor lie in another file, and whether that file is allowed.
#
# Source: onnx's docs/ExternalData.md.


class DataFile(NamedTuple):
    """A file that holds external data of a model."""

    location: str  # as in the model, relative to the model's folder
    path: Path
    size: int | None  # size in bytes, None if the file is missing


class Extent(NamedTuple):
    """The bytes location[offset : offset + length] of a data file; length None means up to its end."""

    location: str
    offset: int
    length: int | None


def external_extent(tensor: TensorProto) -> Extent:
    """Return where the payload of an external tensor lies; ModelError where an entry is missing or no number."""
    hint = "the reference is corrupt; export the model again"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, offset, length = map(entries.get, ("location", "offset", "length"))
    for key, number in (("offset", offset), ("length", length)):
        if number is not None and not (number.isascii() and number.isdigit() and len(number) <= 19):
            problem = f"external data has the {key} '{number[:40]}', not a number of bytes"
            raise ModelError(problem, tensor=tensor.name, hint=hint)
    if not location or type(location) is not str:  # protobuf gives bytes where a string is not UTF-8
        where = f"at {location!r:.80}, which is not UTF-8" if location else "without a location"
        raise ModelError(f"external data {where}", tensor=tensor.name, hint=hint)
    return Extent(location, int(offset or 0), None if length is None else int(length))


def refer_to_bytes(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor refer to bytes of a data file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def find_data_file(model: Path, location: str) -> DataFile:
    """Return the data file of a location; ModelError where it leaves the model's folder, or is no regular file."""
    hint = "put the data file into the model's folder and name it by a relative path"
    if "\0" in location or PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ModelError(f"external data at {location!r:.80} is not a relative path", hint=hint)
    if Path(os.path.normpath(location)).parts[:1] == ("..",):
        raise ModelError(f"external data at {location!r:.80} lies outside the model's folder", hint=hint)
    path, size = source_of(model).beside(location)
    return DataFile(location, path, size)


# Temporary files that stand for standard input and output: reading a model and proving it want a file.
#
# A model is read at any byte, as often as something asks for a weight, and onnxruntime reads it again in another
# process; so what comes through a pipe waits on disk, and never in memory.


@contextlib.contextmanager
def stream_file(name: str) -> Iterator[Path]:
    """Give the path of a file that stands for a stream, gone at the end; OutputError without a folder for it."""
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

    Raises ModelError for more than a model file can have, OutputError where there is no room for it.
    """
    size = 0
    with kept_in_temporary(STREAMED), path.open("wb") as file:
        while part := stream.read(CHUNK):
            size += len(part)
            if size > MAX_PROTO:
                hint = "name the model file, whose weights may lie in files of their own"
                problem = f"more than {MAX_PROTO:,} bytes, which is the most that a protobuf has"
                raise ModelError(problem, file=path.name, hint=hint)
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


def standing_for(path: Path, label: str) -> Callable[[], object]:
    """Let messages name a file or a folder, and all in it, by a label, until the returned function is called."""
    _PLACES[path] = label
    return partial(_PLACES.pop, path, None)


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
    """Tell an error of a block that keeps something in the folder for temporary files as one of that folder."""
    try:
        yield
    except OSError as error:
        problem = f"{tempfile.gettempdir()}: {what}, and it takes none: {error.strerror}"
        raise OutputError(f"{problem} - name a folder with more space in TMPDIR") from error


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
        self.location = f"graphkit-{os.urandom(16).hex()}"
        self._folder: Path | None = None

    @property
    def path(self) -> Path:
        """Where it is. Raises OutputError where there is no folder for temporary files."""
        if self._folder is None:
            with kept_in_temporary(REWRITTEN):
                self._folder = Path(tempfile.mkdtemp(prefix="graphkit-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / "weights"

    def append(self, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write parts behind those that are there; return where they start, and their size. May raise OutputError."""
        with kept_in_temporary(REWRITTEN), self.path.open("ab") as file:
            start = file.tell()
            for part in parts:
                file.write(part)
            return start, file.tell() - start
