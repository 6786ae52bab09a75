"""Commands that are stopped: nothing unproven gets its name, and what stood there stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_pipelines import FILLED, decoder, saved

from graphkit.contract import read_contract
from graphkit.contract.contract_files import read_bundle
from graphkit.errors import ModelError

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(decoder(FILLED), tmp_path_factory.mktemp("export") / "decoder")


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


PROVING = """
import sys
from pathlib import Path
from graphkit.cli import main
from graphkit.runtime.session import IsolatedSession
run, folder = IsolatedSession.run, Path(sys.argv.pop(1))
def run_on(session, feed):
    while any(path.suffix in (".onnx", ".json") for path in folder.glob(".*graphkit-*/new/*")):
        run(session, feed)
        print("a model of hidden files runs", flush=True)
    return run(session, feed)
IsolatedSession.run = run_on
main()
"""  # a proof that runs until it is stopped


@pytest.mark.parametrize(
    ("number", "command"),
    [
        pytest.param(
            number, command, id=f"{number.name}-{command}", marks=() if command == "fold" else pytest.mark.slow
        )
        for number, command in zip(NUMBERS, ("fold", "bundle", "lower"), strict=True)
    ],
)
def test_a_proof_that_is_stopped_leaves_what_stood_there(
    command: str, number: signal.Signals, export: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    kept = {"lower": "contract.json", "bundle": "bundle.json", "fold": "folded.onnx"}[command]
    (out / kept).write_text("from before")
    program = [sys.executable, "-c", PROVING, str(out), *words(command, export, out)[3:]]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begun = process.stdout.readline()
    process.send_signal(number)
    _, error = process.communicate()
    assert begun == "a model of hidden files runs\n"
    assert names(out) == {kept: b"from before"}
    if number != signal.SIGKILL:
        assert (process.returncode, error) == (
            128 + number,
            f"Error: stopped by {number.name} - no file is left half written\n",
        )
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


def count_inside(folder: Path) -> int:
    """Return how many files and folders there are; some may go while they are counted."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


@pytest.mark.slow
@pytest.mark.parametrize(("command", "counts"), [("lower", (1, 6)), ("bundle", (3,)), ("fold", (1,))])
def test_commands_that_are_killed_at_any_moment_leave_all_or_nothing(
    command: str, counts: tuple[int, ...], export: Path, tmp_path: Path
) -> None:
    """When so many files and folders are there, hidden ones among them."""
    for place, count in enumerate(counts):
        out = tmp_path / str(place)
        out.mkdir()
        process = subprocess.Popen(words(command, export, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and count_inside(out) < count:
            time.sleep(0.001)
        process.send_signal(NUMBERS[place % len(NUMBERS)])
        process.wait()
        assert is_whole_or_none(command, out)
