"""Surveys by the command line that are killed: no row is lost, none is doubled, and no process stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from catalogue import catalogue

SURVEY = (sys.executable, "-m", "graphkit", "survey")


def surveyed(folder: Path, table: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [*SURVEY, "m", "-o", table, *options]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def rows_of(table: Path) -> list[dict[str, object]]:
    return pq.read_table(table).drop_columns(["seconds"]).to_pylist()


def killed(folder: Path, is_time: Callable[[psutil.Process], bool], number: int) -> bool:
    """Start a survey, kill it when it is time, and return whether it was still running; its processes end with it."""
    run = subprocess.Popen([*SURVEY, "m", "-o", "t.parquet", "--jobs", "2"], cwd=folder, stderr=subprocess.DEVNULL)
    process = psutil.Process(run.pid)
    while run.poll() is None and not is_time(process):
        time.sleep(0.01)
    if run.poll() is not None:
        return False
    children = process.children(recursive=True)
    run.send_signal(number)
    run.wait()
    psutil.wait_procs(children)
    return True


@pytest.mark.slow
def test_hundreds_of_models_and_four_kills(tmp_path: Path) -> None:
    """Every other kill comes before a row is written, the others after the first rows of a run."""
    hostile = catalogue(tmp_path / "m", 200, 10, real=1)
    assert len(hostile) == 10
    parts, stopped = tmp_path / ".t.parquet.parts", []
    for number in range(4):
        written = len(list(parts.glob("*.parquet")))
        moments: tuple[Callable[[psutil.Process], bool], ...] = (
            lambda process: bool(process.children()),
            lambda _, written=written: len(list(parts.glob("*.parquet"))) > written,  # type: ignore[misc]
        )
        stopped.append(killed(tmp_path, moments[number % 2], signal.SIGINT if number % 3 == 2 else signal.SIGKILL))
    assert sum(stopped) >= 3  # else the kills come too late to show anything
    ran = surveyed(tmp_path, "t.parquet", "--jobs", "2")
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["200", "models"])
    rows = rows_of(tmp_path / "t.parquet")
    paths = [str(row["path"]) for row in rows]
    assert paths == sorted(set(paths))
    assert paths == sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "m").rglob("*.onnx"))
    assert sum(row["error"] is not None for row in rows) == 10
    assert list(tmp_path.glob(".t.parquet.parts")) == []
    assert surveyed(tmp_path, "alone.parquet", "--jobs", "1").returncode == 0
    assert rows_of(tmp_path / "alone.parquet") == rows


@pytest.mark.slow
def test_one_process_and_two_give_the_same_rows_and_a_killed_worker_costs_at_most_its_row(tmp_path: Path) -> None:
    catalogue(tmp_path / "m", 12, 5, real=0)
    assert surveyed(tmp_path, "two.parquet", "--jobs", "2").returncode == 0
    run = subprocess.Popen([*SURVEY, "m", "-o", "one.parquet", "--jobs", "1"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    while not children and run.poll() is None:
        children = psutil.Process(run.pid).children()
        time.sleep(0.01)
    children[0].send_signal(signal.SIGKILL)
    assert run.wait() in (0, 2)  # 2: killed before it was ready, which ends the survey with an error
    assert surveyed(tmp_path, "one.parquet", "--jobs", "1", "--retry").returncode == 0
    assert rows_of(tmp_path / "one.parquet") == rows_of(tmp_path / "two.parquet")
