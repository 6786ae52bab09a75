"""Requests to web servers: connections that are kept, logins of ~/.netrc, proxies of the environment."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.asyn import get_loop, sync
from yarl import URL

from graphkit.io.remote.http_answer import Again, Fault

__all__ = ["AT_ONCE", "get", "hang_up"]

AT_ONCE = 32  # requests


@asynccontextmanager
async def get(url: URL, headers: Mapping[str, str], idle: float) -> AsyncIterator[aiohttp.ClientResponse]:
    """Give the answer to a request, which may be a redirect; what is not read of it stays with the server.

    Args:
        url: The address.
        headers: The headers; where there is no login among them, ~/.netrc may have one.
        idle: Seconds that may pass without a byte.

    Raises:
        Again: The way to the server has a fault that may pass, such as while the answer is read.
        Fault: It has one that does not.
        TimeoutError: The server is too slow.
    """
    has_login = "Authorization" in headers
    session, proxy = _shared_session(has_login=has_login), _proxy_of(url) if has_login else None
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=idle, sock_read=idle)
    try:
        async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False, proxy=proxy) as response:
            try:
                yield response
            finally:
                hang_up(response)
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


def hang_up(response: aiohttp.ClientResponse) -> None:
    """Close a connection with an answer that was not read to its end, at once: TLS would wait for the other side."""
    transport = response.connection.transport if response.connection else None
    if transport is not None and not response.content.is_eof():
        transport.abort()


@cache
def _shared_session(*, has_login: bool) -> aiohttp.ClientSession:
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


def _proxy_of(url: URL) -> str | None:
    """Return the proxy that the environment names for a URL."""
    if url.host is None or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)
