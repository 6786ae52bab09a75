"""Files of all that fsspec knows, and of the Hugging Face Hub. Its libraries log in, and try again.

What an answer says of its revision does not come through fsspec, so a file is asked for it before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar
from urllib.parse import unquote

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers
from msgspec.structs import replace

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.io.remote.http_file import HINTS, HttpFile, problem_of
from graphkit.io.remote.server import CHANGED, Head, Revision, Served, Sink, Span, part_spans
from graphkit.io.urls import current_options, scheme_of, shown_url

T = TypeVar("T")
PART = 8 << 20  # bytes of a request at most
AT_ONCE = 32  # requests
IN_MEMORY = 64 << 20  # bytes of requests at once at most
TAGS = ("ETag", "etag", "md5Hash", "crc32c", "generation", "VersionId", "content_md5")
TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
HINT = "check the URL, the network, and the credentials that its library reads"
ADDRESS = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"/resolve/[^/]+/")


def call_within(call: Callable[[], T], seconds: float) -> T:
    """Return what a call of a library that knows no limit of time returns, or raise what it raises.

    A thread makes it, which is left alone when the time is over, and does not keep the process from ending.
    Then asyncio.TimeoutError is raised.
    """
    future: Future[T] = Future()

    def make_call() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # it is raised where somebody waits for it
            future.set_exception(error)

    threading.Thread(target=make_call, daemon=True, name="graphkit-bounded").start()
    try:
        return future.result(max(seconds, 0))
    except FutureTimeoutError as error:
        if future.done():  # by an error of this kind
            raise
        raise asyncio.TimeoutError from error
    finally:
        if future.done():
            del future  # an error has it in its traceback, and it has the error


class FsspecFile(Served):
    """A file of a file system of fsspec, which has so many seconds to reach its server, as some do at once."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._scheme, self._seconds = url, scheme_of(url), seconds
        self.label = self.key = shown_url(url)
        self.name = url.partition("::")[0].rstrip("/").rpartition("/")[2] or "model.onnx"
        with self._as_file_errors("opened"):
            try:
                for part in url.split("::"):
                    library = fsspec.get_filesystem_class(fsspec.utils.get_protocol(part)).__module__.partition(".")[0]
                    logging.getLogger(library).addHandler(logging.NullHandler())  # its errors are told once, as ours
                self._system, self._path = call_within(lambda: fsspec.core.url_to_fs(url), seconds)
            except ImportError as error:
                hint = f"install the package that fsspec names: {error}"
                raise self.error(f"{self._scheme}:// needs a package that is not installed", hint) from error
            except ValueError as error:
                raise UsageError(f"{self.label}: nothing is known of {self._scheme}:// - check the URL") from error

    def open(self, first: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Ask for size and revision, then fetch the first bytes."""
        end, self._seconds = time.monotonic() + seconds, seconds
        head = self._head(seconds)
        if head is None or (known and head.revision == known):
            return head and Head(head.size, known, is_known=True)
        length = min(first, head.size)
        self.fetch([(0, length)], head, sink, total=end - time.monotonic(), idle=seconds)
        return replace(head, fetched=length)

    def download(self, sink: Sink, idle: float) -> Head | None:
        """Fetch the whole file in parts."""
        self._seconds = idle
        head = self._head(idle)
        if head is not None:
            self.fetch([(0, head.size)], head, sink, total=None, idle=idle)
            self.check(head)
        return head

    def fetch(
        self,
        spans: Sequence[Span],
        head: Head,  # noqa: ARG002 - `check` asks for it
        sink: Sink,
        *,
        total: float | None,
        idle: float,
    ) -> None:
        """Fetch parts, as many at once as fit into little memory."""
        end, self._seconds = None if total is None else time.monotonic() + total, idle
        batch: list[Span] = []
        parts, most = part_spans(spans, PART), AT_ONCE
        if end is None and not isinstance(self._system, AsyncFileSystem):
            most = 1  # so that a slow server has its time for each
        while parts:
            batch, size = [], 0
            while parts and len(batch) < most and size < IN_MEMORY:
                batch.append(parts.pop(0))
                size += batch[-1][1] - batch[-1][0]
            seconds = idle if end is None else end - time.monotonic()
            for (start, stop), data in zip(batch, self._ranges(batch, seconds), strict=True):
                if len(data) != stop - start:
                    raise self.error(f"{len(data):,} bytes come where {stop - start:,} were asked for", HINT)
                sink(start, data)

    def check(self, head: Head) -> None:
        """Ask again for size and revision."""
        now = self._head(self._seconds)
        if now is None or now.size != head.size or not head.revision.agrees(now.revision):
            raise self.error(CHANGED, "run the command again")

    def beside(self, location: str) -> FsspecFile:
        """Return the file at a location relative to this one."""
        inner, joint, outer = self._url.partition("::")
        return FsspecFile(f"{inner.rpartition('/')[0]}/{location}{joint}{outer}", self._seconds)

    def files(self, seconds: float) -> list[str]:
        """Return the paths of all files in it, where it is a folder, relative to it; none where there are none."""
        folder = self._path.rstrip("/")
        with self._as_file_errors("read"):
            paths = self._call_file_system("find", seconds, folder)
        return [path[len(folder) + 1 :] for path in paths if path.startswith(f"{folder}/")]

    def _head(self, seconds: float) -> Head | None:
        self._system.invalidate_cache()
        with self._as_file_errors("read"):
            try:
                info = self._call_file_system("info", seconds, self._path)
            except FileNotFoundError:
                return None
        if info.get("type") == "directory":
            raise self.error("is a folder", "name a model file, or write / at its end")
        size = info.get("size")
        if not isinstance(size, int):
            raise self.error("it is not known how long it is", "fetch it by other means")
        return Head(size, Revision(_first_text(info, TAGS), _first_text(info, TIMES)))

    def _ranges(self, spans: Sequence[Span], seconds: float) -> list[bytes]:
        starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
        paths, words = [self._path] * len(spans), {"on_error": "raise"}
        with self._as_file_errors("read"):
            parts: list[bytes] = self._call_file_system("cat_ranges", seconds, paths, starts, stops, **words)
        return parts

    def _call_file_system(self, name: str, seconds: float, *arguments: Any, **words: Any) -> Any:
        if isinstance(self._system, AsyncFileSystem):
            if seconds <= 0:
                raise self.out_of_time(self._seconds)
            return sync(self._system.loop, getattr(self._system, f"_{name}"), *arguments, timeout=seconds, **words)
        call: Callable[..., Any] = getattr(self._system, name)
        return call_within(lambda: call(*arguments, **words), seconds)

    @contextlib.contextmanager
    def _as_file_errors(self, doing: str) -> Iterator[None]:
        """Tell the errors of a library as those of the file. Raises ModelError where the library raises anything."""
        try:
            yield
        except GraphkitError:
            raise
        except asyncio.TimeoutError as error:
            raise self.out_of_time(self._seconds) from error
        except PermissionError as error:
            raise self.error("is not allowed with the credentials that were found", HINT) from error
        # Errors of botocore, google.auth, azure, paramiko, zipfile and more have no base but this; which of them come
        # is known to the package of a scheme alone, and fsspec has packages that this project has never seen.
        except Exception as error:
            raise self.error(f"cannot be {doing}: {type(error).__name__}", HINT) from error


def fsspec_folder(url: str) -> list[str]:
    """Return the paths of all files in a folder, relative to it.

    Raises UsageError where nothing is known of its scheme, ModelError where it cannot be read.
    """
    seconds = current_options().timeout
    return FsspecFile(url, seconds).files(seconds)


def _first_text(info: dict[str, Any], keys: Sequence[str]) -> str:
    return next((str(info[key]) for key in keys if info.get(key)), "")


class HubFile(HttpFile):
    """A file of a repository of the hub, which stays at the commit that its first answer names."""

    def _learn(self, headers: Mapping[str, str]) -> None:
        commit = headers.get("X-Repo-Commit", "")
        if COMMIT.fullmatch(commit):
            address = REVISION.sub(f"/resolve/{commit}/", self._address.raw_path, count=1)
            self._address = self._address.with_path(address, encoded=True)


def _hub_place(url: str) -> tuple[str, str, str | None, str]:
    """Return the kind of a repository, its name and revision, and a path in it."""
    match = ADDRESS.fullmatch(url)
    if match is None:
        raise UsageError(f"{shown_url(url)}: names no repository of the hub - write hf://ORGANISATION/NAME")
    kind, repository, revision, path = match.groups()
    return kind[:-2] if kind else "model", repository, unquote(revision) if revision else None, path or ""


def hub_file(url: str) -> HubFile:
    """Return a file of a repository, with the address and login of the hub's library; UsageError without a name."""
    match = ADDRESS.fullmatch(url)
    if match is None or not match[4]:
        raise UsageError(f"{shown_url(url)}: names no file of the hub - write hf://ORGANISATION/NAME/onnx/model.onnx")
    kind, repository, revision, path = _hub_place(url)
    address = hf_hub_url(repository, path, repo_type=kind, revision=revision)
    headers = {name.title(): value for name, value in build_hf_headers(library_name="graphkit").items()}
    return HubFile(address, label=url, headers=headers)


def hub_folder(url: str) -> list[str]:
    """Return the paths of all files in a folder of a repository, or in the whole of it, relative to it.

    Raises UsageError where the URL names no repository, ModelError where the hub does not list it.
    """
    kind, repository, revision, path = _hub_place(url)
    folder = path.rstrip("/")

    def list_paths(hub: HfApi) -> list[str]:
        entries = hub.list_repo_tree(repository, folder or None, recursive=True, revision=revision, repo_type=kind)
        return [entry.path for entry in entries if isinstance(entry, RepoFile)]

    return [path[len(folder) + 1 if folder else 0 :] for path in _ask_hub(url, list_paths)]


def hub_models(url: str) -> dict[str, str]:
    """Return the URLs of ONNX files of an organisation, repository or folder, with commits. Raises ModelError."""
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
