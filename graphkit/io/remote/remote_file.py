"""A model on a server as a source of bytes: its graph, fetched as its reader looks at it, and weights on request."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from platformdirs import user_cache_path

from graphkit.io.byte_source import FETCHED, ByteSource, kept_in_temporary, register_source, standing_for
from graphkit.io.remote.server import Head, Parts, Revision, Served, Span, join_spans
from graphkit.io.urls import RemoteOptions

FORMAT = 2
MAX_ENTRY = 32 << 20  # bytes of an entry of the cache
MAX_CACHE = 256 << 20
FIRST = 512 << 10  # bytes of the beginning of a file, most of which are of its graph
SMALL_FILE = 8 << 20  # bytes of a file that is fetched whole: many requests for parts of it would take longer
MAX_GRAPH = 256 << 20  # bytes that a graph may have before --download has to be asked for
SMALL = 64 << 10  # bytes of weights that are kept with the graph, since analyses read them again
NOTEWORTHY = 16 << 20  # bytes of weights of a file that are worth a sentence
HISTORY = 400  # headers to look back at
SLACK = 64  # bytes by which two distances of one kind may differ
TAIL = 64 << 10  # bytes at the end, where the inputs and outputs are
HEADER, BEFORE = 512, 96  # bytes that are fetched for a header, and more of them before and behind a guessed one
NEAR = 1 << 10  # bytes that the reader passes over without a jump: a small node
STEP, GROWTH, LONGEST = 512 << 10, 4, 4 << 20  # bytes to read on, how they grow, and up to which size
FEW, MANY = 4, 64  # guesses at a time, which double as long as they are right
GAP = 4 << 10  # bytes that cost less than a request


class Entry(NamedTuple):
    """The parts of a file on a server that are kept in the user's cache, by URL and revision.

    An entry is a file: a checksum, which tells one that was damaged, a line of JSON, then the bytes. No credentials
    are in it: the URL, which may have some, names the entry by a checksum, and messages alone name the server.
    """

    size: int  # bytes of the whole file
    revision: Revision
    parts: Sequence[tuple[int, bytes]]  # those that are kept, by their offset


def cache_folder() -> Path:
    """Return the folder of the cache, which XDG_CACHE_HOME moves on Linux."""
    return Path(user_cache_path("graphkit", appauthor=False)) / "graphs"


def read_entry(key: str) -> Entry | None:
    """Return the cached parts of a file; None where there are none, or they are damaged."""
    path = _entry_path(key)
    try:
        content = path.read_bytes() if path.stat().st_size <= MAX_ENTRY else b""
        os.utime(path)
    except OSError:
        return None
    if content[:32] != hashlib.sha256(content[32:]).digest():
        return None
    line, _, body = content[32:].partition(b"\n")
    version, size, etag, modified, spans = json.loads(line)
    ends = itertools.accumulate(length for _, length in spans)
    parts = [(offset, body[end - length : end]) for (offset, length), end in zip(spans, ends, strict=True)]
    return Entry(size, Revision(etag, modified), parts) if version == FORMAT else None


def write_entry(key: str, entry: Entry) -> None:
    """Keep something of a file, and drop what is unused for longest; a cache that cannot be written stays."""
    spans = [(offset, len(data)) for offset, data in entry.parts]
    line = json.dumps([FORMAT, entry.size, entry.revision.etag, entry.revision.modified, spans])
    content = b"".join([line.encode(), b"\n", *(data for _, data in entry.parts)])
    content = hashlib.sha256(content).digest() + content
    if len(content) > MAX_ENTRY:
        return
    path = _entry_path(key)
    beside = path.with_name(f".{os.urandom(8).hex()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        files = []  # those that were not used for the longest time go, as long as there are too many bytes
        for file in path.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process does the same
                status = file.stat()
                files.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if total <= MAX_CACHE:
                break
            file.unlink(missing_ok=True)
            total -= size


def _entry_path(key: str) -> Path:
    return cache_folder() / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def open_remote(served: Served, options: RemoteOptions) -> RemoteFile:
    """Return a model on a server, of which the first bytes are here.

    Raises ModelError where it cannot be read, OutputError where there is no room for what is fetched.
    """
    with kept_in_temporary(FETCHED):
        folder = Path(tempfile.mkdtemp(prefix="graphkit-"))
        (folder / "bytes").mkdir()
    owner = _Folder(folder)
    file = RemoteFile(served, owner, served.name, options)
    file.begin(FIRST, SMALL_FILE)
    if file.head is None:
        raise served.error("is not there", "check the URL")
    return file


class _Folder:
    """A temporary folder: `files` has the paths that stand for files, where nothing lies; `bytes`, what is fetched."""

    def __init__(self, folder: Path) -> None:
        self.files, self._bytes, self._count = folder / "files", folder / "bytes", 0
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def new(self) -> Path:
        """Return the path of a new file for bytes."""
        self._count += 1
        return self._bytes / str(self._count)


class RemoteFile(ByteSource):
    """A file on a server; `head` is its size and revision, None where there is no such file."""

    is_local = False

    def __init__(self, served: Served, folder: _Folder, location: str, options: RemoteOptions) -> None:
        self.path = folder.files / location
        self.head: Head | None = None
        self._served, self._folder, self._options = served, folder, options
        self._parts = Parts(folder.new(), served.label)
        self._beside: dict[str, RemoteFile] = {}
        self._graph: list[Span] = []  # what is kept for another time
        self._weights = 0  # bytes of weights that were asked for
        self._is_kept, self._is_model = False, location == served.name
        self._end: float | None = time.monotonic() + options.timeout  # of the time for the graph
        weakref.finalize(self, self._parts.close)
        weakref.finalize(self, standing_for(self.path, served.label))
        register_source(self)

    def begin(self, first: int, whole: int) -> None:
        """Fetch the first bytes, all of a small file, or all bytes where that is asked for."""
        served, parts, options = self._served, self._parts, self._options
        if options.download:
            self.head = served.download(parts.put, options.timeout)
            spans = [(0, self.head.size)] if self.head else []
        else:
            entry = read_entry(served.key) if options.cache and self._is_model else None
            known = entry.revision if entry else Revision()
            self.head = served.open(first, known, parts.put, options.timeout)
            spans = [(0, self.head.fetched)] if self.head else []
            if self.head is not None and entry is not None and self.head.is_of(entry.revision, entry.size):
                self.head, self._is_kept = Head(entry.size, entry.revision), True
                spans = [(at, at + len(data)) for at, data in entry.parts]
                for at, data in entry.parts:
                    parts.put(at, data)
        if self.head is not None:
            parts.resize(self.head.size)
            parts.add(spans)
            self._graph += spans
            if self.head.size <= whole and (rest := parts.missing_spans([(0, self.head.size)])):
                self._graph_part(rest)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._known().size

    def buffer(self) -> Window:
        """Return its bytes, fetched when somebody looks at them."""
        return Window(self.size, self._parts, self._graph_part)

    def local(self, spans: Sequence[Span]) -> Path:
        """Fetch parts of it, together, and return the file that has them."""
        missing = self._parts.missing_spans([(start, min(stop, self.size)) for start, stop in spans])
        size = sum(stop - start for start, stop in missing)
        if self._weights < NOTEWORTHY <= self._weights + size:
            self._options.notice(f"fetching weights of {self._served.label}, {self._weights + size:,} bytes so far")
        self._weights += size
        if missing:
            self._fetch(missing, None)
            self._served.check(self._known())
        if 0 < size <= SMALL:
            self._keep_in_cache(missing)
        return self._parts.path

    def beside(self, location: str) -> tuple[Path, int | None]:
        """Return the path that stands for a file beside it, and that file's size."""
        if location not in self._beside:
            data = RemoteFile(self._served.beside(location), self._folder, location, self._options)
            data.begin(1, 1)
            self._beside[location] = data
        data = self._beside[location]
        return data.path, data.head.size if data.head else None

    def read(self) -> None:
        """Check that one revision was read, and keep the graph for another time."""
        self._end = None
        if not self._is_kept:
            self._served.check(self._known())
            self._keep_in_cache([])

    def _graph_part(self, spans: Sequence[Span]) -> None:
        if self._end is None:
            self._fetch(spans, None)
            return
        if (remaining := self._end - time.monotonic()) <= 0:
            raise self._served.out_of_time(self._options.timeout)
        self._graph += spans
        if sum(stop - start for start, stop in self._graph) > MAX_GRAPH:
            problem = f"its graph has more than {MAX_GRAPH:,} bytes beside the weights"
            raise self._served.error(problem, "fetch all of it with --download")
        self._is_kept = False
        self._fetch(spans, remaining)

    def _fetch(self, spans: Sequence[Span], seconds: float | None) -> None:
        self._served.fetch(spans, self._known(), self._parts.put, total=seconds, idle=self._options.timeout)
        self._parts.add(spans)

    def _keep_in_cache(self, more: Sequence[Span]) -> None:
        self._graph += more
        head, options = self._known(), self._options
        if head.revision and options.cache and not options.download and self._is_model:
            parts = [(start, self._parts.bytes(start, stop)) for start, stop in join_spans(self._graph)]
            write_entry(self._served.key, Entry(head.size, head.revision, parts))
        self._is_kept = True

    def _known(self) -> Head:
        if self.head is None:
            raise self._served.error("is not there", "put it beside the model")
        return self.head


