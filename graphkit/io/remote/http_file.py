"""Files on web servers, of which ranges are asked for; every answer is checked for being what was asked for.

Source: RFC 9110, HTTP Semantics (14 Range Requests, 13 Conditional Requests, 8.8 Validator Fields).
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import random
import re
from collections.abc import Awaitable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.asyn import get_loop, sync
from yarl import URL

from graphkit.io.remote.server import Head, Revision, Served, Sink, Span, parted
from graphkit.io.remote.urls import file_name, shown_url, sibling, without_user

__all__ = ["HttpFile"]

T = TypeVar("T")
ATTEMPTS, PAUSE, LONGEST_PAUSE = 4, 0.2, 10.0
AT_ONCE = 32  # requests
PART = 64 << 20  # bytes of a request at most
PROGRESS = 1 << 20  # bytes after which attempts are counted anew
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
ALL_OF_IT = re.compile(r"bytes \*/(\d{1,19})", re.ASCII)
UNKNOWN = Revision()
WHOLE = 1 << 62  # the end of a file of unknown size
HINTS = {
    401: "log in as its library wants it: `hf auth login` or HF_TOKEN for hf://, ~/.netrc for https://",
    403: "ask for access; where the URL is signed, its time may be over",
    404: "check the URL",
}
DOWNLOAD = "fetch all of it with --download"
DOWNLOAD_BY_HAND = "fetch the file by other means, and name the file"


class _Again(Exception):
    """A fault that may pass."""

    def __init__(self, problem: str, pause: float = 0.0) -> None:
        super().__init__(problem)
        self.pause = pause


class _MissingError(Exception):
    """There is no such file."""


@cache
def _session(*, has_login: bool) -> aiohttp.ClientSession:
    """Return the session of this process for requests with or without a login, which keeps its connections.

    Those without one take it from ~/.netrc, where there is one; aiohttp does not take both.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=AT_ONCE),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=not has_login,
    )
    atexit.register(lambda: sync(get_loop(), session.close, timeout=1))
    return session


