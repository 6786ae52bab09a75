"""A file on a server, as its reader sees it: parts of one revision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from graphkit.errors import ModelError

__all__ = ["CHANGED", "Head", "Revision", "Served", "Sink", "Span"]

Span = tuple[int, int]  # from an offset to another one
Sink = Callable[[int, bytes], None]  # takes bytes, and where they belong
CHANGED = "it has changed while it was read"


@dataclass(frozen=True)
class Revision:
    """How a server tells one content of a file from another; empty where it does not say.

    Attributes:
        etag: The tag of the content.
        modified: The time of the last change.
    """

    etag: str = ""
    modified: str = ""

    def __bool__(self) -> bool:
        return bool(self.etag or self.modified)

    def agrees(self, later: Revision) -> bool:
        """Whether nothing says that another answer was about another content."""
        pairs = (self.etag, later.etag), (self.modified, later.modified)
        return all(before == after for before, after in pairs if before and after)


@dataclass(frozen=True)
class Head:
    """The first answer of a server about a file.

    Attributes:
        size: Bytes of the whole file.
        is_known: Whether it still has the revision that was known, so that no bytes were sent.
        fetched: The bytes of its beginning that came with the answer.
    """

    size: int
    revision: Revision
    is_known: bool = False
    fetched: int = 0

    def is_of(self, revision: Revision, size: int) -> bool:
        """Whether the file still has a revision, of so many bytes."""
        return self.is_known or (self.revision == revision and self.size == size)


class Served(ABC):
    """A file on a server.

    Attributes:
        label: Its URL, as messages show it.
        key: Its URL without names and passwords, which tells it from other files.
        name: Its own name.
        schemes: The schemes of the URLs that its library reads.
    """

    label: str
    key: str
    name: str

    @abstractmethod
    def open(self, first: int, whole: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes; None where there is no such file.

        Args:
            first: How many bytes.
            whole: The bytes up to which all of the file is fetched instead.
            known: The revision of which no bytes are wanted.
            sink: What takes the bytes.
            seconds: How long it may take.

        Raises:
            ModelError: It cannot be read.
        """

    @abstractmethod
    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of it, all at once.

        Args:
            spans: The parts.
            head: Its size and revision, which every answer has to have.
            sink: What takes the bytes.
            total: Seconds that all of it may take, None for any time.
            idle: Seconds that may pass without a byte.

        Raises:
            ModelError: It cannot be read, or has changed.
        """

    @abstractmethod
    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file; None where there is no such file.

        Raises:
            ModelError: It cannot be read.
        """

    @abstractmethod
    def check(self, head: Head) -> None:
        """Check that it has not changed, where the answers before did not say so themselves.

        Raises:
            ModelError: It has.
        """

    @abstractmethod
    def beside(self, location: str) -> Served:
        """Return the file at a location relative to this one."""

    def error(self, problem: str, hint: str) -> ModelError:
        """Return the error for a fault of the file, or of its server."""
        return ModelError(problem, file=self.label, hint=hint)

    def changed(self) -> ModelError:
        """Return the error for a file that has changed."""
        return self.error(CHANGED, "run the command again")

    def out_of_time(self, seconds: float) -> ModelError:
        """Return the error for a server that is too slow."""
        problem = f"the server does not send what was asked for in {seconds:g} s"
        return self.error(problem, "raise --timeout, or fetch the file with --download")


def part_spans(spans: Iterable[Span], most: int) -> list[Span]:
    """Return spans in parts of at most so many bytes."""
    return [(at, min(at + most, stop)) for start, stop in spans for at in range(start, stop, most)]
