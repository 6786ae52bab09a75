"""Folders on servers, and repositories of the hub: which models are in them."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.io.remote.urls import is_hub_repository, scheme_of, shown_url

__all__ = ["is_folder", "models_in"]


def is_folder(url: str) -> bool:
    """Whether a URL is written as that of a folder: a slash or no dot is at its end, or it names a repository.

    Web servers, whose files may have any name, have folders with a slash alone.
    """
    path = url.partition("::")[0].partition("?")[0]
    if path.endswith("/") or is_hub_repository(url):
        return True
    return scheme_of(url) not in ("http", "https", "file") and "." not in path.rpartition("/")[2]


def models_in(url: str, *, recursive: bool = False) -> list[str]:
    """Return the URLs of the models in a folder, in order.

    Those of a repository of the hub are in it, or in its folder `onnx` where there are none.

    Args:
        url: The folder.
        recursive: Whether to look into its folders too.

    Raises:
        UsageError: There is no model in it, its server lists no files, or packages are missing.
        ModelError: It cannot be read.
    """
    shown, scheme = shown_url(url), "" if "::" in url else scheme_of(url)
    if scheme in ("http", "https"):
        raise UsageError(f"{shown}: a web server does not list the files of a folder - name a model file")
    try:
        if scheme == "hf":
            from graphkit.io.remote.hub import hub_folder as listed
        else:
            from graphkit.io.remote.fsspec_file import fsspec_folder as listed
    except ImportError as error:
        hint = f"install graphkit[remote], such as with pip: {error.name or error} is missing"
        raise UsageError(f"{shown}: URLs need packages that are not installed - {hint}") from error
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
