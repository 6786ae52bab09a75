"""Models on the Hugging Face Hub: hf://ORGANISATION/NAME/FILE, with @REVISION behind the name where one is wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from graphkit.errors import UsageError
from graphkit.io.remote.http_file import HttpFile
from graphkit.io.remote.urls import shown_url

__all__ = ["HubFile", "hub_file"]

ADDRESS = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")
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

    match = ADDRESS.fullmatch(url)
    if match is None:
        raise UsageError(f"{shown_url(url)}: names no file of the hub - write hf://ORGANISATION/NAME/onnx/model.onnx")
    kind, repository, revision, path = match.groups()
    where = {"repo_type": kind[:-2] if kind else "model", "revision": unquote(revision) if revision else None}
    address = hf_hub_url(repository, path, **where)
    headers = {name.title(): value for name, value in build_hf_headers(library_name="graphkit").items()}
    return HubFile(address, label=url, headers=headers)
