"""What reads a URL, by its scheme; all that reads servers is imported when the first URL comes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.io.urls import RemoteOptions, is_hub_repository, local_path, scheme_of, shown_url

if TYPE_CHECKING:
    from graphkit.io.byte_source import ByteSource
    from graphkit.io.remote.server import Served


def open_url(url: str, options: RemoteOptions) -> tuple[Path, ByteSource | None]:
    """Return the path that names a file, and its source, which the path stands for as long as somebody has it.

    Raises:
        UsageError: Packages are missing, or the URL is of no kind that is known.
        ModelError: The file cannot be read.
        OutputError: There is no room for what is fetched.
    """
    if scheme_of(url) == "file" and "::" not in url:
        return local_path(url), None
    scheme = "" if "::" in url else scheme_of(url)
    served: Served
    with _explain_missing_packages(url):
        if scheme == "hf":
            from graphkit.io.remote.fsspec_file import hub_file

            served = hub_file(url)
        elif scheme in ("http", "https"):
            from graphkit.io.remote.http_file import HttpFile

            served = HttpFile(url)
        else:
            from graphkit.io.remote.fsspec_file import FsspecFile

            served = FsspecFile(url, options.timeout)
        from graphkit.io.remote.remote_file import open_remote
    source = open_remote(served, options)
    return source.path, source


def models_in(url: str, *, recursive: bool = False) -> list[str]:
    """Return the URLs of the models in a folder, in order; with `recursive`, of those in its folders too.

    Those of a repository of the hub are in it, or in its folder `onnx` where there are none. Raises UsageError where
    there is no model, the server lists no files, or packages are missing; ModelError where it cannot be read.
    """
    shown, scheme = shown_url(url), "" if "::" in url else scheme_of(url)
    if scheme in ("http", "https"):
        raise UsageError(f"{shown}: a web server does not list the files of a folder - name a model file")
    with _explain_missing_packages(url):
        if scheme == "hf":
            from graphkit.io.remote.fsspec_file import hub_folder as listed
        else:
            from graphkit.io.remote.fsspec_file import fsspec_folder as listed
    names = [name for name in sorted(listed(url)) if name.endswith(".onnx") and not name.startswith(".")]
    names = [name for name in names if "/." not in name]
    here = [name for name in names if "/" not in name]
    if not here and is_hub_repository(url):
        here = [name for name in names if name.startswith("onnx/") and name.count("/") == 1]
    if models := names if recursive else here:
        inner, joint, outer = url.partition("::")
        return [f"{inner.rstrip('/')}/{name}{joint}{outer}" for name in models]
    deeper = ", or look into its folders with --recursive" if names else ""
    raise UsageError(f"{shown}: has no .onnx file in it - name a model file{deeper}")


def models_of_listing(url: str) -> dict[str, str]:
    """Return the URLs of the ONNX files that the hub lists, each with the commit it is of.

    Raises UsageError where packages are missing, ModelError where the hub does not list it.
    """
    with _explain_missing_packages(url):
        from graphkit.io.remote.fsspec_file import hub_models
    return hub_models(url)


@contextlib.contextmanager
def _explain_missing_packages(url: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = f"install onnx-graphkit[remote], such as with pip: {error.name or error} is missing"
        raise UsageError(f"{shown_url(url)}: URLs need packages that are not installed - {hint}") from error
