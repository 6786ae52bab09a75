"""Organisations and repositories of the hub as sources of a survey, and how its processes read models on servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_address import constants, files_come_from
from range_server import Site, serving

pytest.importorskip("aiohttp", reason="the extra onnx-graphkit[remote] is not installed")

from builders import proto_of
from test_survey import Here, rows_of

from graphkit.errors import GraphkitError, UsageError
from graphkit.fleet.local_pool import LocalPool
from graphkit.fleet.survey import survey_models
from graphkit.fleet.survey_task import RowOptions, models_of
from graphkit.io.remote.open_url import models_in
from graphkit.io.urls import RemoteOptions, remote_options

CONTENT = proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }").SerializeToString()
SILENT: list[socket.socket] = []
FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """A hub with two repositories of an organisation, one of which has two models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as site:
        files_come_from(monkeypatch, site.base)
        monkeypatch.setattr(constants, "ENDPOINT", site.base)
        told = [
            told_of("org/a", FIRST, "model.onnx", "onnx/b.onnx", "README.md"),
            told_of("org/b", FIRST, "model.onnx"),
        ]
        site.put("/api/models", json.dumps(told).encode())
        for about in told:
            site.put(f"/api/models/{about['id']}", json.dumps(about).encode())
            for file in about["siblings"]:
                site.put(f"/{about['id']}/resolve/main/{file['rfilename']}", CONTENT)
        yield site


def told_of(name: str, commit: str, *files: str) -> dict[str, object]:
    return {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}


def test_an_organisation_is_listed_in_one_request(hub: Site) -> None:
    urls = ["hf://org/a/model.onnx", "hf://org/a/onnx/b.onnx", "hf://org/b/model.onnx"]
    assert models_of(["hf://org"], ()) == dict.fromkeys(urls, FIRST)
    (path,) = [request.path for request in hub.asked if request.path.startswith("/api/models")]
    assert "author=org" in path


@pytest.fixture(scope="module")
def silent() -> str:
    """The address of a server that accepts and never answers, as long as the threads that wait for it."""
    server = socket.create_server(("127.0.0.1", 0))
    SILENT.append(server)
    return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("source", ["hf://org", "hf://org/a"])
def test_a_hub_that_does_not_answer_is_given_up(silent: str, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Its library would wait for ever."""
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    problem = f"^{source}: the hub does not answer in 0.3 s - try again later, or raise --timeout"
    with remote_options(RemoteOptions(timeout=0.3)):
        with pytest.raises(GraphkitError, match=problem):
            models_of([source], ())
        if source == "hf://org/a":
            with pytest.raises(GraphkitError, match=problem):
                models_in(source)


def test_a_repository_and_a_folder_of_it(hub: Site) -> None:
    hub.put("/api/models/org/a/revision/v1", json.dumps(told_of("org/a", SECOND, "onnx/old.onnx")).encode())
    assert list(models_of(["hf://org/a"], ())) == ["hf://org/a/model.onnx", "hf://org/a/onnx/b.onnx"]
    assert list(models_of(["hf://org/a/onnx"], ())) == ["hf://org/a/onnx/b.onnx"]
    assert models_of(["-"], ["hf://org/a@v1/onnx/\n"]) == {"hf://org/a@v1/onnx/old.onnx": SECOND}
    assert models_of(["hf://org/b/model.onnx"], ()) == {"hf://org/b/model.onnx": ""}


def test_a_repository_that_has_not_changed_is_not_read_again(hub: Site, tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    assert survey_models(models_of(["hf://org"], ()), str(table), Here()).errors == 0
    again = Here()
    assert survey_models(models_of(["hf://org"], ()), str(table), again).kept == 3
    hub.put(
        "/api/models",
        json.dumps([told_of("org/a", FIRST, "model.onnx"), told_of("org/b", SECOND, "model.onnx")]).encode(),
    )
    assert survey_models(models_of(["hf://org"], ()), str(table), again).kept == 1
    assert again.done == ["hf://org/b/model.onnx"]
    assert [row["revision"] for row in rows_of(table)] == [FIRST, SECOND]


@pytest.mark.parametrize("source", ["hf://nobody/nothing", "hf://nobody"])
def test_what_the_hub_does_not_list_is_one_clear_error(hub: Site, source: str) -> None:
    hub.files.clear()
    with pytest.raises(GraphkitError, match=f"^{source}: is not there - check the URL"):
        models_of([source], ())


def test_a_repository_without_models(hub: Site) -> None:
    hub.put("/api/models/org/c", json.dumps(told_of("org/c", FIRST, "README.md")).encode())
    with pytest.raises(UsageError, match=r"^hf://org/c: has no \.onnx file in it"):
        models_of(["hf://org/c"], ())


@pytest.mark.slow
def test_processes_are_told_how_to_read_models_on_servers(hub: Site, tmp_path: Path) -> None:
    """A server that sends no parts of files, of a model that is larger than a first request."""
    large = proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    large.doc_string = "x" * (9 << 20)
    url = hub.put("/large.onnx", large.SerializeToString())
    hub.fault = "no ranges"
    errors = []
    for options in (RowOptions(), RowOptions(download=True, cache=False), RowOptions(download=True)):
        survey_models({url: ""}, str(tmp_path / "t.parquet"), LocalPool(1), options)
        errors += [row["error"] for row in rows_of(tmp_path / "t.parquet")]
    assert "--download" in str(errors[0])
    assert errors[1:] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("cache", [True, False])
def test_processes_keep_graphs_unless_told_not_to(hub: Site, tmp_path: Path, cache: bool) -> None:
    url = hub.put("/small.onnx", CONTENT)
    for _ in range(2):
        survey_models({url: ""}, str(tmp_path / "t.parquet"), LocalPool(1), RowOptions(cache=cache))
    assert ["If-None-Match" in request.headers for request in hub.asked] == [False, cache]
