"""A survey of a thousand models: one process, two, two Dask workers, and a second run that finds all of them done.

    python benchmarks/survey.py [MODELS] [ROUNDS]
    python benchmarks/survey.py requests

The models are those of the slow test: real exports, changed copies of them, and hostile files, one in twenty. Memory is
that of all processes of a survey together, sampled twenty times a second: pages that processes share count for each of
them. `requests` counts those that a part and the table of a survey take in an object store, here one of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import psutil
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fleet")]

from catalogue import catalogue  # noqa: E402
from dask_cluster import cluster  # noqa: E402


def measured(folder: Path, table: str, options: list[str], workers: list[int]) -> tuple[float, float]:
    """Return the seconds of a survey, and the MB of its processes together at their peak."""
    start, peak = time.monotonic(), 0
    words = [sys.executable, "-m", "graphkit", "survey", "m", "-o", table, *options]
    run = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    while run.poll() is None:
        peak = max(peak, sum(map(memory, (run.pid, *workers))))
        time.sleep(0.05)
    assert run.returncode == 0
    return time.monotonic() - start, peak / 1e6


def memory(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return total
    return total


def rows_of(table: Path) -> bytes:
    return repr(pq.read_table(table).drop_columns(["seconds"]).to_pylist()).encode()


def compare(models: int, rounds: int, folder: Path) -> None:
    catalogue(folder / "m", models, models // 20)
    with cluster(folder / "dask") as dask:
        workers = [dask.scheduler.pid, *(dask.worker().pid for _ in range(2))]
        ways: dict[str, tuple[str, list[str], list[int]]] = {
            "one process": ("one.parquet", ["--jobs", "1"], []),
            "two processes": ("two.parquet", ["--jobs", "2"], []),
            "two Dask workers": ("dask.parquet", ["--scheduler", dask.address], workers),
            "nothing to do": ("two.parquet", ["--jobs", "2"], []),
        }
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        print(f"{models:,} models, {models // 20} of them hostile; load {os.getloadavg()[0]:.1f} before", flush=True)
        for _ in range(rounds):  # in turns, so that other work on the machine slows all of them
            for table in ("one.parquet", "two.parquet", "dask.parquet"):
                (folder / table).unlink(missing_ok=True)
            for way, (table, options, others) in ways.items():
                found[way].append(measured(folder, table, options, others))
                print(f"  {way:18}{found[way][-1][0]:7.1f} s {found[way][-1][1]:7.0f} MB", flush=True)
            tables = {rows_of(folder / table) for table in ("one.parquet", "two.parquet", "dask.parquet")}
            assert len(tables) == 1, "the rows differ"
    alone = [seconds for seconds, _ in found["one process"]]
    for way, rows in found.items():
        ratio = median(one / seconds for one, (seconds, _) in zip(alone, rows, strict=True))
        seconds, megabytes = (median(column) for column in zip(*rows, strict=True))
        print(f"{way:18}{seconds:7.1f} s {megabytes:7.0f} MB  {ratio:.2f} times as fast as one process")
    size = (folder / "two.parquet").stat().st_size
    print(f"medians of {rounds} rounds; the rows are the same each time; the table has {size / 1e3:,.0f} kB")


def requests(folder: Path) -> None:
    """Count the requests of a survey of 256 models whose parts and table are in an object store."""
    import s3fs
    from moto.server import ThreadedMotoServer

    from graphkit.fleet.local_pool import LocalPool
    from graphkit.fleet.survey import survey
    from graphkit.fleet.survey_sources import models_of

    catalogue(folder / "m", 256, 0, real=0)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    try:
        system = s3fs.S3FileSystem()
        system.mkdir("bucket")
        counts: Counter[str] = Counter()
        note: Callable[..., None] = lambda model, **_: counts.update([model.name])  # noqa: E731
        system.s3.meta.events.register("before-call.s3", note)
        survey(models_of([str(folder / "m")], ()), "s3://bucket/t.parquet", LocalPool(2))
        print(dict(counts), f"in all {counts.total()}")
    finally:
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if sys.argv[1:] == ["requests"]:
            requests(Path(place))
        else:
            assert find_spec("distributed") is not None, "install graphkit[fleet]"
            given = [int(word) for word in sys.argv[1:]]
            compare(*(given + [1000, 3][len(given) :]), Path(place))
