"""hf:// against a hub of this machine: one revision, the login of its library, and files beside the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from hub_address import files_come_from
from layers import layered
from range_server import Site, serving

from graphkit.errors import ModelError, UsageError
from graphkit.io.remote import remote_file
from graphkit.model import load

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    """A hub with a model whose weights lie beside it; files come from elsewhere, as those of large files do."""
    files_come_from(monkeypatch, site.base)
    monkeypatch.setattr(remote_file, "FIRST", 2048)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 2048)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    path = tmp_path / "model.onnx"
    onnx.save(layered(), path, save_as_external_data=True, location="model.onnx_data", size_threshold=1024)
    site.headers["X-Repo-Commit"] = COMMIT
    for name in ("model.onnx", "model.onnx_data"):
        site.put(f"/cdn/{name}", path.with_name(name).read_bytes())
        for revision in ("main", "v1", COMMIT):
            site.redirects[f"/org/name/resolve/{revision}/onnx/{name}"] = f"/cdn/{name}"
    return site


def test_a_model_is_read_at_one_commit(hub: Site) -> None:
    model = load("hf://org/name/onnx/model.onnx")
    assert model.label == "hf://org/name/onnx/model.onnx"
    assert model.array(model.proto.graph.initializer[0]).shape == (160, 160)
    asked = [request.path for request in hub.asked if not request.path.startswith("/cdn/")]
    assert asked == ["/org/name/resolve/main/onnx/model.onnx", f"/org/name/resolve/{COMMIT}/onnx/model.onnx_data"]


def test_the_token_of_the_library_goes_to_the_hub(hub: Site) -> None:
    load("hf://org/name/onnx/model.onnx")
    assert hub.asked[0].headers["Authorization"] == "Bearer hf_secret"


def test_the_token_does_not_go_where_the_hub_leads(hub: Site) -> None:
    with serving() as elsewhere:
        elsewhere.put("/cdn/model.onnx", hub.files["/cdn/model.onnx"])
        hub.redirects["/org/name/resolve/main/onnx/model.onnx"] = f"{elsewhere.base}/cdn/model.onnx"
        load("hf://org/name/onnx/model.onnx")
        assert len(elsewhere.asked) > 1
        assert not any("hf_secret" in str(asked.headers) for asked in elsewhere.asked)


def test_another_revision_is_asked_for_by_name(hub: Site) -> None:
    load("hf://org/name@v1/onnx/model.onnx")
    assert hub.asked[0].path == "/org/name/resolve/v1/onnx/model.onnx"


@pytest.mark.parametrize(
    ("status", "problem"),
    [(401, "answers 401 .* `hf auth login` or HF_TOKEN"), (403, "answers 403 .*ask for access"), (404, "is not there")],
)
def test_what_the_hub_refuses_is_one_clear_error(hub: Site, status: int, problem: str) -> None:
    hub.fault, hub.status = "status", status
    with pytest.raises(ModelError, match=f"^hf://org/name/onnx/model.onnx: .*{problem}") as caught:
        load("hf://org/name/onnx/model.onnx")
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["hf://org/name", "hf://org", "hf://datasets/org/name"])
def test_a_repository_is_no_model(url: str) -> None:
    with pytest.raises(UsageError, match=f"^{url}: names no file of the hub - write hf://ORGANISATION/NAME/"):
        load(url)


@pytest.mark.slow
def test_the_address_of_the_hub_is_that_of_its_library(hub: Site) -> None:
    command = [sys.executable, "-m", "graphkit", "report", "hf://org/name/onnx/model.onnx", "--only", "interface"]
    environment = {**os.environ, "HF_ENDPOINT": hub.base}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "x  float32" in " ".join(result.stdout.split()).replace(" ", "  ")
    assert result.stderr == ""
