"""Folders of models on servers, and exports that are lowered and bundled from there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from hub_address import attempts_follow_at_once, constants, files_come_from
from layers import layered
from range_server import Site, serving
from real_models import unpacked

from graphkit.errors import ModelError, UsageError
from graphkit.io.byte_source import name_as_staged
from graphkit.io.remote.open_url import models_in
from graphkit.io.urls import is_folder
from graphkit.runtime.session import Session

Command = Callable[..., tuple[object, str, str]]
fsspec = pytest.importorskip("fsspec")
CONFIGURATION = json.dumps({"pad_token_id": 7, "decoder_start_token_id": 3, "eos_token_id": 5})
SMALL = layered(1, 8).SerializeToString()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder and a merged decoder, whose weights are in a file beside them, and a configuration."""
    folder = tmp_path_factory.mktemp("exports") / "onnx"
    unpacked("marian-tiny", folder)
    name = "decoder_model_merged.onnx"
    decoder = onnx.load(folder / name)
    onnx.save(decoder, folder / name, save_as_external_data=True, location=f"{name}_data", size_threshold=1024)
    (folder / "config.json").write_text(CONFIGURATION)
    return folder


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The file system of fsspec in memory, empty; the current folder is empty too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


@pytest.fixture
def hub(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    """A hub with no files yet, that lists the repository org/name."""
    files_come_from(monkeypatch, site.base)
    monkeypatch.setattr(constants, "ENDPOINT", site.base)
    attempts_follow_at_once(monkeypatch)
    monkeypatch.chdir(tmp_path)
    site.headers["X-Repo-Commit"] = COMMIT
    return site


def upload(hub: Site, files: dict[str, bytes]) -> None:
    """Put files into the repository org/name."""
    entries = [{"type": "file", "path": path, "size": len(content), "oid": "0"} for path, content in files.items()]
    folders = {path.rpartition("/")[0] for path in files} - {""}
    entries += [{"type": "directory", "path": folder, "oid": "0"} for folder in folders]
    for folder in ("", *folders):
        listed = [entry for entry in entries if entry["path"].startswith(f"{folder}/" if folder else "")]
        hub.put("/api/models/org/name/tree/main" + (f"/{folder}" if folder else ""), json.dumps(listed).encode())
    for path, content in files.items():
        hub.put(f"/cdn/{path}", content)
        for revision in ("main", COMMIT):
            hub.redirects[f"/org/name/resolve/{revision}/{path}"] = f"/cdn/{path}"


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://org/name", True),
        ("hf://org/name-3.2", True),
        ("hf://org/name-3.2@v1.0", True),
        ("hf://datasets/org/name", True),
        ("hf://org/name/onnx", True),
        ("hf://org/name/v1.0", False),
        ("hf://org/name/v1.0/", True),
        ("hf://org/name/onnx/model.onnx", False),
        ("s3://bucket/folder", True),
        ("s3://bucket/model.onnx?versionId=a/b", False),
        ("zip://folder::https://host/a.zip", True),
        ("zip://model.onnx::https://host/a", False),
        ("https://host/download", False),
        ("https://host/folder/", True),
        ("file:///folder", False),
    ],
)
def test_what_is_a_folder(url: str, expected: bool) -> None:
    assert is_folder(url) is expected


def test_models_of_a_folder_in_memory(memory: object) -> None:
    for name in ("b.onnx", "a.onnx", "a.onnx_data", "deeper/c.onnx", ".hidden/d.onnx", ".e.onnx"):
        memory.pipe(f"/folder/{name}", SMALL)
    assert models_in("memory://folder") == ["memory://folder/a.onnx", "memory://folder/b.onnx"]
    assert models_in("memory://folder/", recursive=True) == [
        f"memory://folder/{name}" for name in ("a.onnx", "b.onnx", "deeper/c.onnx")
    ]


@pytest.mark.parametrize("url", ["memory://folder", "memory://nothing"])
def test_a_folder_without_models(memory: object, url: str) -> None:
    memory.pipe("/folder/deeper/c.onnx", SMALL)
    hint = ", or look into its folders with --recursive" if url == "memory://folder" else ""
    with pytest.raises(UsageError, match=f"^{url}: has no .onnx file in it - name a model file{hint}$"):
        models_in(url)


