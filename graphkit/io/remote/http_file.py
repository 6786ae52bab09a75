"""Files on web servers: ranges of them, in answers that are all checked; what breaks off is asked for again from there.

Source: RFC 9110, HTTP Semantics (14 Range Requests, 13 Conditional Requests, 8.8 Validator Fields).
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import random
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.asyn import get_loop, sync
from msgspec.structs import replace
from yarl import URL

from graphkit.io.remote.server import CHANGED, Head, Revision, Served, Sink, Span, part_spans
from graphkit.io.urls import file_name, shown_url, sibling_url, without_user

T = TypeVar("T")
AT_ONCE = 32  # requests
ATTEMPTS, PAUSE, LONGEST_PAUSE = 4, 0.2, 10.0
REDIRECTS = 5
PART = 64 << 20  # bytes of a request at most
PROGRESS = 1 << 20  # bytes after which attempts are counted anew
WHOLE = 1 << 62  # the end of a file of unknown size
UNKNOWN = Revision()
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
EMPTY_RANGE = re.compile(r"bytes \*/0+", re.ASCII)
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


class HttpFile(Served):
    """A file on a web server, `label` in messages; `headers` go to its own server, and to no other one."""

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

    def open(self, first: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes, in one request."""
        self._idle = seconds
        try:
            return self._run(self._fetch_part((0, first), None, known, sink), seconds)
        except Missing:
            return None

    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file, in one request."""
        self._idle = idle
        try:
            return self._run(self._fetch_part((0, WHOLE), None, UNKNOWN, sink), None)
        except Missing:
            return None

    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of it, up to 32 at once."""

        async def every() -> None:
            free = asyncio.Semaphore(AT_ONCE)

            async def fetch_part(span: Span) -> None:
                async with free:
                    await self._fetch_part(span, head, UNKNOWN, sink)

            tasks = [asyncio.ensure_future(fetch_part(span)) for span in part_spans(spans, PART)]
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
        label = sibling_url(self.label, location) if "://" in self.label else location
        return type(self)(sibling_url(str(self._address), location), label=label, headers=self._headers)

    def _run(self, work: Awaitable[T], seconds: float | None) -> T:
        """Do work that asks the server for something, within a time."""

        async def bounded() -> T:
            return await asyncio.wait_for(work, seconds)

        try:
            done: T = sync(get_loop(), bounded)
        except Fault as fault:
            raise self.error(fault.problem, fault.hint) from fault
        except asyncio.TimeoutError as error:
            raise self.out_of_time(self._idle) from error
        return done

    async def _fetch_part(self, span: Span, head: Head | None, known: Revision, sink: Sink) -> Head:
        """Fetch a part of it, with some more attempts from where one broke off; return what the answers say.

        Answers have to have the size and revision of `head`, None where nothing is known of the file yet; of the
        `known` revision no bytes are wanted.
        """
        tries, counted_from, at = 0, span[0], span[0]
        while True:
            try:
                async with self._answer((at, span[1]), known if head is None else UNKNOWN) as answer:
                    described, (at, stop) = check_answer(answer, (at, span[1]), head, known)
                    if described.is_known:
                        return described
                    if answer.status == 206 and described.revision:
                        head = head or described  # so that the rest may be asked for alone
                    async for data in answer.content.iter_any():
                        if at + len(data) > stop:
                            raise Fault("the server sends more bytes than it was asked for", DOWNLOAD)
                        sink(at, data)
                        at += len(data)
                    if at < stop:
                        raise Again("the connection ends before the data do")
                if at >= min(span[1], described.size):
                    return replace(described, fetched=at)
                head = head or described
                raise Again("the server sends less than it was asked for")
            except Again as fault:
                if head is not None and at >= min(span[1], head.size):
                    return replace(head, fetched=at)  # every byte had come before
                tries, counted_from = (1, at) if at - counted_from >= PROGRESS else (tries + 1, counted_from)
                if tries == ATTEMPTS:
                    problem = f"{fault}; graphkit tried {ATTEMPTS} times"
                    raise Fault(problem, "check the URL and the network, or try again later") from fault
                await asyncio.sleep(max(PAUSE * 2 ** (tries - 1) * random.uniform(0.5, 1.5), fault.pause))
                at = at if head is not None else span[0]  # where nothing says of which file the bytes were

    @asynccontextmanager
    async def _answer(self, span: Span, known: Revision) -> AsyncIterator[aiohttp.ClientResponse]:
        """Give the answer to a request for a part, wherever that leads; what is not read of it stays with the server.

        Raises Again where the way to the server has a fault that may pass, also while the answer is read; Fault where
        it has one that does not; TimeoutError where the server is too slow.
        """
        url = self._final or self._address
        headers = {"Accept-Encoding": "identity"}
        if known.etag:
            headers["If-None-Match"] = known.etag
        elif known.modified:
            headers["If-Modified-Since"] = known.modified
        if span != (0, WHOLE):
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1 if span[1] < WHOLE else ''}"
        if url.origin() == self._origin:  # aiohttp sends a login to no other server that it is led to
            headers |= self._headers
        has_login = "Authorization" in headers
        needs_proxy = has_login and url.host is not None and not proxy_bypass(url.host)
        session, proxy = _shared_session(has_login=has_login), getproxies().get(url.scheme) if needs_proxy else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._idle, sock_read=self._idle)
        try:
            # aiohttp counts a redirect as one too many when the last of these comes
            more = {"max_redirects": REDIRECTS + 1, "timeout": timeout, "proxy": proxy}
            async with session.get(url, headers=headers, **more) as answer:
                try:
                    for each in (*answer.history, answer):
                        self._learn(each.headers)
                    if self._final is not None and answer.status in (401, 403, 404, 410):
                        self._final = None  # what it led to was for a while; ask where it leads to now
                        raise Again(problem_of(answer.status))
                    self._final = answer.url
                    yield answer
                finally:
                    # what was not read to its end is closed at once: TLS would wait for the other side
                    transport = answer.connection.transport if answer.connection else None
                    if transport is not None and not answer.content.is_eof():
                        transport.abort()
        except aiohttp.TooManyRedirects as error:
            raise Fault(f"the server redirects more than {REDIRECTS} times") from error
        except aiohttp.NonHttpUrlRedirectClientError as error:
            raise Fault("the server redirects to something that is not on a web server") from error
        except aiohttp.InvalidUrlRedirectClientError as error:
            raise Fault("the server redirects to something that is not a URL") from error
        except aiohttp.InvalidURL as error:
            raise Fault("is not a URL", "check it") from error
        except aiohttp.ClientSSLError as error:
            raise Fault("the certificate of the server is not valid") from error
        except asyncio.TimeoutError:  # which is a fault of the connection too
            raise
        except aiohttp.ClientConnectorError as error:
            raise Again("the server cannot be reached") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise Again("the connection breaks off") from error
        except aiohttp.ClientError as error:
            raise Fault("the server does not speak HTTP as it should") from error
        except ValueError as error:  # such as of a port that is none
            raise Fault("the server redirects to something that is not a URL") from error

    def _learn(self, headers: Mapping[str, str]) -> None:
        """Take what an answer, or a redirect before it, says of where the file is."""


