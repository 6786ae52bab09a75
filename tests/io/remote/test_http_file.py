"""Models on a web server: what is read is what is in the file, and no more is fetched than is read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from layers import layered
from range_server import Site, serving
from real_models import params

import graphkit
from graphkit.io.remote import remote_file
from graphkit.io.urls import RemoteOptions, remote_options
from graphkit.model import load

CONTENT = layered().SerializeToString()
DETR = "detr-resnet-50/model_quantized"  # whose weights are in a file of their own


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model of a megabyte be a large one."""
    monkeypatch.setattr(remote_file, "FIRST", 4096)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 4096)
    monkeypatch.setattr(remote_file, "STEP", 4096)
    monkeypatch.setattr(remote_file, "TAIL", 1024)


@pytest.mark.usefixtures("small_steps")
def test_the_graph_is_read_and_the_weights_are_not(site: Site, tmp_path: Path) -> None:
    url = site.put("/model.onnx", CONTENT)
    model = load(url)
    (tmp_path / "model.onnx").write_bytes(CONTENT)
    local = load(tmp_path / "model.onnx")
    assert model.proto == local.proto
    assert (model.name, model.label, model.source.size) == ("model.onnx", url, len(CONTENT))
    assert len(site.asked) < 60  # 36 weights
    assert site.sent < len(CONTENT) / 20


@pytest.mark.parametrize(("model", "requests"), [(layered(2, 16), 1), (layered(), 2)])
def test_a_model_of_up_to_8_mebibytes_takes_two_requests(site: Site, model: onnx.ModelProto, requests: int) -> None:
    """Its size is in the first answer; parts of the rest would take more requests than its bytes are worth."""
    load(site.put("/model.onnx", model.SerializeToString()))
    first, size = remote_file.FIRST, model.ByteSize()
    assert [asked.range for asked in site.asked] == [f"bytes=0-{first - 1}", f"bytes={first}-{size - 1}"][:requests]


def test_the_rest_is_asked_for_where_the_connection_broke_off(site: Site) -> None:
    site.fault, site.times = "drop", 1
    load(site.put("/model.onnx", CONTENT))
    first = remote_file.FIRST
    assert [asked.range for asked in site.asked][:2] == [f"bytes=0-{first - 1}", f"bytes={first // 2}-{first - 1}"]


def test_a_file_without_tags_is_asked_for_anew_where_the_connection_broke_off(site: Site) -> None:
    site.has_etags, site.fault, site.times = False, "drop", 1
    load(site.put("/model.onnx", CONTENT))
    assert [asked.range for asked in site.asked][:2] == [f"bytes=0-{remote_file.FIRST - 1}"] * 2


@pytest.mark.usefixtures("small_steps")
def test_weights_are_fetched_when_somebody_asks_for_their_values(site: Site) -> None:
    right = layered(4, 64)
    model = load(site.put("/model.onnx", right.SerializeToString()))
    tensor = model.proto.graph.initializer[4]
    before = len(site.asked)
    expected = onnx.numpy_helper.to_array(right.graph.initializer[4])
    np.testing.assert_array_equal(model.array(tensor), expected)
    np.testing.assert_array_equal(model.array(tensor), expected)
    assert len(site.asked) == before + 1
    assert model.restore() == right