def test_a_web_server_lists_nothing(run: Command) -> None:
    for words in (("report", "https://host/folder/"), ("lower", "https://host/folder/", "-o", "out", "--download")):
        code, _, errors = run(*words)
        line = "Error: https://host/folder/: a web server does not list the files of a folder - name a model file\n"
        assert (code, errors) == (2, line)


def test_models_of_a_repository(hub: Site, run: Command) -> None:
    """Those in it, or in its folder `onnx` where there are none; a revision is that of its models."""
    upload(hub, {"onnx/b.onnx": SMALL, "onnx/a.onnx": SMALL, "onnx/x/c.onnx": SMALL, "config.json": b"{}"})
    assert models_in("hf://org/name") == ["hf://org/name/onnx/a.onnx", "hf://org/name/onnx/b.onnx"]
    assert models_in("hf://org/name/onnx") == models_in("hf://org/name")
    assert len(models_in("hf://org/name", recursive=True)) == 3
    code, out, errors = run("report", "hf://org/name", "--only", "summary")
    assert (code, errors) == (0, "")
    assert "a.onnx" in out
    assert "b.onnx" in out
    upload(hub, {"model.onnx": SMALL, "onnx/a.onnx": SMALL})
    assert models_in("hf://org/name") == ["hf://org/name/model.onnx"]


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, r"the server answers 401 \(Unauthorized\) - log in as its library wants it"),
        (403, r"the server answers 403 \(Forbidden\) - ask for access"),
        (404, "is not there - check the URL"),
        (500, r"the server answers 500 \(Internal Server Error\) - check the URL and the network"),
    ],
)
def test_what_the_hub_refuses_to_list_is_one_clear_error(hub: Site, status: int, problem: str) -> None:
    hub.fault, hub.status = "status", status
    with pytest.raises(ModelError, match=f"^hf://org/name: {problem}"):
        models_in("hf://org/name")


def test_a_hub_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    attempts_follow_at_once(monkeypatch)
    with pytest.raises(ModelError, match=r"^hf://org/name: the hub cannot be asked - check the URL and the network$"):
        models_in("hf://org/name")


@pytest.mark.parametrize("url", ["hf://org", "hf://org/"])
def test_a_url_that_names_no_repository(url: str) -> None:
    with pytest.raises(UsageError, match=f"^{url}: names no repository of the hub - write hf://ORGANISATION/NAME$"):
        models_in(url)


@pytest.mark.parametrize("name", ["lower", "bundle"])
@pytest.mark.parametrize("url", ["memory://folder", "https://host/model.onnx"])
def test_an_export_is_fetched_where_that_is_asked_for(run: Command, name: str, url: str) -> None:
    code, _, errors = run(name, url, "-o", "out")
    assert code == 2
    problem = "lowering, bundling and their proofs read all weights of an export"
    assert errors == f"Error: {url}: {problem} - let it be fetched with --download, as long as the command runs\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lower", "bundle"])
