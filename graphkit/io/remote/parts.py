"""The parts of a file on a server that are here: in a file as long as that one, with holes where nothing is yet."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from graphkit.errors import OutputError
from graphkit.io.remote.server import Span

__all__ = ["Parts", "join_spans"]


class Parts:
    """A file with holes, and where it has none.

    Args:
        path: Where it is made; its folder exists.
        label: The name of the file on the server, for messages.

    Attributes:
        spans: The parts that are here, in order, none of which touch.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path, self._label = path, label
        self.spans: list[Span] = []
        self._map: mmap.mmap | None = None
        try:
            self._file = path.open("x+b", buffering=0)
        except OSError as error:
            raise self._full_error(error) from error

    def resize(self, size: int) -> None:
        """Make it as long as the file on the server, with a hole at its end.

        Raises:
            OutputError: There is no room for so long a file.
        """
        try:
            self._file.truncate(size)
        except (OSError, OverflowError) as error:
            raise self._full_error(error) from error

    def put(self, offset: int, data: bytes) -> None:
        """Put bytes into it.

        Raises:
            OutputError: There is no room for them.
        """
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

    def missing(self, spans: Iterable[Span]) -> list[Span]:
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
        return OutputError(
            f"{self._label}: what is fetched of it is kept in {self.path.parent.parent.parent}, which takes no more: "
            f"{reason} - name a folder with more space in TMPDIR"
        )


def join_spans(spans: Iterable[Span], gap: int = 0) -> list[Span]:
    """Return spans in order, with those in one that overlap, touch, or have no more than a gap between them."""
    ordered: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if ordered and start <= ordered[-1][1] + gap:
            ordered[-1] = ordered[-1][0], max(ordered[-1][1], stop)
        else:
            ordered.append((start, stop))
    return ordered
