"""Time and memory of a survey of a thousand models: one process against two, and a second run that finds them done.

    python benchmarks/survey.py [MODELS] [FOLDER]

The models are those of the slow test: real exports, changed copies of them, and 50 hostile files. Memory is that of all
processes of a survey together, sampled twenty times a second: pages that processes share count for each of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
import pyarrow.parquet as pq

ROUNDS = 3
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fleet")]

from catalogue import catalogue  # noqa: E402


def measured(folder: Path, table: str, jobs: int) -> tuple[float, float]:
    """Return the seconds of a survey, and the MB of its processes together at their peak."""
    start, peak = time.monotonic(), 0
    words = [sys.executable, "-m", "graphkit", "survey", "m", "-o", table, "--jobs", str(jobs)]
    run = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    while run.poll() is None:
        peak = max(peak, memory(run.pid))
        time.sleep(0.05)
    assert run.returncode == 0
    return time.monotonic() - start, peak / 1e6


def memory(pid: int) -> int:
    try:
        parent = psutil.Process(pid)
        return sum(process.memory_info().rss for process in (parent, *parent.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    seconds, megabytes = zip(*rounds, strict=True)
    return median(seconds), median(megabytes)


def rows_of(table: Path) -> bytes:
    return repr(pq.read_table(table).drop_columns(["seconds"]).to_pylist()).encode()


def main(models: int, folder: Path) -> None:
    catalogue(folder / "m", models, models // 20)
    ones, twos, agains = [], [], []
    for _ in range(ROUNDS):  # in turns, so that other work on the machine slows both
        for table in ("one.parquet", "two.parquet"):
            (folder / table).unlink(missing_ok=True)
        ones.append(measured(folder, "one.parquet", 1))
        twos.append(measured(folder, "two.parquet", 2))
        agains.append(measured(folder, "two.parquet", 2))
        assert rows_of(folder / "one.parquet") == rows_of(folder / "two.parquet"), "the rows differ"
    (one, memory_of_one), (two, memory_of_two), (again, memory_again) = map(medians, (ones, twos, agains))
    size = (folder / "two.parquet").stat().st_size
    print(f"{models:,} models, {models // 20} of them hostile; a table of {size / 1e3:,.0f} kB")
    print(f"one process    {one:7.1f} s {memory_of_one:7.0f} MB")
    print(f"two processes  {two:7.1f} s {memory_of_two:7.0f} MB  {one / two:.2f} times as fast")
    print(f"nothing to do  {again:7.1f} s {memory_again:7.0f} MB")
    print(f"medians of {ROUNDS} rounds; the rows are the same each time")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    if len(sys.argv) > 2:
        main(count, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(count, Path(place))
