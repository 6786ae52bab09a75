"""The server of a URL, by its scheme; all that reads servers is imported when the first URL comes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.io.remote.options import RemoteOptions
from graphkit.io.remote.urls import local_path, scheme_of, shown_url

if TYPE_CHECKING:
    from graphkit.io.byte_source import ByteSource
    from graphkit.io.remote.server import Served

__all__ = ["open_url"]


def open_url(url: str, options: RemoteOptions) -> tuple[Path, ByteSource | None]:
    """Return the path that names a file, and its source, which the path stands for as long as somebody has it.

    Raises:
        UsageError: Packages are missing, or the URL is of no kind that is known.
        ModelError: The file cannot be read.
        OutputError: There is no room for what is fetched.
    """
    if scheme_of(url) == "file" and "::" not in url:
        return local_path(url), None
    try:
        served = _open_served(url, options.timeout)
        from graphkit.io.remote.remote_file import open_remote
    except ImportError as error:
        hint = f"install graphkit[remote], such as with pip: {error.name or error} is missing"
        raise UsageError(f"{shown_url(url)}: URLs need packages that are not installed - {hint}") from error
    source = open_remote(served, options)
    return source.path, source


def _open_served(url: str, seconds: float) -> Served:
    scheme = "" if "::" in url else scheme_of(url)
    if scheme == "hf":
        from graphkit.io.remote.hub import hub_file

        return hub_file(url)
    if scheme in ("http", "https"):
        from graphkit.io.remote.http_file import HttpFile

        return HttpFile(url)
    if scheme in ("s3", "s3a"):
        from graphkit.io.remote.s3_file import S3File

        return S3File(url, seconds)
    if scheme in ("gs", "gcs"):
        from graphkit.io.remote.gcs_file import gcs_file

        return gcs_file(url, seconds)
    from graphkit.io.remote.fsspec_file import FsspecFile

    return FsspecFile(url, seconds)