def test_what_is_made_of_an_export_on_a_server_is_what_is_made_of_it_here(
    memory: object, export: Path, run: Command, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, content in content_of(export).items():
        memory.pipe(f"/onnx/{file}", content)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lowered = ("--src-len", "6", "--max-cache-len", "5", "--target", "openvino")
    sizes = lowered if name == "lower" else ("--max-source", "6", "--max-cache", "5")
    for source, output in (("memory://onnx", "remote"), (export, "local")):
        code, _, errors = run(name, source, "-o", output, *sizes, "--no-verify", "--download")
        assert (code, errors) == (0, "")
    assert content_of(Path("remote")) == content_of(Path("local"))
    contract = json.loads(Path("remote", "contract.json" if name == "lower" else "bundle.json").read_text())
    assert contract["tokens"] == {"pad": 7, "start": 3}
    assert list(tmp_path.glob("graphkit-*")) == []


@pytest.mark.slow
def test_a_folder_is_verified_against_an_export_of_the_hub(hub: Site, export: Path, run: Command) -> None:
    """Of a repository, in which the configuration is above the folder with the models, and other models are."""
    files = {f"onnx/{name}": content for name, content in content_of(export).items() if name != "config.json"}
    upload(hub, {**files, "onnx/decoder_model_merged_q4.onnx": SMALL, "config.json": CONFIGURATION.encode()})
    sizes = ("--src-len", "6", "--max-cache-len", "5")
    code, out, errors = run("lower", "hf://org/name", "-o", "out", *sizes, "--target", "openvino", "--download")
    assert (code, errors) == (0, "")
    assert "proven" in out.lower()
    assert json.loads(Path("out/contract.json").read_text())["tokens"] == {"pad": 7, "start": 3}
    assert not any("q4" in asked.path for asked in hub.asked)
    assert run("verify", "hf://org/name/onnx", "out", "--download")[0] == 0


def test_errors_about_what_was_fetched_name_its_url(memory: object, export: Path, run: Command) -> None:
    memory.pipe("/onnx/decoder_model_merged.onnx", (export / "decoder_model_merged.onnx").read_bytes())
    code, _, errors = run("lower", "memory://onnx", "-o", "out", "--no-verify", "--download")
    assert code == 2
    assert re.match(r"Error: memory://onnx[:/]", errors)
    assert "graphkit-" not in errors


@pytest.mark.parametrize(
    ("name", "file", "content", "expected"),
    [
        pytest.param(
            *("lower", "config.json", b"{", "memory://onnx/config.json: it cannot be read: "), marks=pytest.mark.slow
        ),
        ("bundle", "config.json", b"{", "memory://onnx/config.json: it cannot be read: "),
        ("bundle", "bundle.toml", b"[", "memory://onnx/bundle.toml: it is not TOML: "),
        ("bundle", "bundle.toml", b"", "memory://onnx/bundle.toml: it names no method - "),
        ("lower", "decoder_model_merged.onnx_data", b"", "memory://onnx/decoder_model_merged.onnx, "),
    ],
)
def test_an_error_about_a_file_that_was_fetched_names_its_url(
    memory: object, export: Path, run: Command, name: str, file: str, content: bytes, expected: str
) -> None:
    for known, data in {**content_of(export), file: content}.items():
        memory.pipe(f"/onnx/{known}", data)
    code, _, errors = run(name, "memory://onnx", "-o", "out", "--no-verify", "--download")
    assert code == 2
    assert errors.startswith(f"Error: {expected}"), errors
    assert "graphkit-" not in errors


def test_a_message_of_onnxruntime_names_files_as_ours_do(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with name_as_staged(tmp_path, "hf://org/name"), pytest.raises(ModelError) as caught:
        Session(tmp_path / "model.onnx")
    assert "Load model from hf://org/name/model.onnx failed" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_folder_of_many_models_is_no_export(memory: object, run: Command) -> None:
    for number in range(5):
        memory.pipe(f"/folder/model_q{number}.onnx", SMALL)
    code, _, errors = run("bundle", "memory://folder", "-o", "out", "--download")
    line = "Error: memory://folder: 5 models are in it, and an export has up to 4 - name one of them\n"
    assert (code, errors) == (2, line)


def test_one_model_of_a_server_is_lowered_and_a_login_does_not_reach_other_servers(
    site: Site, export: Path, run: Command, tmp_path: Path
) -> None:
    """Nor does a request for the configuration, which is asked for beside the model."""
    with serving() as elsewhere:
        elsewhere.put("/cdn/model.onnx", (export / "encoder_model.onnx").read_bytes())
        site.redirects["/encoder_model.onnx"] = f"{elsewhere.base}/cdn/model.onnx"
        url = site.base.replace("http://", "http://me:secret@") + "/encoder_model.onnx"
        words = ("--src-len", "6", "--no-verify", "--download")
        code, _, errors = run("lower", url, "-o", tmp_path / "out", *words)
        assert (code, errors) == (0, "")
        assert (tmp_path / "out" / "contract.json").exists()
        assert [asked.path for asked in elsewhere.asked] == ["/cdn/model.onnx"]
        assert not any("Authorization" in asked.headers for asked in elsewhere.asked)
        assert all("Authorization" in asked.headers for asked in site.asked)
