"""A survey of a thousand models: one process, two, two Dask workers, and what is left of it when parts are killed.

    python benchmarks/survey.py [MODELS] [ROUNDS]
    python benchmarks/survey.py requests

The models are those of the slow test: real exports, changed copies of them, and hostile files, one in twenty. Memory is
that of all processes of a survey together, sampled twenty times a second: pages that processes share count for each of
them. Then the same survey is killed ten times at random, loses a Dask worker, and loses the scheduler. The rows of each
way have to be the same, byte for byte but for the seconds. `requests` counts those that a part and the table of a
survey take in an object store, here one of this machine.
"""

from __future__ import annotations

import os
import random
import signal
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
sys.path.insert(0, str(ROOT / "tests" / "support"))

from catalogue import catalogue  # noqa: E402
from dask_cluster import cluster  # noqa: E402


def started(folder: Path, table: str, *options: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "graphkit", "survey", "m", "-o", table, *options]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def measured(folder: Path, table: str, options: list[str], workers: list[int]) -> tuple[float, float]:
    """Return the seconds of a survey, and the MB of its processes together at their peak."""
    start, peak = time.monotonic(), 0
    run = started(folder, table, *options)
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


def killed_ten_times(folder: Path, seconds: float) -> str:
    """Kill a survey ten times, after two seconds and up to a twentieth of what it takes, and let it come to its end."""
    random_of, stopped = random.Random(24), 0
    for number in range(10):
        run = started(folder, "kills.parquet", "--jobs", "2")
        try:
            run.wait(2 + random_of.uniform(0, seconds / 20))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT if number % 3 == 2 else signal.SIGKILL)
            stopped += 1
        run.communicate()
    measured(folder, "kills.parquet", ["--jobs", "2"], [])
    return f"ten kills, {stopped} of them before the end"


def without_a_worker(folder: Path) -> str:
    """Kill one of two Dask workers when the first rows are written."""
    with cluster(folder / "two") as dask:
        workers = [dask.worker("--no-nanny") for _ in range(2)]
        run = begun(folder, "worker.parquet", dask.address)
        workers[0].kill()
        _, errors = run.communicate()
    assert (run.returncode, errors) == (0, b"")
    return "a Dask worker killed"


def without_a_scheduler(folder: Path) -> str:
    """Kill the scheduler when the first rows are written, and go on in two processes."""
    with cluster(folder / "gone") as dask:
        workers = [dask.worker("--no-nanny") for _ in range(2)]
        run = begun(folder, "scheduler.parquet", dask.address)
        dask.scheduler.kill()
        _, errors = run.communicate()
        for worker in workers:
            worker.kill()
    assert (run.returncode, errors.count(b"\n"), b"the scheduler is lost" in errors) == (2, 1, True)
    measured(folder, "scheduler.parquet", ["--jobs", "2"], [])
    return "the Dask scheduler killed, then two processes"


def begun(folder: Path, table: str, scheduler: str) -> subprocess.Popen[bytes]:
    """Start a survey on a cluster, and return it as soon as rows are written."""
    run = started(folder, table, "--scheduler", scheduler)
    while run.poll() is None and not list(folder.glob(f".{table}.parts/*.parquet")):
        time.sleep(0.02)
    assert run.poll() is None, run.communicate()
    return run


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
    whole = rows_of(folder / "two.parquet")
    for table, way in (
        ("kills.parquet", killed_ten_times(folder, median(seconds for seconds, _ in found["two processes"]))),
        ("worker.parquet", without_a_worker(folder)),
        ("scheduler.parquet", without_a_scheduler(folder)),
    ):
        assert rows_of(folder / table) == whole
        print(f"{way}: the same rows", flush=True)
    errors = sum(row is not None for row in pq.read_table(folder / "two.parquet")["error"].to_pylist())
    print(f"{models:,} rows, {errors} of them errors")
    print(f"medians of {rounds} rounds; the rows are the same each time; the table has {size / 1e3:,.0f} kB")


def requests(folder: Path) -> None:
    """Count the requests of a survey of 256 models whose parts and table are in an object store."""
    import s3fs
    from moto.server import ThreadedMotoServer

    from graphkit.fleet.local_pool import LocalPool
    from graphkit.fleet.survey import survey_models
    from graphkit.fleet.survey_task import models_of

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
        survey_models(models_of([str(folder / "m")], ()), "s3://bucket/t.parquet", LocalPool(2))
        print(dict(counts), f"in all {counts.total()}")
    finally:
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if sys.argv[1:] == ["requests"]:
            requests(Path(place))
        else:
            assert find_spec("distributed") is not None, "install onnx-graphkit[fleet]"
            given = [int(word) for word in sys.argv[1:]]
            compare(*(given + [1000, 3][len(given) :]), Path(place))
