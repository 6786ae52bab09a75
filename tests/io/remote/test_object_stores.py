"""Files of other file systems, through fsspec: in memory, in an archive, and on an S3 server of this machine."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from layers import layered

from graphkit.errors import ModelError, UsageError
from graphkit.io.remote import remote_file
from graphkit.io.remote.fsspec_file import FsspecFile
from graphkit.io.urls import RemoteOptions
from graphkit.model import load

fsspec = pytest.importorskip("fsspec")
CONTENT = layered().SerializeToString()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remote_file, "FIRST", 4096)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 4096)
    monkeypatch.setattr(remote_file, "STEP", 4096)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def memory() -> Iterator[object]:
    """The file system of fsspec in memory, empty."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_a_model_in_memory(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/folder/model.onnx", CONTENT)
    fetched: list[int] = []
    ranges = FsspecFile._ranges

    def counted(self: FsspecFile, spans: list[tuple[int, int]], seconds: float) -> list[bytes]:
        fetched.extend(stop - start for start, stop in spans)
        return ranges(self, spans, seconds)

    monkeypatch.setattr(FsspecFile, "_ranges", counted)
    model = load("memory://folder/model.onnx")
    assert sum(fetched) < len(CONTENT) / 10
    assert model.restore() == layered()
    assert (model.name, model.label) == ("model.onnx", "memory://folder/model.onnx")


