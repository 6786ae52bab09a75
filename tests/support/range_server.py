"""A web server on this machine that serves parts of files, and can do it wrong in every way."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Asked", "Site", "serving"]

MOST = 64 << 20  # bytes that an endless answer has here
BLOCK = 64 << 10


@dataclass(frozen=True)
class Asked:
    """A request."""

    path: str
    range: str
    headers: dict[str, str]


@dataclass
class Site:
    """Files by path, and what is wrong with the server.

    Attributes:
        fault: The name of a fault.
        after: Requests that are answered rightly before the fault begins.
        times: How often the fault happens.
        status: What the fault `status` answers.
        asked: The requests that came.
        sent: Bytes of bodies that were sent.
        over: Set when the server ends.
    """

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    has_etags: bool = True
    fault: str = ""
    after: int = 0
    times: int = 1 << 30
    status: int = 500
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def put(self, path: str, content: bytes) -> str:
        """Serve a file, with a tag of its own, and return its URL."""
        self.files[path] = content
        self.etags[path] = f'"{len(self.etags)}-{time.monotonic_ns():x}"'
        return self.base + path

    def fails(self) -> str:
        """Return the fault of this request, if it has one."""
        number = len(self.asked) - 1
        return self.fault if self.after <= number < self.after + self.times else ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.asked.append(Asked(self.path, self.headers.get("Range", ""), dict(self.headers)))
        fault = site.fails()
        path = self.path.partition("?")[0]
        if fault == "status":
            self.answer(site.status, b"no", {"Retry-After": "0"})
        elif fault == "drop before":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "slow":
            site.over.wait()
        elif fault == "loop":
            self.answer(302, b"", {"Location": self.path})
        elif path in site.redirects:
            self.answer(302, b"", {"Location": site.redirects[path], **site.headers})
        elif path not in site.files:
            self.answer(404, b"nothing here")
        else:
            self.file(path, fault)

    def file(self, path: str, fault: str) -> None:
        site, content = self.site, self.site.files[path]
        etag = '"another"' if fault == "changed" else site.etags[path]
        if fault == "changed size":
            content = content[: len(content) // 2] + b"\0" * len(content)
        headers = {"ETag": etag} if site.has_etags else {}
        if site.has_etags and self.headers.get("If-None-Match") == etag:
            self.answer(304, b"", headers)
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None or fault in ("no ranges", "no length"):
            self.whole(content, headers, fault)
            return
        start, stop = int(match[1]), min(int(match[2] or len(content)) + 1, len(content))
        if start >= len(content):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        self.part(content, start, stop, headers, fault)

    def whole(self, content: bytes, headers: dict[str, str], fault: str) -> None:
        if fault == "no length":
            self.endless(200, headers)
        else:
            self.answer(200, content, headers)

    def part(self, content: bytes, start: int, stop: int, headers: dict[str, str], fault: str) -> None:
        size, body = len(content), content[start:stop]
        shown = f"bytes {start}-{stop - 1}/{size}"
        if fault == "other range":
            shown, body = f"bytes 0-{stop - start - 1}/{size}", content[: stop - start]
            shown = shown if start else f"bytes 1-{stop - 1}/{size}"
        elif fault == "garbage range":
            shown = "bytes of \x1b[31m mine"
        elif fault == "huge":
            shown = f"bytes {start}-{stop - 1}/{(1 << 62) + 7}"
        elif fault == "gzip":
            headers = {**headers, "Content-Encoding": "gzip"}
        elif fault == "half":
            half = max((stop - start) // 2, 1)
            shown, body = f"bytes {start}-{start + half - 1}/{size}", body[:half]
        headers = {**headers, "Content-Range": shown}
        if fault == "endless":
            self.endless(206, headers)
        elif fault == "too long":
            self.answer(206, body + b"more", headers)
        elif fault == "too short":
            self.answer(206, body[:-1], headers)
        elif fault == "drop":
            self.begin(206, {**headers, "Content-Length": str(len(body))})
            self.write(body[: len(body) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "no end":
            self.begin(206, {**headers, "Transfer-Encoding": "chunked"})
            self.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault.startswith("length "):
            lies = {"too long": str(len(body) + 1), "too short": str(len(body) - 1), "is no number": "many"}
            self.begin(206, {**headers, "Content-Length": lies[fault.removeprefix("length ")]})
            self.write(body)
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "drip":
            self.begin(206, {**headers, "Content-Length": str(len(body))})
            for at in range(len(body)):
                self.write(body[at : at + 1])
                if self.site.over.wait(0.05):
                    break
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.answer(206, body, headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.begin(status, {**(headers or {}), **({} if status == 304 else {"Content-Length": str(len(body))})})
        if status != 304:
            self.write(body)

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def endless(self, status: int, headers: dict[str, str]) -> None:
        self.begin(status, {**headers, "Transfer-Encoding": "chunked"})
        block = bytes(1 << 16)
        for _ in range(MOST // len(block)):
            self.write(b"10000\r\n" + block + b"\r\n")

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BLOCK)  # so that `sent` is what has left

    def write(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), BLOCK):
                block = data[at : at + BLOCK]
                self.site.sent += len(block)  # before the client has them, and looks here
                self.wfile.write(block)
        except OSError:  # the client has left
            self.close_connection = True
            raise ConnectionResetError from None

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Site]:
    """Serve files from a thread of this process."""
    site = Site()
    server = Server(("127.0.0.1", 0), type("SiteHandler", (Handler,), {"site": site}))
    site.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
