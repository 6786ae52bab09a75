"""Commands that are stopped: nothing unproven gets its name, and what stood there stays."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_models import unpacked

from graphkit.deploy.contract import read_contract
from graphkit.deploy.contract.contract_reader import read_bundle
from graphkit.errors import ModelError

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("qwen2-tiny", tmp_path_factory.mktemp("export") / "qwen2-tiny")


def words(command: str, export: Path, out: Path) -> list[str]:
    model = next(export.glob("*.onnx"))
    more = {
        "lower": [str(export), "-o", str(out), "--max-cache-len", "5"],
        "bundle": [str(export), "-o", str(out), "--max-cache", "16"],
        "fold": [str(model), "-o", str(out / "folded.onnx")],
    }
    return [sys.executable, "-m", "graphkit", command, *more[command], "--overwrite"]


def names(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder with their content, without those that are hidden."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def started(folder: Path) -> bool:
    """Whether all files are written to the hidden folder, so that the proof runs."""
    return any(
        any(path.suffix in (".onnx", ".json") for path in new.iterdir()) for new in folder.glob(".*graphkit-*/new")
    )


def stop(command: list[str], number: int, ready: Callable[[], bool]) -> tuple[int, str]:
    """Start a command, send a signal when it is time, and return its exit code and what it says."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not ready() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.parametrize(
    ("number", "command"),
    [
        pytest.param(number, command, id=f"{number.name}-{command}", marks=() if place == at == 0 else pytest.mark.slow)
        for at, number in enumerate(NUMBERS)
        for place, command in enumerate(("fold", "bundle", "lower"))
    ],
)
def test_a_proof_that_is_stopped_leaves_what_stood_there(
    command: str, number: signal.Signals, export: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    kept = {"lower": "contract.json", "bundle": "bundle.json", "fold": "folded.onnx"}[command]
    (out / kept).write_text("from before")
    code, error = stop(words(command, export, out), number, lambda: started(out))
    assert names(out) == {kept: b"from before"}
    if number != signal.SIGKILL:
        assert (code, error) == (128 + number, f"Error: stopped by {number.name} - no file is left half written\n")
        assert not [path for path in out.iterdir() if path.name != kept]


def is_whole_or_none(command: str, out: Path) -> bool:
    """Whether a folder has nothing, or is proven, with all its files."""
    found = names(out) if out.is_dir() else {}
    if not found:
        return True
    if command == "fold":
        return "folded.onnx" in found
    read = read_contract if command == "lower" else read_bundle
    try:
        contract = read(out / ("contract.json" if command == "lower" else "bundle.json"))
    except ModelError:
        return False
    return contract.proof.passed and set(contract.files) < set(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["lower", "bundle", "fold"])
def test_commands_that_are_killed_at_any_moment_leave_all_or_nothing(
    command: str, export: Path, tmp_path: Path
) -> None:
    rng = random.Random(command)
    for place in range(12):
        out = tmp_path / str(place)
        if command == "fold":
            out.mkdir()
        at = time.monotonic() + rng.uniform(0.3, 6)
        stop(words(command, export, out), rng.choice(NUMBERS), lambda at=at: time.monotonic() > at)
        assert is_whole_or_none(command, out)
        shutil.rmtree(out, ignore_errors=True)