def test_a_data_file_in_memory(memory: object, tmp_path: Path) -> None:
    onnx.save(layered(), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx_data", size_threshold=0)
    for name in ("m.onnx", "m.onnx_data"):
        memory.pipe(f"/folder/{name}", (tmp_path / name).read_bytes())
    model = load("memory://folder/m.onnx")
    expected = onnx.numpy_helper.to_array(layered().graph.initializer[3])
    np.testing.assert_array_equal(model.array(model.proto.graph.initializer[3]), expected)


def test_a_model_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("inside/model.onnx", CONTENT)
    model = load(f"zip://inside/model.onnx::{(tmp_path / 'models.zip').as_uri()}")
    assert model.restore() == layered()


def test_an_archive_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    problem = r"^zip://model.onnx::file:///.*nothing.zip: cannot be opened: FileNotFoundError"
    with pytest.raises(ModelError, match=problem):
        load(f"zip://model.onnx::{(tmp_path / 'nothing.zip').as_uri()}")


class Sleeping(fsspec.AbstractFileSystem):
    """A file system whose server accepts and never answers, from some call on."""

    protocol = "sleeping"
    cachable = False
    answers = 0  # how many calls are answered
    called = 0

    def _wait(self) -> None:
        type(self).called += 1
        if self.called > self.answers:
            threading.Event().wait(60)

    def __init__(self, **words: object) -> None:
        super().__init__(**words)
        self._wait()

    def info(self, path: str, **_: object) -> dict[str, object]:
        self._wait()
        return {"name": path, "size": len(CONTENT), "type": "file"}

    def cat_file(self, _: str, start: int = 0, end: int | None = None, **__: object) -> bytes:
        self._wait()
        return CONTENT[start:end]


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_a_file_system_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """Also one whose library knows no limit of time: when it is opened, asked for the size, read, and asked again."""
    fsspec.register_implementation("sleeping", Sleeping, clobber=True)
    monkeypatch.setattr(Sleeping, "answers", answers)
    monkeypatch.setattr(Sleeping, "called", 0)
    begin = time.monotonic()
    problem = r"^sleeping://a/m.onnx: the server does not send what was asked for in 0.3 s - raise --timeout"
    with pytest.raises(ModelError, match=problem):
        load("sleeping://a/m.onnx", remote=RemoteOptions(timeout=0.3, cache=False))
    assert time.monotonic() - begin < 30


@pytest.mark.slow
def test_a_server_of_ftp_that_never_answers_is_given_up() -> None:
    """The process ends, though a thread of it waits for the server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ftp://me:secret@127.0.0.1:{server.getsockname()[1]}/m.onnx"
        command = [sys.executable, "-m", "graphkit", "report", url, "--timeout", "1"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 2
    assert "the server does not send what was asked for in 1 s - raise --timeout" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


@pytest.mark.slow
def test_the_package_of_a_scheme_is_named() -> None:
    """Run alone, since a file system that was imported before stays known."""
    code = "import sys; sys.modules['s3fs'] = None; import graphkit; graphkit.load('s3://a/b')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    problem = (
        "ModelError: s3://a/b: s3:// needs a package that is not installed - install the package that fsspec names: "
    )
    assert problem in result.stderr


def test_what_a_library_logs_is_not_shown(memory: object) -> None:
    memory.pipe("/model.onnx", CONTENT)
    load("memory://model.onnx")
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("fsspec").handlers)


def test_a_file_that_changes_is_an_error(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/model.onnx", CONTENT)
    ranges = FsspecFile._ranges

    def changing(self: FsspecFile, spans: list[tuple[int, int]], seconds: float) -> list[bytes]:
        found = ranges(self, spans, seconds)
        memory.pipe("/model.onnx", CONTENT)
        return found

    monkeypatch.setattr(FsspecFile, "_ranges", changing)
    with pytest.raises(ModelError, match=r"^memory://model.onnx: it has changed while it was read"):
        load("memory://model.onnx")


def test_what_cannot_be_read_is_one_clear_error(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"^memory://nothing.onnx: is not there - check the URL$"):
        load("memory://nothing.onnx")
    memory.pipe("/folder/model.onnx", CONTENT)
    with pytest.raises(ModelError, match=r"^memory://folder: is a folder"):
        load("memory://folder")
    with pytest.raises(UsageError, match=r"^nothing-known://x/y: nothing is known of nothing-known://"):
        load("nothing-known://x/y")
    for error, problem in [
        (PermissionError("key abc"), "is not allowed"),
        (OSError("key abc"), "cannot be read: OSError"),
    ]:

        def failing(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(type(memory), "cat_ranges", failing)
        with pytest.raises(ModelError, match=f"^memory://folder/model.onnx: {problem}") as caught:
            load("memory://folder/model.onnx")
        assert "abc" not in str(caught.value)


def test_a_file_that_goes_while_it_is_read_is_an_error(memory: object) -> None:
    memory.pipe("/model.onnx", CONTENT)
    model = load("memory://model.onnx")
    memory.store.clear()
    with pytest.raises(ModelError, match=r"^memory://model.onnx: cannot be read: FileNotFoundError - check the URL"):
        model.array(model.proto.graph.initializer[0])


def test_a_short_answer_is_an_error(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/model.onnx", CONTENT)
    monkeypatch.setattr(type(memory), "cat_ranges", lambda _, paths, *__, **___: [b"x"] * len(paths))
    with pytest.raises(ModelError, match="1 bytes come where 4,096 were asked for"):
        load("memory://model.onnx")


def test_the_cache_serves_them_too(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/model.onnx", CONTENT)
    first = load("memory://model.onnx").proto
    monkeypatch.setattr(FsspecFile, "_ranges", lambda *_: pytest.fail("it was kept"))
    assert load("memory://model.onnx").proto == first


def test_download_fetches_all_of_it(memory: object) -> None:
    memory.pipe("/model.onnx", CONTENT)
    model = load("memory://model.onnx", remote=RemoteOptions(download=True))
    memory.store.clear()
    assert model.restore() == layered()


@pytest.mark.slow
def test_a_model_on_an_s3_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through s3fs, with the credentials that its library reads; a login that fails is one clear error."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("models")
        onnx.save(layered(), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx_data", size_threshold=0)
        for name in ("m.onnx", "m.onnx_data"):
            system.pipe(f"models/beside/{name}", (tmp_path / name).read_bytes())
        system.pipe("models/model.onnx", CONTENT)
        system.pipe("models/empty.onnx", b"")
        with pytest.raises(ModelError, match=r"^s3://models/empty.onnx: is empty"):
            load("s3://models/empty.onnx")
        model, beside = load("s3://models/model.onnx"), load("s3://models/beside/m.onnx")
        assert model.restore() == layered()
        tensor = beside.proto.graph.initializer[2]
        np.testing.assert_array_equal(beside.array(tensor), onnx.numpy_helper.to_array(layered().graph.initializer[2]))
        assert load("s3://models/model.onnx").proto == model.proto
        late = load("s3://models/model.onnx")
        system.pipe("models/model.onnx", layered(3).SerializeToString())
        with pytest.raises(ModelError, match=r"^s3://models/model.onnx: it has changed while it was read"):
            late.array(late.proto.graph.initializer[3])
        with pytest.raises(ModelError, match=r"^s3://models/nothing.onnx: is not there"):
            load("s3://models/nothing.onnx")
        late = load("s3://models/model.onnx")
        system.rm("models/model.onnx")
        with pytest.raises(ModelError, match=r"^s3://models/model.onnx: "):
            late.array(late.proto.graph.initializer[3])
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
