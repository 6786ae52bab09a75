"""A file on a server, as its reader sees it: parts of one revision."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from graphkit.errors import ModelError, OutputError

Span = tuple[int, int]  # from an offset to another one
Sink = Callable[[int, bytes], None]  # takes bytes, and where they belong
CHANGED = "it has changed while it was read"


class Revision(Struct, frozen=True):
    """How a server tells one content of a file from another; empty where it does not say."""

    etag: str = ""  # the tag of the content
    modified: str = ""  # the time of the last change

    def __bool__(self) -> bool:
        return bool(self.etag or self.modified)

    def agrees(self, later: Revision) -> bool:
        """Whether nothing says that another answer was about another content."""
        pairs = (self.etag, later.etag), (self.modified, later.modified)
        return all(before == after for before, after in pairs if before and after)


class Head(Struct, frozen=True):
    """The first answer of a server about a file."""

    size: int  # bytes of the whole file
    revision: Revision
    is_known: bool = False  # whether it still has the revision that was known, so that no bytes were sent
    fetched: int = 0  # the bytes of its beginning that came with the answer

    def is_of(self, revision: Revision, size: int) -> bool:
        """Whether the file still has a revision, of so many bytes."""
        return self.is_known or (self.revision == revision and self.size == size)


class Served(ABC):
    """A file on a server; `schemes` are those of the URLs that its library reads."""

    label: str  # its URL, as messages show it
    key: str  # its URL without names and passwords, which tells it from other files
    name: str  # its own name

    @abstractmethod
    def open(self, first: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes in so many seconds, none of the `known` revision; None where there is no such file.

        Raises ModelError where it cannot be read.
        """

    @abstractmethod
    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of it, all at once, from answers of the size and revision of `head`.

        It may take `total` seconds, None for any time, of which `idle` may pass without a byte. Raises ModelError
        where it cannot be read, or has changed.
        """

    @abstractmethod
    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file; None where there is no such file. Raises ModelError where it cannot be read."""

    @abstractmethod
    def check(self, head: Head) -> None:
        """Check that it has not changed, where answers did not say so themselves. Raises ModelError where it has."""

    @abstractmethod
    def beside(self, location: str) -> Served:
        """Return the file at a location relative to this one."""

    def error(self, problem: str, hint: str) -> ModelError:
        """Return the error for a fault of the file, or of its server."""
        return ModelError(problem, file=self.label, hint=hint)

    def out_of_time(self, seconds: float) -> ModelError:
        """Return the error for a server that is too slow."""
        problem = f"the server does not send what was asked for in {seconds:g} s"
        return self.error(problem, "raise --timeout, or fetch the file with --download")


def part_spans(spans: Iterable[Span], most: int) -> list[Span]:
    """Return spans in parts of at most so many bytes."""
    return [(at, min(at + most, stop)) for start, stop in spans for at in range(start, stop, most)]


class Parts:
    """A file with holes, made at `path`; `spans` are the parts that are here, in order, none of which touch."""

    def __init__(self, path: Path, label: str) -> None:
        self.path, self._label = path, label
        self.spans: list[Span] = []
        self._map: mmap.mmap | None = None
        try:
            self._file = path.open("x+b", buffering=0)
        except OSError as error:
            raise self._full_error(error) from error

    def resize(self, size: int) -> None:
        """Make it as long as the file on the server, by a hole at its end; OutputError where there is no room."""
        try:
            self._file.truncate(size)
        except (OSError, OverflowError) as error:
            raise self._full_error(error) from error

    def put(self, offset: int, data: bytes) -> None:
        """Put bytes into it. Raises OutputError where there is no room for them."""
        try:
            self._file.seek(offset)
            with memoryview(data) as view:
                done = 0
                while done < len(view):
                    done += self._file.write(view[done:])
        except (OSError, OverflowError) as error:
            raise self._full_error(error) from error

    def add(self, spans: Iterable[Span]) -> None:
        """Note that it has these parts."""
        self.spans = join_spans([*self.spans, *spans])

    def around(self, offset: int) -> Span:
        """Return the part that has a byte; where none has it, the empty one at the end of the part before."""
        at = bisect_right(self.spans, (offset, 1 << 63)) - 1
        if at < 0:
            return 0, 0
        start, stop = self.spans[at]
        return (start, stop) if offset < stop else (stop, stop)

    def missing_spans(self, spans: Iterable[Span]) -> list[Span]:
        """Return the missing ones of these parts, in order."""
        holes: list[Span] = []
        for start, stop in sorted(spans):
            at = max(start, holes[-1][1]) if holes else start
            while at < stop:
                here, end = self.around(at)
                if here < end:
                    at = end
                    continue
                following = bisect_right(self.spans, (at, 1 << 63))
                upto = min(stop, self.spans[following][0]) if following < len(self.spans) else stop
                holes.append((at, upto))
                at = upto
        return holes

    def byte(self, at: int) -> int:
        """Return a byte that is here."""
        return self._map_parts()[at]

    def bytes(self, start: int, stop: int) -> bytes:
        """Return bytes that are here."""
        return self._map_parts()[start:stop] if start < stop else b""

    def _map_parts(self) -> mmap.mmap:
        if self._map is None:
            try:
                self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, OverflowError, ValueError) as error:
                raise OutputError(f"{self._label}: cannot be mapped into memory - fetch it by other means") from error
        return self._map

    def close(self) -> None:
        """Close the file, as some systems want before it is removed."""
        if self._map is not None:
            self._map.close()
        self._file.close()

    def _full_error(self, error: Exception) -> OutputError:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is too long"
        problem = f"what is fetched of it is kept in {self.path.parent.parent.parent}, which takes no more: {reason}"
        return OutputError(f"{self._label}: {problem} - name a folder with more space in TMPDIR")


def join_spans(spans: Iterable[Span], gap: int = 0) -> list[Span]:
    """Return spans in order, with those in one that overlap, touch, or have no more than a gap between them."""
    ordered: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if ordered and start <= ordered[-1][1] + gap:
            ordered[-1] = ordered[-1][0], max(ordered[-1][1], stop)
        else:
            ordered.append((start, stop))
    return ordered