class HttpFile(Served):
    """A file on a web server.

    Args:
        url: Its address.
        label: The address in messages, if that is another one.
        headers: Further headers for its own server, and no other one that it redirects to.
    """

    def __init__(self, url: str, *, label: str = "", headers: Mapping[str, str] = {}) -> None:
        self.label, self._headers, self._idle = label or shown_url(url), dict(headers), 0.0
        try:
            parts = urlsplit(url)
            self._address = URL(without_user(url))
            self._origin = self._address.origin()
        except ValueError as error:
            raise self.error("is not a URL", "check it") from error
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._final: URL | None = None  # where it leads to
        self.key, self.name = without_user(url), file_name(url)

    def open(self, length: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes, in one request."""
        return self._first(self._opened(length, known, sink), seconds, seconds)

    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file, in one request."""

        async def whole() -> Head:
            first: list[Head] = []
            await self._span((0, WHOLE), None, sink, first)
            return first[0]

        return self._first(whole(), None, idle)

    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of it, up to 32 at once."""

        async def every() -> None:
            free = asyncio.Semaphore(AT_ONCE)

            async def one(span: Span) -> None:
                async with free:
                    await self._span(span, head, sink, [])

            tasks = [asyncio.ensure_future(one(span)) for span in parted(spans, PART)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        self._idle = idle
        self._run(every(), total)

    def check(self, head: Head) -> None:
        """Do nothing: every answer was checked."""

    def beside(self, location: str) -> HttpFile:
        """Return the file at a location relative to this one, on the same server."""
        label = sibling(self.label, location) if "://" in self.label else location
        return type(self)(sibling(str(self._address), location), label=label, headers=self._headers)

    def _first(self, work: Awaitable[T], total: float | None, idle: float) -> T | None:
        self._idle = idle
        try:
            return self._run(work, total)
        except _MissingError:
            return None

    def _run(self, work: Awaitable[T], seconds: float | None) -> T:
        """Do work that asks the server for something, within a time."""

        async def bounded() -> T:
            return await asyncio.wait_for(work, seconds)

        try:
            done: T = sync(get_loop(), bounded)
        except asyncio.TimeoutError as error:
            raise self.out_of_time(self._idle) from error
        return done

    async def _opened(self, length: int, known: Revision, sink: Sink) -> Head:
        first: list[Head] = []
        await self._span((0, length), None, sink, first, known)
        return first[0]

    async def _span(
        self, span: Span, head: Head | None, sink: Sink, first: list[Head], known: Revision = UNKNOWN
    ) -> None:
        """Fetch a part of it, with some more attempts from where one broke off; put the first answer into a list."""
        at, stop = span
        tries, counted_from = 0, at

        def taken(offset: int, data: bytes) -> None:
            nonlocal at
            sink(offset, data)
            at = offset + len(data)

        while at < stop:
            try:
                answer = await self._answer((at, stop), head, taken, known if head is None else UNKNOWN)
                first.append(answer)
                head, stop = head or answer, min(stop, answer.size)
                if answer.is_known:
                    return
                if at < stop:
                    raise _Again("the server sends less than it was asked for")
            except _Again as fault:
                tries, counted_from = (1, at) if at - counted_from >= PROGRESS else (tries + 1, counted_from)
                if tries == ATTEMPTS:
                    problem = f"{fault}, {ATTEMPTS} times"
                    raise self.error(problem, "try again later, or look whether the server can be reached") from fault
                await asyncio.sleep(max(PAUSE * 2 ** (tries - 1) * random.uniform(0.5, 1.5), fault.pause))
                if head is None and at > span[0]:
                    at = span[0]  # nothing says of which file the bytes were
            else:
                return

    async def _answer(self, span: Span, head: Head | None, sink: Sink, known: Revision) -> Head:
        """Ask once for a part, and return what the answer says of the file.

        Raises:
            _Again: The server, or the way to it, has a fault that may pass.
            ModelError: It has one that does not.
        """
        url = self._final or self._address
        headers = {"Accept-Encoding": "identity", **_condition(known)}
        if span[1] < WHOLE or span[0]:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1 if span[1] < WHOLE else ''}"
        if url.origin() == self._origin:
            headers |= self._headers
        has_login = "Authorization" in headers
        session, proxy = _session(has_login=has_login), _proxy(url) if has_login else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._idle, sock_read=self._idle)
        try:
            async with session.get(url, headers=headers, timeout=timeout, max_redirects=5, proxy=proxy) as response:
                if self._final is not None and response.status in (401, 403, 404, 410):
                    self._final = None  # what it led to was for a while; ask where it leads to now
                    raise _Again(_status(response.status))
                self._final = response.url
                for answer in (*response.history, response):
                    self._learn(answer.headers)
                return await self._checked(response, span, head, sink, known)
        except aiohttp.InvalidURL as error:
            raise self.error("is not a URL", "check it") from error
        except aiohttp.TooManyRedirects as error:
            raise self.error("the server redirects more than 5 times", "check the URL") from error
        except aiohttp.ClientSSLError as error:
            raise self.error("the certificate of the server does not hold", "check the URL") from error
        except asyncio.TimeoutError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise _Again(_broken(error)) from error
        except aiohttp.ClientError as error:
            raise self.error("the server does not speak HTTP as it should", "check the URL") from error

    def _learn(self, headers: Mapping[str, str]) -> None:
        """Take what an answer says of where the file is."""

    async def _checked(
        self, response: aiohttp.ClientResponse, span: Span, head: Head | None, sink: Sink, known: Revision
    ) -> Head:
        """Return what an answer says of the file, when its bytes are taken and all of it is as it should be."""
        status, start = response.status, span[0]
        revision = Revision(response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))
        if status == 304 and known:
            return Head(0, known, is_known=True)
        if status in TRANSIENT:
            raise _Again(_status(status), _pause(response.headers.get("Retry-After", "")))
        if status in (404, 410) and head is None:
            raise _MissingError
        if status == 416 and (match := ALL_OF_IT.fullmatch(response.headers.get("Content-Range", ""))):
            if int(match[1]) == 0 == start and head is None:
                return Head(0, revision)
            raise self.changed()
        if status not in (200, 206):
            raise self.error(_status(status), HINTS.get(status, "check the URL"))
        if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
            raise self.error("the server compresses what it sends, though it was asked not to", DOWNLOAD_BY_HAND)
        if status == 206:
            found, stop = self._ranged(response, span, revision)
        else:
            found, stop = self._whole(response, span, revision, head)
        if head is not None and (found.size != head.size or not head.revision.agrees(revision)):
            raise self.changed()
        await self._taken(response, (start, stop), sink)
        return found

    def _ranged(self, response: aiohttp.ClientResponse, span: Span, revision: Revision) -> tuple[Head, int]:
        """Return what a part of the file says of it, and where the part ends."""
        text = response.headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise self.error(f"the server sends a range that it describes as {text[:60]!r}", DOWNLOAD)
        first, last, size = map(int, match.groups())
        if first != span[0] or not first <= last < min(size, span[1]):
            wanted = f"{span[0]:,} to {min(span[1], size) - 1:,}"
            raise self.error(f"the server sends bytes {first:,} to {last:,} where {wanted} were asked for", DOWNLOAD)
        return Head(size, revision), last + 1

    def _whole(
        self, response: aiohttp.ClientResponse, span: Span, revision: Revision, head: Head | None
    ) -> tuple[Head, int]:
        """Return what an answer with the whole file says of it, where it is no more than what was asked for."""
        size = response.content_length
        if size is None and span == (0, WHOLE):
            raise self.error("the server does not say how long the file is", DOWNLOAD_BY_HAND)
        if span[0] or size is None or size > span[1]:
            if head is not None and size not in (None, head.size):
                raise self.changed()
            length = "" if size is None else f" of {size:,} bytes"
            raise self.error(f"the server sends no parts of files, only all{length}", DOWNLOAD)
        return Head(size, revision), size

    async def _taken(self, response: aiohttp.ClientResponse, span: Span, sink: Sink) -> None:
        """Take the bytes of an answer, as many as it should have."""
        at, stop = span
        async for data in response.content.iter_any():
            if at + len(data) > stop:
                raise self.error("the server sends more bytes than it was asked for", DOWNLOAD)
            sink(at, data)
            at += len(data)
        if at < stop:
            raise _Again("the connection ends before the data do")


def _condition(known: Revision) -> dict[str, str]:
    """Return the headers that ask for a file unless it has a revision."""
    if known.etag:
        return {"If-None-Match": known.etag}
    return {"If-Modified-Since": known.modified} if known.modified else {}


def _proxy(url: URL) -> str | None:
    """Return the proxy that the environment names for a URL."""
    if url.host is None or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)


def _status(status: int) -> str:
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"the server answers {status}" + (f" ({known[status]})" if status in known else "")


def _pause(text: str) -> float:
    return min(float(text), LONGEST_PAUSE) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


def _broken(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return "the server cannot be reached"
    return "the connection breaks off"
