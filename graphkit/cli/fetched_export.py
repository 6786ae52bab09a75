"""Exports on servers, which are fetched: lowering, bundling and their proofs read all weights."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphkit.deploy.bundle_description import BUNDLE_TOML
from graphkit.deploy.export_pipeline import used_models
from graphkit.deploy.generation_settings import CONFIGURATIONS
from graphkit.errors import OutputError, UsageError
from graphkit.io.byte_source import source_of
from graphkit.io.remote.open_url import models_in
from graphkit.io.remote.urls import current_options, file_name, is_folder, is_url, local_path, scheme_of, shown_url
from graphkit.io.stream_files import name_as_staged, shown_path
from graphkit.model import Model, load

__all__ = ["fetched_export"]

MOST = 4  # models of an export: an encoder, the decoders of the first and of later steps, a merged one
OF_HUB = "onnx"  # the folder of a repository of the hub that has its models; the configuration is in the one above


@contextlib.contextmanager
def fetched_export(name: str) -> Iterator[Path]:
    """Give the path of an export; one on a server is fetched, and kept as long as the block runs.

    Raises:
        UsageError: It is on a server, and is not to be fetched, or it has too many models.
        ModelError: It cannot be fetched.
        OutputError: There is no room for it.
    """
    if not is_url(name) or (scheme_of(name) == "file" and "::" not in name):
        yield local_path(name) if is_url(name) else Path(name)
        return
    if not current_options().download:
        problem = "lowering, bundling and their proofs read all weights of an export"
        hint = "let it be fetched with --download, as long as the command runs"
        raise UsageError(f"{shown_url(name)}: {problem} - {hint}")
    urls = _models_of_export(name) if is_folder(name) else [name]
    above = shown_url(urls[0]).rpartition("/")[0]
    try:
        temporary = tempfile.TemporaryDirectory(prefix="graphkit-")
    except OSError as error:
        problem = f"{tempfile.gettempdir()}: what is fetched is kept there, and it takes none: {error.strerror}"
        raise OutputError(f"{problem} - name a folder with more space in TMPDIR") from error
    with temporary:
        folder = Path(temporary.name) / file_name(above)
        with name_as_staged(folder, above):
            files = [_fetch_model(load(url), folder) for url in urls]
            yield folder if is_folder(name) else files[0]


def _models_of_export(url: str) -> list[str]:
    """Return the URLs of the models in a folder that an export is made of."""
    urls = {Path(file_name(url)): url for url in models_in(url)}
    used = [urls[path] for path in used_models(list(urls))]
    if len(used) > MOST:
        problem = f"{len(used)} models are in it, and an export has up to {MOST}"
        raise UsageError(f"{shown_url(url)}: {problem} - name one of them")
    return used


def _fetch_model(model: Model, folder: Path) -> Path:
    """Put a model, its data and the configuration beside it into a folder, and return its path there."""
    assert model.path is not None
    parts = [model.path, *(data.path for data in model.source.data_files if data.size is not None)]
    for path in parts:
        _put_file(path, folder / path.relative_to(model.path.parent))
    for names in ([*CONFIGURATIONS, BUNDLE_TOML], [f"../{name}" for name in CONFIGURATIONS]):
        configurations = _paths_beside(model, [name for name in names if not (folder / Path(name).name).exists()])
        for path in configurations:
            _put_file(path, folder / path.name)
        if configurations or folder.name != OF_HUB:
            break
    return folder / model.path.name


def _paths_beside(model: Model, names: Sequence[str]) -> list[Path]:
    """Return the paths that stand for files beside a model, of those that are there."""
    assert model.path is not None
    places = [source_of(model.path).beside(name) for name in names]
    return [path for path, size in places if size is not None]


def _put_file(path: Path, target: Path) -> None:
    """Put what a path stands for at another one, where nothing is yet."""
    if target.exists():
        return
    source = source_of(path)
    here = source.local([(0, source.size)])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(here)
        except OSError:  # a file system without links
            shutil.copyfile(here, target)
    except OSError as error:
        raise OutputError(
            f"{shown_path(target)}: cannot be kept: {error.strerror} - name a folder in TMPDIR"
        ) from error
