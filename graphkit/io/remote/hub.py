"""Models on the Hugging Face Hub: hf://ORGANISATION/NAME/FILE, with @REVISION behind the name where one is wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers

from graphkit.errors import ModelError, UsageError
from graphkit.io.remote.fsspec_file import call_within
from graphkit.io.remote.http_file import HINTS, HttpFile, problem_of
from graphkit.io.urls import current_options, shown_url

T = TypeVar("T")
ADDRESS = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"/resolve/[^/]+/")


class HubFile(HttpFile):
    """A file of a repository of the hub, which stays at the commit that its first answer names."""

    def _learn(self, headers: Mapping[str, str]) -> None:
        commit = headers.get("X-Repo-Commit", "")
        if COMMIT.fullmatch(commit):
            address = REVISION.sub(f"/resolve/{commit}/", self._address.raw_path, count=1)
            self._address = self._address.with_path(address, encoded=True)


class _Place(NamedTuple):
    """A repository, and a path in it."""

    kind: str
    repository: str
    revision: str | None
    path: str


def _hub_place(url: str) -> _Place:
    match = ADDRESS.fullmatch(url)
    if match is None:
        raise UsageError(f"{shown_url(url)}: names no repository of the hub - write hf://ORGANISATION/NAME")
    kind, repository, revision, path = match.groups()
    return _Place(kind[:-2] if kind else "model", repository, unquote(revision) if revision else None, path or "")


def hub_file(url: str) -> HubFile:
    """Return a file of a repository, for which the library of the hub gives the address and the login.

    Raises:
        UsageError: The URL names no file.
    """
    match = ADDRESS.fullmatch(url)
    if match is None or not match[4]:
        raise UsageError(f"{shown_url(url)}: names no file of the hub - write hf://ORGANISATION/NAME/onnx/model.onnx")
    place = _hub_place(url)
    address = hf_hub_url(place.repository, place.path, repo_type=place.kind, revision=place.revision)
    headers = {name.title(): value for name, value in build_hf_headers(library_name="graphkit").items()}
    return HubFile(address, label=url, headers=headers)


def hub_folder(url: str) -> list[str]:
    """Return the paths of all files in a folder of a repository, or in the whole of it, relative to it.

    Raises:
        UsageError: The URL names no repository.
        ModelError: The hub does not list it.
    """
    kind, repository, revision, path = _hub_place(url)
    folder = path.rstrip("/")

    def list_paths(hub: HfApi) -> list[str]:
        entries = hub.list_repo_tree(repository, folder or None, recursive=True, revision=revision, repo_type=kind)
        return [entry.path for entry in entries if isinstance(entry, RepoFile)]

    return [path[len(folder) + 1 if folder else 0 :] for path in _ask_hub(url, list_paths)]


def hub_models(url: str) -> dict[str, str]:
    """Return the URLs of the ONNX files of an organisation, a repository or a folder, each with the commit it is of.

    Raises:
        ModelError: The hub does not list it.
    """
    if url.removeprefix("hf://").rstrip("/").count("/") == 0:
        owner = url.removeprefix("hf://").rstrip("/")
        infos = _ask_hub(url, lambda hub: list(hub.list_models(author=owner, full=True)))
        version = folder = ""
    else:
        _, repository, revision, path = _hub_place(url)
        infos = [_ask_hub(url, lambda hub: hub.model_info(repository, revision=revision))]
        version = url.removeprefix(f"hf://{repository}").partition("/")[0]
        folder = f"{path.strip('/')}/" if path.strip("/") else ""
    return {
        f"hf://{info.id}{version}/{file.rfilename}": info.sha or ""
        for info in infos
        for file in info.siblings or ()
        if file.rfilename.endswith(".onnx") and file.rfilename.startswith(folder)
    }


def _ask_hub(url: str, call: Callable[[HfApi], T]) -> T:
    """Return what a call of the library of the hub returns. Raises ModelError where it fails, or takes too long."""
    seconds = current_options().timeout
    try:
        return call_within(lambda: call(HfApi(library_name="graphkit")), seconds)
    except asyncio.TimeoutError as error:
        problem = f"the hub does not answer in {seconds:g} s"
        raise ModelError(problem, file=url, hint="try again later, or raise --timeout") from error
    except Exception as error:  # that of the library that sends its requests, if it is none of its own
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 404:
            raise ModelError("is not there", file=url, hint="check the URL") from error
        problem = problem_of(status) if isinstance(status, int) else "the hub cannot be asked"
        raise ModelError(problem, file=url, hint=HINTS.get(status or 0, "check the URL and the network")) from error
