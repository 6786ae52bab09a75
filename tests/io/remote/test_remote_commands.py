"""Commands on models on a server: the same results as on the file, and clear words where there can be none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from layers import layered
from range_server import Site

from graphkit.cli.commands import every_command
from graphkit.io.remote import remote_file
from graphkit.model import load

Command = Callable[..., tuple[object, str, str]]
CONTENT = layered(3).SerializeToString()


@pytest.fixture
def model(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A model whose weights are on the server, and beside it in the current folder, for the same commands."""
    monkeypatch.setattr(remote_file, "FIRST", 2048)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 2048)
    monkeypatch.setattr(remote_file, "STEP", 2048)
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(CONTENT)
    return site.put("/model.onnx", CONTENT)


def test_the_page_about_urls_has_all_commands_that_read_models() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "remote.md"
    rows = "".join(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    reading = [
        each.name for each in every_command().values() if any(option.name == "download" for option in each.params)
    ]
    assert [name for name in reading if f"`{name}`" not in rows] == []


def test_a_contract_is_of_this_machine(site: Site, run: Command) -> None:
    url = f"{site.base}/contract.json"
    problem = "a contract is read from this machine - fetch it, and name the file"
    assert run("contract", url) == (2, "", f"Error: {url}: {problem}\n")


@pytest.mark.parametrize("weights", ["kept", "shared", "inline"])
def test_fold_streams_the_weights(model: str, run: Command, site: Site, weights: str) -> None:
    code, _, errors = run("fold", model, "-o", "folded.onnx", "--weights", weights, "--no-verify")
    assert (code, errors) == (0, "")
    assert run("fold", "model.onnx", "-o", "local.onnx", "--weights", weights, "--no-verify")[0] == 0
    assert load("folded.onnx").restore().graph.node == load("local.onnx").restore().graph.node
    paths = [Path(name + suffix) for name in ("folded.onnx", "local.onnx") for suffix in ("", "_data")]
    contents = [path.read_bytes() if path.exists() else b"" for path in paths]
    assert contents[1] == contents[3]
    if weights != "shared":
        assert contents[0] == contents[2]
    assert site.sent < 2 * len(CONTENT)


@pytest.mark.slow
def test_a_fold_is_proven_against_the_model_on_the_server(model: str, run: Command) -> None:
    code, out, _ = run("fold", model, "-o", "folded.onnx", "--dim", "batch=2")
    assert code == 0
    assert "Proven bit for bit" in out
    assert run("verify", model, "folded.onnx", "--dim", "batch=2")[0] == 0
    assert run("compare", model, "model.onnx")[0] == 0
    assert run("diff", model, "model.onnx")[0] == 0


def test_weights_in_place_have_to_be_here(model: str, run: Command) -> None:
    code, _, errors = run("fold", model, "-o", "folded.onnx", "--weights", "in-place", "--no-verify")
    assert code == 2
    assert f"is not the folder of {model}, and data in place can only be referred to from there" in errors
    assert "use --weights shared" in errors


def test_a_split_needs_a_folder(site: Site, run: Command, model_file: Callable[[str], Path]) -> None:
    url = site.put("/decoder.onnx", model_file("marian-tiny/decoder_model_merged").read_bytes())
    code, _, errors = run("split-merged", url)
    assert (code, errors) == (2, f"Error: {url}: has no folder here - name an output folder with -o\n")


def test_many_bytes_of_weights_are_told_of(model: str, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "NOTEWORTHY", 100_000)
    for command in (("report", model, "--hash"), ("fold", model, "-o", "folded.onnx", "--no-verify")):
        code, _, errors = run(*command)
        assert code == 0
        assert re.fullmatch(rf"Note: fetching weights of {model}, \d\d\d,\d\d\d bytes so far\n", errors)
    assert run("report", model)[2] == ""


def test_the_options_are_those_of_the_command_alone(model: str, run: Command, site: Site, tmp_path: Path) -> None:
    assert run("nodes", model, "--no-cache", "--download")[0] == 0
    assert [asked.range for asked in site.asked] == [""]
    assert list(tmp_path.rglob("graphs/*")) == []
    site.asked.clear()
    assert run("nodes", model)[0] == 0
    assert site.asked[0].range == "bytes=0-2047"
    assert len(list(tmp_path.rglob("graphs/*"))) == 1
    site.fault = "slow"
    code, _, errors = run("nodes", model, "--no-cache", "--timeout", "0.2")
    assert code == 2
    assert errors.startswith(f"Error: {model}: the server does not send what was asked for in 0.2 s - raise --timeout")
    assert run("nodes", model, "--timeout", "0")[2].startswith("Error: --timeout 0: is not a time")


def test_models_on_servers_are_compared_with_others(model: str, run: Command, site: Site) -> None:
    other = site.put("/other.onnx", layered(2).SerializeToString())
    code, out, errors = run("report", model, other, "model.onnx", f"{site.base}/missing.onnx", "--only", "summary")
    assert code == 2
    assert errors == f"Error: {site.base}/missing.onnx: is not there - check the URL\n"
    assert "other.onnx" in out


def test_temporary_files_go_with_the_model(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loaded = load(model)
    tensor = loaded.proto.graph.initializer[0]
    assert loaded.array(tensor).tobytes() == onnx.load_from_string(CONTENT).graph.initializer[0].raw_data
    assert len(list(tmp_path.glob("graphkit-*"))) == 1
    del loaded
    assert list(tmp_path.glob("graphkit-*")) == []


def test_a_verdict_names_commands_with_the_options_for_urls(
    site: Site, run: Command, model_file: Callable[[str], Path]
) -> None:
    path = model_file("cache-styles/cache_k_l0")
    url = site.put("/decoder.onnx", path.read_bytes())
    said = run("report", url, "--only", "verdict")[1]
    assert [line.strip() for line in said.splitlines() if "graphkit bundle" in line] == [
        f"$ graphkit bundle {url} -o decoder.bundle --max-cache 64 --download"
    ]
    assert "--download" not in run("report", path, "--only", "verdict")[1]
