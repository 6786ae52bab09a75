"""The cache of graphs: a second report takes one request; what changed, or was damaged, is read anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from layers import layered
from range_server import Site

from graphkit.io.remote import remote_file
from graphkit.io.remote.server import Revision
from graphkit.io.urls import RemoteOptions, remote_options
from graphkit.model import load

CONTENT = layered(6, 64).SerializeToString()
REVISION = Revision("tag", "")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "FIRST", 4096)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 4096)
    monkeypatch.setattr(remote_file, "STEP", 4096)


def test_the_second_time_takes_one_request(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT)
    first = load(url)
    first.array(first.proto.graph.initializer[0])
    site.asked.clear()
    sent = site.sent
    assert load(url).proto == first.proto
    assert [asked.headers["If-None-Match"] for asked in site.asked] == [site.etags["/model.onnx"]]
    assert site.sent == sent
    second = load(url)
    assert second.array(second.proto.graph.initializer[1]).shape == (64, 64)


def test_a_server_that_sends_the_head_anyway_is_believed_by_its_tag(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT)
    first = load(url)
    tag = site.etags["/model.onnx"]
    site.etags["/model.onnx"] = f"{tag[:-1]}x{tag[-1]}"
    site.asked.clear()
    assert load(url).proto == first.proto
    assert len(site.asked) > 3


def test_small_weights_that_analyses_read_are_kept_too(site: Site) -> None:
    url = site.put("/model.onnx", layered(2, 20).SerializeToString())  # 1,600 bytes a matrix
    first = load(url)
    first.array(first.proto.graph.initializer[0])
    second = load(url)
    site.asked.clear()
    second.array(second.proto.graph.initializer[0])
    assert site.asked == []


def test_a_changed_file_is_read_anew(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT)
    load(url)
    other = layered(5)
    site.put("/model.onnx", other.SerializeToString())
    assert load(url).restore() == other


def test_no_cache_reads_and_writes_none(site: Site, tmp_path: Path) -> None:
    url = site.put("/model.onnx", CONTENT)
    with remote_options(RemoteOptions(cache=False)):
        load(url)
    assert list(tmp_path.rglob("graphs/*")) == []
    load(url)
    site.asked.clear()
    with remote_options(RemoteOptions(cache=False)):
        load(url)
    assert len(site.asked) > 3
    assert "If-None-Match" not in site.asked[0].headers


def test_a_file_of_no_revision_is_not_kept(site: Site, tmp_path: Path) -> None:
    site.has_etags = False
    load(site.put("/model.onnx", CONTENT))
    assert list(tmp_path.rglob("graphs/*")) == []


def test_a_damaged_entry_is_none(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT)
    first = load(url).proto
    (entry,) = remote_file.cache_folder().iterdir()
    whole = entry.read_bytes()
    for damaged in (
        b"",
        whole[:-1],
        whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
        b"{}\n",
        b"[" * 5000,
        b"\xff\n",
    ):
        entry.write_bytes(damaged)
        assert remote_file.read_entry(url) is None
        assert load(url).proto == first


def test_no_credentials_are_kept(site: Site) -> None:
    site.put("/model.onnx", CONTENT)
    load(f"{site.base.replace('//', '//me:password@')}/model.onnx?signature=s3cr3t")
    (entry,) = remote_file.cache_folder().iterdir()
    assert b"password" not in entry.read_bytes()
    assert b"s3cr3t" not in entry.read_bytes()
    if os.name == "posix":
        assert remote_file.cache_folder().stat().st_mode & 0o077 == 0


def test_the_cache_has_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - its folder
    monkeypatch.setattr(remote_file, "MAX_CACHE", 5000)
    monkeypatch.setattr(remote_file, "MAX_ENTRY", 3000)
    for number in range(5):
        remote_file.write_entry(f"url{number}", remote_file.Entry(9999, REVISION, [(7, bytes(2000))]))
        os.utime(
            next(iter(sorted(remote_file.cache_folder().iterdir(), key=lambda file: -file.stat().st_mtime))),
            (number, number),
        )
    remote_file.write_entry("large", remote_file.Entry(9999, REVISION, [(0, bytes(4000))]))
    assert [number for number in range(5) if remote_file.read_entry(f"url{number}")] == [3, 4]
    assert remote_file.read_entry("large") is None
    assert remote_file.read_entry("url4") == remote_file.Entry(9999, REVISION, [(7, bytes(2000))])


def test_a_cache_that_cannot_be_written_is_no_error(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load(site.put("/model.onnx", CONTENT))