# Where the next headers lie, when those of a file repeat as the layers of its model do.
#
# The header of a weight says where the next one begins, so that they would have to be read one after the other. But the
# weights of a layer are as large as those of the layer before: where headers have been at 0, 10, 40, 50, 80, there will
# be others at 90, 120, 130, ... A name that is a letter longer moves them a little.


def predict_offsets(offsets: Sequence[int], end: int, count: int) -> list[tuple[int, int]]:
    """Return at most so many offsets, before the end, that follow if the last ones go on as they did before.

    What came before is found where the last distances were already, as many of them as possible. Beside each offset is
    the number of a known one like it, behind which there are others already.
    """
    known = offsets[-HISTORY:]
    steps = [after - before for before, after in itertools.pairwise(known)]
    start, longest = 0, 0  # where the longest run of steps ends that are the last ones, too; the latest of several
    for place in range(len(steps) - 1, 0, -1):
        length = 0
        while length < place and abs(steps[place - 1 - length] - steps[-1 - length]) <= SLACK:
            length += 1
        if length > longest:
            start, longest = place, length
    if not longest:
        return []
    following: list[tuple[int, int]] = []
    at, period, skipped = offsets[-1], len(steps) - start, len(offsets) - len(known)
    for number in range(count):
        like = start + number % period
        at += steps[like]
        if at >= end:
            break
        following.append((at, skipped + (like + 1 if like + 1 < len(steps) else start)))
    return following