@pytest.mark.usefixtures("small_steps")
def test_offsets_are_predicted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without predictions the chain takes a round for each weight."""
    url = site.put("/model.onnx", layered(20, 64).SerializeToString())
    rounds: list[int] = []
    fetch = remote_file.RemoteFile._fetch

    def counted(self: remote_file.RemoteFile, spans: list[tuple[int, int]], seconds: float | None) -> None:
        rounds.append(len(spans))
        fetch(self, spans, seconds)

    monkeypatch.setattr(remote_file.RemoteFile, "_fetch", counted)
    options = RemoteOptions(cache=False)
    with remote_options(options):
        predicted = load(url).proto
    guessed, rounds[:] = len(rounds), []
    monkeypatch.setattr(remote_file, "predict_offsets", lambda *_: [])
    with remote_options(options):
        assert load(url).proto == predicted
    assert len(rounds) >= 40
    assert guessed < 13


@pytest.mark.usefixtures("small_steps")
def test_wrong_predictions_cost_requests_and_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    url = site.put("/model.onnx", layered(6, 64).SerializeToString())
    right = load(url).proto
    monkeypatch.setattr(
        remote_file, "predict_offsets", lambda offsets, _, count: [(offsets[-1] + 1000 * n, 0) for n in range(count)]
    )
    with remote_options(RemoteOptions(cache=False)):
        assert load(url).proto == right


@pytest.mark.parametrize("name", params(["bert-fill-mask/model", DETR], slow=[DETR]))
def test_reports_are_those_of_the_file(
    site: Site, model_file: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_file(name)
    monkeypatch.chdir(path.parent)
    url = site.put(f"/{path.name}", path.read_bytes())
    local, remote = (json.dumps(graphkit.report(each).to_dict()) for each in (path.name, url))
    assert json.loads(remote.replace(url, path.name).replace(" --download", "")) == json.loads(local)
    data = {data.location for data in load(path).source.data_files}
    assert len(site.asked) == 1 + (path.stat().st_size > remote_file.FIRST) + len(data)


def test_data_files_are_found_beside_the_model(site: Site, tmp_path: Path) -> None:
    name = "sub folder#data"
    onnx.save(layered(4), tmp_path / "model.onnx", save_as_external_data=True, location=name, size_threshold=0)
    url = site.put("/org/model.onnx", (tmp_path / "model.onnx").read_bytes())
    site.put("/org/sub%20folder%23data", (tmp_path / name).read_bytes())
    model, local = load(url), load(tmp_path / "model.onnx")
    assert [data.size for data in model.source.data_files] == [data.size for data in local.source.data_files]
    assert len(site.asked) == 2
    for tensor in model.proto.graph.initializer:
        np.testing.assert_array_equal(model.array(tensor), local.array(tensor))


def test_a_missing_data_file_is_no_error_of_reading(site: Site, tmp_path: Path) -> None:
    onnx.save(layered(), tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    model = load(site.put("/model.onnx", (tmp_path / "model.onnx").read_bytes()))
    assert [(data.location, data.size) for data in model.source.data_files] == [("weights", None)]
    with pytest.raises(graphkit.ModelError, match=f"^{site.base}/weights: is not there - put it beside the model$"):
        model.array(model.proto.graph.initializer[0])


def test_data_files_stay_in_the_folder(site: Site) -> None:
    model = layered(1, 16)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    with pytest.raises(graphkit.ModelError, match="lies outside the model's folder"):
        load(site.put("/a/model.onnx", model.SerializeToString()))
    assert len(site.asked) == 1


@pytest.mark.usefixtures("small_steps")
def test_redirects_are_followed_once(site: Site) -> None:
    site.put("/cdn/file", CONTENT)
    site.redirects["/model.onnx"] = "/cdn/file"
    model = load(f"{site.base}/model.onnx")
    assert model.name == "model.onnx"
    assert [asked.path for asked in site.asked].count("/model.onnx") == 1


@pytest.mark.usefixtures("small_steps")
def test_the_address_that_a_redirect_gave_may_end(site: Site) -> None:
    site.put("/cdn/1", CONTENT)
    site.etags["/cdn/2"], site.files["/cdn/2"] = site.etags["/cdn/1"], CONTENT
    site.redirects["/model.onnx"] = "/cdn/1"
    model = load(f"{site.base}/model.onnx")
    del site.files["/cdn/1"]
    site.redirects["/model.onnx"] = "/cdn/2"
    assert model.array(model.proto.graph.initializer[0]).shape == (160, 160)


@pytest.mark.usefixtures("small_steps")
def test_a_login_goes_to_its_own_server_alone(site: Site) -> None:
    with serving() as elsewhere:
        elsewhere.put("/file", CONTENT)
        site.redirects["/model.onnx"] = f"{elsewhere.base}/file"
        url = site.base.replace("http://", "http://me:secret@")
        model = load(f"{url}/model.onnx?key=secret")
        assert model.label == f"{site.base}/model.onnx?..."
        assert "Authorization" in site.asked[0].headers
        assert len(elsewhere.asked) > 3
        assert not any("Authorization" in asked.headers for asked in elsewhere.asked)


@pytest.mark.parametrize("login", ["", "me:secret@"])
def test_a_proxy_of_the_environment_is_used(site: Site, monkeypatch: pytest.MonkeyPatch, login: str) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, site.base)
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    site.put("http://models.invalid/model.onnx", layered(1, 8).SerializeToString())
    assert load(f"http://{login}models.invalid/model.onnx").name == "model.onnx"
    assert [asked.path for asked in site.asked] == ["http://models.invalid/model.onnx"]
    assert ("Authorization" in site.asked[0].headers) == bool(login)


def test_files_of_this_machine_have_urls_too(tmp_path: Path) -> None:
    (tmp_path / "a b.onnx").write_bytes(CONTENT)
    assert load((tmp_path / "a b.onnx").as_uri()).path == tmp_path / "a b.onnx"
    with pytest.raises(graphkit.UsageError, match="names a file of another machine"):
        load("file://elsewhere/model.onnx")


def test_a_file_of_this_machine_needs_none_of_the_packages() -> None:
    code = (
        "import sys, graphkit; graphkit.report('example:encoder'); from graphkit.cli import app; "
        "assert not {'fsspec', 'aiohttp', 'huggingface_hub', 'platformdirs'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_packages_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "graphkit.io.remote.http_file")
    with pytest.raises(graphkit.UsageError, match=r"^https://x/m.onnx: URLs need .* install onnx-graphkit\[remote\]"):
        load("https://me:secret@x/m.onnx")
