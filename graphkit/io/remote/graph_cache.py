"""The cache of graphs that were read from servers: the bytes of a file that its reader looked at, by URL and revision.

An entry is a file: a line of JSON, then the bytes. A checksum tells one that was damaged. No credentials are in it: the
URL, which may have some, names the entry by a checksum, and messages alone name the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from graphkit.io.remote.server import Revision

__all__ = ["Entry", "cache_folder", "read_entry", "write_entry"]

FORMAT = 1
MAX_ENTRY = 32 << 20  # bytes
MAX_CACHE = 256 << 20


@dataclass(frozen=True)
class Entry:
    """The cached parts of a file.

    Attributes:
        size: Bytes of the whole file.
        parts: Those that are kept, by their offset.
    """

    size: int
    revision: Revision
    parts: Sequence[tuple[int, bytes]]


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
    line, _, body = content.partition(b"\n")
    try:
        fields = json.loads(line)
        if fields["format"] != FORMAT or fields["sha256"] != _entry_checksum(fields, body):
            return None
        entry = Entry(fields["size"], Revision(fields["etag"], fields["modified"]), _cut_parts(fields["parts"], body))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return entry


def write_entry(key: str, entry: Entry) -> None:
    """Keep something of a file, and throw away what was not used for the longest time where there is too much.

    A cache that cannot be written stays as it is.
    """
    body = b"".join(data for _, data in entry.parts)
    fields: dict[str, object] = {
        "format": FORMAT,
        "size": entry.size,
        "etag": entry.revision.etag,
        "modified": entry.revision.modified,
        "parts": [[offset, len(data)] for offset, data in entry.parts],
    }
    content = json.dumps({**fields, "sha256": _entry_checksum(fields, body)}).encode() + b"\n" + body
    if len(content) > MAX_ENTRY:
        return
    path = _entry_path(key)
    beside = path.with_name(f".{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        _shrink_cache(path.parent)


def _entry_path(key: str) -> Path:
    return cache_folder() / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def _entry_checksum(fields: dict[str, object], body: bytes) -> str:
    named = {name: value for name, value in fields.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode() + b"\n" + body).hexdigest()


def _cut_parts(parts: Sequence[tuple[int, int]], body: bytes) -> list[tuple[int, bytes]]:
    cut, at = [], 0
    for offset, length in parts:
        cut.append((offset, body[at : at + length]))
        at += length
    return cut


def _shrink_cache(place: Path) -> None:
    """Remove the files that were not used for the longest time, as long as there are too many bytes."""
    files = []
    for file in place.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= MAX_CACHE:
            return
        file.unlink(missing_ok=True)
        total -= size
