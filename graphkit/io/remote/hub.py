"""Models on the Hugging Face Hub: hf://ORGANISATION/NAME/FILE, with @REVISION behind the name where one is wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from graphkit.errors import ModelError, UsageError
from graphkit.io.remote.bounded import call_within
from graphkit.io.remote.http_answer import HINTS, problem_of
from graphkit.io.remote.http_file import HttpFile
from graphkit.io.remote.options import current_options
from graphkit.io.remote.urls import shown_url

__all__ = ["HubFile", "hub_file", "hub_folder"]

ADDRESS = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SIZE = re.compile(r"\d{1,19}", re.ASCII)
REVISION = re.compile(r"/resolve/[^/]+/")


class HubFile(HttpFile):
    """A file of a repository of the hub, which stays at the commit that its first answer names."""

    def _learn(self, headers: Mapping[str, str]) -> None:
        commit = headers.get("X-Repo-Commit", "")
        if COMMIT.fullmatch(commit):
            address = REVISION.sub(f"/resolve/{commit}/", self._address.raw_path, count=1)
            self._address = self._address.with_path(address, encoded=True)

    def _told_size(self, headers: Mapping[str, str]) -> int | None:
        size = headers.get("X-Linked-Size", "")
        return int(size) if SIZE.fullmatch(size) else None


def hub_file(url: str) -> HubFile:
    """Return a file of a repository, for which the library of the hub gives the address and the login.

    Raises:
        UsageError: The URL names no file.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    place = _hub_place(url)
    if place is None or not place.path:
        raise UsageError(f"{shown_url(url)}: names no file of the hub - write hf://ORGANISATION/NAME/onnx/model.onnx")
    address = hf_hub_url(place.repository, place.path, repo_type=place.kind, revision=place.revision)
    headers = {name.title(): value for name, value in build_hf_headers(library_name="graphkit").items()}
    return HubFile(address, label=url, headers=headers)


def hub_folder(url: str) -> list[str]:
    """Return the paths of all files in a folder of a repository, or in the whole of it, relative to it.

    Raises:
        UsageError: The URL names no repository.
        ModelError: The hub does not list it.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

    place = _hub_place(url)
    if place is None:
        raise UsageError(f"{shown_url(url)}: names no repository of the hub - write hf://ORGANISATION/NAME")
    hub, folder, seconds = HfApi(library_name="graphkit"), place.path.rstrip("/"), current_options().timeout
    try:
        listed = hub.list_repo_tree(
            place.repository, folder or None, recursive=True, revision=place.revision, repo_type=place.kind
        )
        paths = call_within(lambda: [entry.path for entry in listed if isinstance(entry, RepoFile)], seconds)
    except asyncio.TimeoutError as error:
        problem = f"the hub does not answer in {seconds:g} s"
        raise ModelError(problem, file=url, hint="try again later, or raise --timeout") from error
    except (*HfHubHTTPError.__bases__, OSError, ValueError) as error:  # those of its library for HTTP are the bases
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 404:
            raise ModelError("is not there", file=url, hint="check the URL") from error
        problem = problem_of(status) if isinstance(status, int) else "the hub cannot be asked"
        raise ModelError(problem, file=url, hint=HINTS.get(status or 0, "check the URL and the network")) from error
    return [path[len(folder) + 1 if folder else 0 :] for path in paths]


@dataclass(frozen=True)
class _Place:
    """A repository, and a path in it."""

    kind: str
    repository: str
    revision: str | None
    path: str


def _hub_place(url: str) -> _Place | None:
    match = ADDRESS.fullmatch(url)
    if match is None:
        return None
    kind, repository, revision, path = match.groups()
    return _Place(kind[:-2] if kind else "model", repository, unquote(revision) if revision else None, path or "")
