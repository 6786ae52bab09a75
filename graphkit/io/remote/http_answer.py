"""Answers of web servers: whether one is what was asked for, and what it says of the file.

Source: RFC 9110, HTTP Semantics (14 Range Requests, 13 Conditional Requests, 8.8 Validator Fields).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

import aiohttp

from graphkit.io.remote.server import CHANGED, Head, Revision, Span

__all__ = [
    "HINTS",
    "WHOLE",
    "Again",
    "Fault",
    "Missing",
    "check_answer",
    "problem_of",
    "redirect_target",
    "revision_headers",
]

WHOLE = 1 << 62  # the end of a file of unknown size
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
REDIRECTS = {301, 302, 303, 307, 308}
LONGEST_PAUSE = 10.0
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
ALL_OF_IT = re.compile(r"bytes \*/(\d{1,19})", re.ASCII)
HINTS = {
    401: "log in as its library wants it: `hf auth login` or HF_TOKEN for hf://, ~/.netrc for https://",
    403: "ask for access; where the URL is signed, its time may be over",
    404: "check the URL",
}
DOWNLOAD = "fetch all of it with --download"
DOWNLOAD_BY_HAND = "fetch the file by other means, and name the file"


class Fault(Exception):
    """A fault of a server or of a file, with a hint."""

    def __init__(self, problem: str, hint: str = "check the URL") -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint


class Again(Exception):
    """A fault that may pass, and how many seconds the server wants to be left alone."""

    def __init__(self, problem: str, pause: float = 0.0) -> None:
        super().__init__(problem)
        self.pause = pause


class Missing(Exception):
    """There is no such file."""


def revision_headers(known: Revision) -> dict[str, str]:
    """Return the headers that ask for a file unless it has a revision."""
    if known.etag:
        return {"If-None-Match": known.etag}
    return {"If-Modified-Since": known.modified} if known.modified else {}


def redirect_target(response: aiohttp.ClientResponse) -> str | None:
    """Return where an answer says that the file is, None where it is here."""
    return response.headers.get("Location") if response.status in REDIRECTS else None


def check_answer(response: aiohttp.ClientResponse, span: Span, head: Head | None, known: Revision) -> tuple[Head, Span]:
    """Return what an answer says of the file, and which part of it follows.

    Args:
        response: The answer.
        span: The part that was asked for.
        head: What answers before said, None for the first one.
        known: The revision of which no bytes are wanted.

    Raises:
        Again: The server has a fault that may pass.
        Fault: It has one that does not, or the file has changed.
        Missing: There is no such file, and no answer said otherwise.
    """
    status, headers = response.status, response.headers
    revision = Revision(headers.get("ETag", ""), headers.get("Last-Modified", ""))
    if status == 304 and known:
        return Head(0, known, is_known=True), (0, 0)
    if status in TRANSIENT:
        raise Again(problem_of(status), _pause_seconds(headers.get("Retry-After", "")))
    if status in (404, 410) and head is None:
        raise Missing
    if status == 416 and (match := ALL_OF_IT.fullmatch(headers.get("Content-Range", ""))):
        if int(match[1]) == 0 == span[0] and head is None:
            return Head(0, revision), (0, 0)
        raise Fault(CHANGED, "run the command again")
    if status not in (200, 206):
        raise Fault(problem_of(status), HINTS.get(status, "check the URL"))
    if headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise Fault("the server compresses what it sends, though it was asked not to", DOWNLOAD_BY_HAND)
    length = response.content_length
    size, part = _partial_answer(headers, length, span) if status == 206 else _whole_answer(length, span, head)
    if head is not None and (size != head.size or not head.revision.agrees(revision)):
        raise Fault(CHANGED, "run the command again")
    return Head(size, revision), part


def problem_of(status: int) -> str:
    """Return a status in words."""
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"the server answers {status}" + (f" ({known[status]})" if status in known else "")


def _partial_answer(headers: Mapping[str, str], length: int | None, span: Span) -> tuple[int, Span]:
    """Return the size of the file and the part of it that an answer has."""
    text = headers.get("Content-Range", "")
    match = CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise Fault(f"the server sends a range that it describes as {text[:60]!r}", DOWNLOAD)
    first, last, size = map(int, match.groups())
    if first != span[0] or not first <= last < min(size, span[1]):
        requested = f"{span[0]:,} to {min(span[1], size) - 1:,}"
        raise Fault(f"the server sends bytes {first:,} to {last:,} where {requested} were asked for", DOWNLOAD)
    if length not in (None, last + 1 - first):
        raise Fault(f"the server says that {length:,} bytes follow, and that they are {first:,} to {last:,}", DOWNLOAD)
    return size, (first, last + 1)


def _whole_answer(size: int | None, span: Span, head: Head | None) -> tuple[int, Span]:
    """Return the size of the file and all of it, where an answer has that, and that is no more than was asked for."""
    if size is None and span == (0, WHOLE):
        raise Fault("the server does not say how long the file is", DOWNLOAD_BY_HAND)
    if span[0] or size is None or size > span[1]:
        if head is not None and size not in (None, head.size):
            raise Fault(CHANGED, "run the command again")
        length = "" if size is None else f" of {size:,} bytes"
        raise Fault(f"the server sends no parts of files, only all{length}", DOWNLOAD)
    return size, (0, size)


def _pause_seconds(text: str) -> float:
    return min(float(text), LONGEST_PAUSE) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0
