"""URLs of models: which names are URLs, and how messages show them, without the credentials that may be in them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from graphkit.errors import UsageError

__all__ = [
    "file_name",
    "is_hub_repository",
    "is_url",
    "local_path",
    "scheme_of",
    "shown_url",
    "sibling_url",
    "without_user",
]

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:://|::)")  # fsspec joins schemes with ::
MAX_NAME = 200


def is_url(name: str) -> bool:
    """Whether a name is a URL, and no path."""
    return URL.match(name) is not None


def scheme_of(url: str) -> str:
    """Return the scheme, in small letters."""
    return re.split("://|::", url, maxsplit=1)[0].lower()


def is_hub_repository(url: str) -> bool:
    """Whether a URL names a repository of the hub, and nothing in it."""
    return re.fullmatch(r"hf://(?:(?:datasets|spaces)/)?(?!datasets/|spaces/)[^/]+/[^/]+/?", url) is not None


def local_path(url: str) -> Path:
    """Return the path of a file:// URL.

    Raises:
        UsageError: It names another machine.
    """
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{shown_url(url)}: names a file of another machine - write file:///folder/model.onnx")
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
