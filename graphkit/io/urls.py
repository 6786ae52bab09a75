"""URLs of models: which names are URLs, how they are shown without credentials, and how their models are to be read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from msgspec import Struct

from graphkit.errors import UsageError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:://|::)")  # fsspec joins schemes with ::
MAX_NAME = 200
_CURRENT: ContextVar[RemoteOptions | None] = ContextVar("remote_options", default=None)


def is_url(name: str) -> bool:
    """Whether a name is a URL, and no path."""
    return URL.match(name) is not None


def scheme_of(url: str) -> str:
    """Return the scheme, in small letters."""
    return re.split("://|::", url, maxsplit=1)[0].lower()


def is_hub_repository(url: str) -> bool:
    """Whether a URL names a repository of the hub, and nothing in it."""
    return re.fullmatch(r"hf://(?:(?:datasets|spaces)/)?(?!datasets/|spaces/)[^/]+/[^/]+/?", url) is not None


def is_listing(url: str) -> bool:
    """Whether a URL names an organisation, a repository or a folder of the hub, and no file."""
    listing = r"hf://(?!datasets/|spaces/)([^/@]+)(?:/([^/@]+)(?:@([^/]+))?(?:/(.*))?)?/?"
    return re.fullmatch(listing, url) is not None and not url.endswith(".onnx")


def local_path(url: str) -> Path:
    """Return the path of a file:// URL. Raises UsageError where it names another machine."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{shown_url(url)}: names a file of another machine - write file:///folder/model.onnx")
    from urllib.request import url2pathname  # which takes as long to import as a small model to read

    return Path(url2pathname(parts.path))


def without_user(url: str) -> str:
    """Return a URL without a name and a password before its host."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def shown_url(url: str) -> str:
    """Return a URL as messages show it: passwords and signed queries, which are credentials, are left out."""
    if "::" in url:
        return "::".join(shown_url(part) if "://" in part else part for part in url.split("::"))
    try:
        parts = urlsplit(without_user(url))
    except ValueError:  # such as a host that is half an IPv6 address
        return f"{scheme_of(url)}://..."
    return urlunsplit(parts._replace(query="..." if parts.query else "", fragment=""))


def file_name(url: str) -> str:
    """Return the name of the file that a URL names."""
    path = url.partition("::")[0] if "::" in url else urlsplit(url).path
    name = unquote(path.rstrip("/").rpartition("/")[2]).replace("\0", "").replace("/", "_")
    return name[-MAX_NAME:] if name.strip(".") else "model.onnx"


def sibling_url(url: str, location: str) -> str:
    """Return the URL of a file at a location relative to that of a file; the query, which may be a key, stays."""
    parts = urlsplit(url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{folder}/{quote(location)}", fragment=""))


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """How models on servers are read.

    Attributes:
        download: Whether to fetch the whole file first, as a server needs that serves no parts of files.
        cache: Whether graphs are kept on this machine, for the next time that they are read.
        timeout: Seconds in which a graph has to be read; of weights, in which the next bytes have to come.
        notice: Called with a sentence before many bytes of weights are fetched.
    """

    download: bool = False
    cache: bool = True
    timeout: float = 60.0
    notice: Callable[[str], None] = lambda _: None


def current_options() -> RemoteOptions:
    """Return the options of the block that runs, the default ones outside of any."""
    return _CURRENT.get() or RemoteOptions()


@contextlib.contextmanager
def remote_options(options: RemoteOptions) -> Iterator[None]:
    """Let models on servers be read in one way inside the block."""
    token = _CURRENT.set(options)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_folder(url: str) -> bool:
    """Whether a URL is written as that of a folder: a slash or no dot is at its end, or it names a repository.

    Web servers, whose files may have any name, have folders with a slash alone.
    """
    path = url.partition("::")[0].partition("?")[0]
    if path.endswith("/") or is_hub_repository(url):
        return True
    return scheme_of(url) not in ("http", "https", "file") and "." not in path.rpartition("/")[2]