def check_answer(answer: aiohttp.ClientResponse, span: Span, head: Head | None, known: Revision) -> tuple[Head, Span]:
    """Return what an answer to a request for a part says of the file, and which part of it follows.

    `head` is what answers before said, None for the first one; of the `known` revision no bytes are wanted. Raises
    Again where the server has a fault that may pass; Fault where it has one that does not, or the file has changed;
    Missing where there is no such file, and no answer said otherwise.
    """
    status, headers = answer.status, answer.headers
    revision = Revision(headers.get("ETag", ""), headers.get("Last-Modified", ""))
    if status == 304 and known:
        return Head(0, known, is_known=True), (0, 0)
    if status in TRANSIENT:
        pause = headers.get("Retry-After", "")
        is_number = pause.isascii() and pause.isdigit() and len(pause) < 9
        raise Again(problem_of(status), min(float(pause), LONGEST_PAUSE) if is_number else 0.0)
    if status in (404, 410) and head is None:
        raise Missing
    if status == 416 and head is None and EMPTY_RANGE.fullmatch(headers.get("Content-Range", "")):
        return Head(0, revision), (0, 0)
    if status == 416:
        raise Fault(CHANGED, "run the command again")
    if status not in (200, 206):
        raise Fault(problem_of(status), HINTS.get(status, "check the URL"))
    if headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise Fault("the server compresses what it sends, though it was asked not to", DOWNLOAD_BY_HAND)
    length = answer.content_length
    size, part = length or 0, (0, length or 0)
    if status == 206:
        text = headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise Fault(f"the server sends a range that it describes as {text[:60]!r}", DOWNLOAD)
        first, last, size = map(int, match.groups())
        part, sent = (first, last + 1), f"{first:,} to {last:,}"
        if first != span[0] or not first <= last < min(size, span[1]):
            requested = f"{span[0]:,} to {min(span[1], size) - 1:,}"
            raise Fault(f"the server sends bytes {sent} where {requested} were asked for", DOWNLOAD)
        if length not in (None, last + 1 - first):
            raise Fault(f"the server says that {length:,} bytes follow, and that they are {sent}", DOWNLOAD)
    elif length is None and span == (0, WHOLE):
        raise Fault("the server does not say how long the file is", DOWNLOAD_BY_HAND)
    elif span[0] or length is None or length > span[1]:  # all of it, and that is more than was asked for
        if head is not None and length not in (None, head.size):
            raise Fault(CHANGED, "run the command again")
        all_of_it = "" if length is None else f" of {length:,} bytes"
        raise Fault(f"the server sends no parts of files, only all{all_of_it}", DOWNLOAD)
    if head is not None and (size != head.size or not head.revision.agrees(revision)):
        raise Fault(CHANGED, "run the command again")
    return Head(size, revision), part


def problem_of(status: int) -> str:
    """Return a status in words."""
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"the server answers {status}" + (f" ({known[status]})" if status in known else "")


@cache
def _shared_session(*, has_login: bool) -> aiohttp.ClientSession:
    """Return the session of this process for requests with or without a login, which keeps its connections.

    Those without one take it from ~/.netrc, where there is one; aiohttp does not take both.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=AT_ONCE),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        requote_redirect_url=False,
        trust_env=not has_login,
    )
    atexit.register(lambda: sync(get_loop(), session.close, timeout=1))
    return session
