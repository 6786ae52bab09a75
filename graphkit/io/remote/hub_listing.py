"""Which models a repository of the Hugging Face Hub has, or all repositories of an organisation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from graphkit.errors import GraphkitError, UsageError
from graphkit.io.remote.bounded import call_within
from graphkit.io.remote.options import current_options
from graphkit.io.remote.urls import shown_url

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

__all__ = ["hub_models", "is_listing"]

LISTING = re.compile(r"hf://(?!datasets/|spaces/)([^/@]+)(?:/([^/@]+)(?:@([^/]+))?(?:/(.*))?)?/?")
SUFFIX = ".onnx"


def is_listing(url: str) -> bool:
    """Whether a URL names an organisation, a repository or a folder of the hub, and no file."""
    return LISTING.fullmatch(url) is not None and not url.endswith(SUFFIX)


def hub_models(url: str) -> dict[str, str]:
    """Return the URLs of the ONNX files of an organisation, a repository or a folder, each with the commit it is of.

    Raises:
        UsageError: The package of the hub is not installed.
        GraphkitError: The hub does not list it.
    """
    match = LISTING.fullmatch(url)
    assert match is not None
    owner, name, revision, folder = match.groups()
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UsageError(f"{shown_url(url)}: the hub needs huggingface_hub - pip install 'graphkit[remote]'") from error
    api, seconds = HfApi(library_name="graphkit"), current_options().timeout
    try:
        if name is None:
            return _files_below(call_within(lambda: list(api.list_models(author=owner, full=True)), seconds), "", "")
        commit = unquote(revision) if revision else None
        info = call_within(lambda: api.model_info(f"{owner}/{name}", revision=commit), seconds)
    except asyncio.TimeoutError as error:
        problem = f"does not answer in {seconds:g} s"
        raise GraphkitError(f"{shown_url(url)}: the hub {problem} - try again later, or raise --timeout") from error
    except Exception as error:  # that of the library that sends its requests, if it is none of its own
        status = getattr(getattr(error, "response", None), "status_code", None)
        problem = f"answers {status}" if status else f"cannot be asked: {type(error).__name__}"
        hint = "check the name, the network, and the login, `hf auth login` or HF_TOKEN"
        raise GraphkitError(f"{shown_url(url)}: the hub {problem} - {hint}") from error
    return _files_below([info], f"@{revision}" if revision else "", f"{folder.strip('/')}/" if folder else "")


def _files_below(infos: Iterable[ModelInfo], revision: str, folder: str) -> dict[str, str]:
    """Return the files of repositories that lie below a folder."""
    return {
        f"hf://{info.id}{revision}/{file.rfilename}": info.sha or ""
        for info in infos
        for file in info.siblings or ()
        if file.rfilename.endswith(SUFFIX) and file.rfilename.startswith(folder)
    }