class Window:
    """The bytes of a file, as `bytes` has them: `parts` are here, and `fetch` brings others there."""

    def __init__(self, size: int, parts: Parts, fetch: Callable[[Sequence[Span]], None]) -> None:
        self._size, self._parts, self._fetch = size, parts, fetch
        self._here = 0, 0  # the part that the reader is in
        self._furthest = 0  # the end of what it has looked at
        self._jumps: list[int] = []  # where it went on behind a weight, and how far it read from there
        self._reaches: list[int] = []
        self._step, self._has_tail = STEP // GROWTH, size <= STEP
        self._guesses, self._open, self._right = FEW, 0, 0  # how many to make, those made last, those that were right

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> bytes: ...
    def __getitem__(self, index: int | slice) -> int | bytes:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._size)
            if start < stop:
                self._look_at(start, stop)
            return self._parts.bytes(start, stop)
        start, stop = self._here
        if not start <= index < stop or index > self._furthest:
            self._look_at(index, index + 1)
        return self._parts.byte(index)

    def _look_at(self, start: int, stop: int) -> None:
        """Fetch what is not here of a part that the reader looks at."""
        is_jump = start > self._furthest + NEAR
        if is_jump:
            self._jumps.append(start)
            self._reaches.append(0)
            self._step = HEADER
        if not self._parts.missing_spans([(start, stop)]):
            self._right += is_jump
        elif stop <= self._furthest:
            self._fetch_near([(start, stop)])
        elif is_jump:
            self._fetch_near([(start, max(stop, start + HEADER)), *self._guess_headers()])
        else:
            end = self._parts.around(start)[1]
            self._step = min(GROWTH * self._step, LONGEST)
            self._fetch_near([(end if end > start - NEAR else start, max(stop, start + self._step))])
        self._furthest = max(self._furthest, stop)
        if self._jumps:
            self._reaches[-1] = self._furthest - self._jumps[-1]
        self._here = self._parts.around(start)

    def _guess_headers(self) -> list[Span]:
        """Return where the next headers may be, and the end of the file, once."""
        if self._open:
            self._guesses = min(2 * self._guesses, MANY) if self._right >= self._open else FEW
        guesses = predict_offsets(self._jumps, self._size, self._guesses)
        self._open, self._right = len(guesses), 0
        spans = [(at - BEFORE, at + max(HEADER, min(self._reaches[like], STEP)) + BEFORE) for at, like in guesses]
        if not self._has_tail:
            self._has_tail = True
            spans.append((self._size - TAIL, self._size))
        return spans

    def _fetch_near(self, spans: Sequence[Span]) -> None:
        """Fetch parts, and what is between two of them that are close."""
        missing = self._parts.missing_spans([(max(start, 0), min(stop, self._size)) for start, stop in spans])
        self._fetch(join_spans(missing, GAP))
