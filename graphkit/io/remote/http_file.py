"""Files on web servers, of which ranges are asked for; what breaks off is asked for again from there."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import aiohttp
from fsspec.asyn import get_loop, sync
from yarl import URL

from graphkit.io.remote.http_answer import (
    WHOLE,
    Again,
    Fault,
    Missing,
    check_answer,
    problem_of,
    redirect_target,
    revision_headers,
)
from graphkit.io.remote.http_session import AT_ONCE, get
from graphkit.io.remote.server import Head, Revision, Served, Sink, Span, part_spans
from graphkit.io.remote.urls import file_name, shown_url, sibling_url, without_user

__all__ = ["HttpFile"]

T = TypeVar("T")
ATTEMPTS, PAUSE = 4, 0.2
REDIRECTS = 5
PART = 64 << 20  # bytes of a request at most
PROGRESS = 1 << 20  # bytes after which attempts are counted anew
UNKNOWN = Revision()


@dataclass(frozen=True)
class Ask:
    """A part of a file that is asked for.

    Attributes:
        span: The part.
        head: The size and revision that answers have to have; None where nothing is known of the file yet.
        known: The revision of which no bytes are wanted.
        whole: The bytes up to which all of the file is wanted instead. That many are asked for, as the answer says how
            long it is; where it is longer, none of them is taken, and the part is asked for alone.
    """

    span: Span
    head: Head | None = None
    known: Revision = UNKNOWN
    whole: int = 0

    @property
    def range(self) -> Span:
        """The part to ask the server for."""
        return self.span[0], max(self.span[1], self.whole)

    def end(self, head: Head) -> int:
        """Return where what is wanted of a file ends."""
        return head.size if head.size <= self.whole else min(self.span[1], head.size)

    def is_long(self, head: Head) -> bool:
        """Whether the file is so long that an answer with all that was asked for has more than what is wanted."""
        return self.end(head) < min(self.range[1], head.size)

    def of(self, head: Head, at: int) -> Ask:
        """Return what is still wanted from an offset on, of the file that an answer described."""
        return Ask((at, self.end(head)), head)


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

    def open(self, first: int, whole: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes, in one request where there is no redirect."""
        self._idle = seconds
        return self._ask_first(Ask((0, first), known=known, whole=whole), sink, seconds)

    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file, in one request."""
        self._idle = idle
        return self._ask_first(Ask((0, WHOLE)), sink, None)

    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of it, up to 32 at once."""

        async def every() -> None:
            free = asyncio.Semaphore(AT_ONCE)

            async def fetch_part(span: Span) -> None:
                async with free:
                    await self._asked(Ask(span, head), sink)

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

    def _ask_first(self, ask: Ask, sink: Sink, total: float | None) -> Head | None:
        try:
            return self._run(self._asked(ask, sink), total)
        except Missing:
            return None

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

    async def _asked(self, ask: Ask, sink: Sink) -> Head:
        """Fetch a part of it, with some more attempts from where one broke off; return what the first answer says."""
        tries, counted_from, begin, at = 0, ask.span[0], ask.span[0], ask.span[0]

        def taken(offset: int, data: bytes) -> None:
            nonlocal at
            sink(offset, data)
            at = offset + len(data)

        def described(head: Head) -> None:
            nonlocal ask
            ask = ask.of(head, at)

        while True:
            try:
                answer = await self._answered(ask, taken, described)
                if answer.is_known or at >= ask.end(answer):
                    return replace(answer, fetched=at)
                if ask.is_long(answer):
                    ask = ask.of(answer, at)
                    continue
                ask = ask.of(ask.head or answer, at)
                raise Again("the server sends less than it was asked for")
            except Again as fault:
                if ask.head is not None and at >= ask.span[1]:
                    return replace(ask.head, fetched=at)  # every byte had come before
                tries, counted_from = (1, at) if at - counted_from >= PROGRESS else (tries + 1, counted_from)
                if tries == ATTEMPTS:
                    problem = f"{fault}; graphkit tried {ATTEMPTS} times"
                    raise Fault(problem, "check the URL and the network, or try again later") from fault
                await asyncio.sleep(max(PAUSE * 2 ** (tries - 1) * random.uniform(0.5, 1.5), fault.pause))
                at = at if ask.head is not None else begin  # where nothing says of which file the bytes were
                ask = replace(ask, span=(at, ask.span[1]))

    async def _answered(self, ask: Ask, sink: Sink, described: Callable[[Head], None]) -> Head:
        """Ask once for a part, wherever that leads, and return what the answer says of the file.

        That is told before the bytes are taken where the rest may be asked for alone, if the connection breaks off.
        """
        url = self._final or self._address
        for _ in range(REDIRECTS + 1):
            async with get(url, self._request_headers(url, ask), self._idle) as answer:
                self._learn(answer.headers)
                if (location := redirect_target(answer)) is not None:
                    url, ask = self._follow_redirect(url, location), self._sized_request(ask, answer.headers)
                    continue
                if self._final is not None and answer.status in (401, 403, 404, 410):
                    self._final = None  # what it led to was for a while; ask where it leads to now
                    raise Again(problem_of(answer.status))
                self._final = url
                head, part = check_answer(answer, ask.range, ask.head, ask.known)
                if ask.is_long(head):
                    return head  # and hang up
                if ask.head is None and answer.status == 206 and head.revision:
                    described(head)
                await _take(answer, part, sink)
                return head
        raise Fault(f"the server redirects more than {REDIRECTS} times")

    def _request_headers(self, url: URL, ask: Ask) -> dict[str, str]:
        """Return the headers of a request; the login is for its own server alone."""
        start, stop = ask.range
        headers = {"Accept-Encoding": "identity", **(revision_headers(ask.known) if ask.head is None else {})}
        if stop < WHOLE or start:
            headers["Range"] = f"bytes={start}-{stop - 1 if stop < WHOLE else ''}"
        return headers | self._headers if url.origin() == self._origin else headers

    def _follow_redirect(self, url: URL, location: str) -> URL:
        """Return where a redirect leads."""
        try:
            there = url.join(URL(location, encoded=True))
            is_on_web = there.scheme in ("http", "https") and bool(there.host)
        except ValueError as error:
            raise Fault("the server redirects to something that is not a URL") from error
        if not is_on_web:
            raise Fault("the server redirects to something that is not on a web server")
        return there

    def _sized_request(self, ask: Ask, headers: Mapping[str, str]) -> Ask:
        """Return what to ask for where a redirect leads: no more than the beginning, if it says that a file is long."""
        size = self._told_size(headers)
        return ask if size is None or size <= ask.whole else replace(ask, whole=0)

    def _learn(self, headers: Mapping[str, str]) -> None:
        """Take what an answer says of where the file is."""

    def _told_size(self, headers: Mapping[str, str]) -> int | None:  # noqa: ARG002 - there is no such header of HTTP
        """Return how long a redirect says that the file is, None where it does not."""
        return None


async def _take(answer: aiohttp.ClientResponse, part: Span, sink: Sink) -> None:
    """Take the bytes of an answer, as many as it should have."""
    at, stop = part
    async for data in answer.content.iter_any():
        if at + len(data) > stop:
            raise Fault("the server sends more bytes than it was asked for", "fetch all of it with --download")
        sink(at, data)
        at += len(data)
    if at < stop:
        raise Again("the connection ends before the data do")
