"""Surveys on Dask workers of this machine: the rows of one process, whoever is killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from catalogue import catalogue
from dask_cluster import Cluster, cluster
from test_survey_kills import SURVEY, rows_of, surveyed

from graphkit.errors import GraphkitError
from graphkit.fleet import local_pool
from graphkit.fleet.survey import survey_models
from graphkit.progress import Limits

pytestmark = [
    pytest.mark.slow,  # none of them imports Dask before it runs, which takes a second
    pytest.mark.skipif(find_spec("distributed") is None, reason="the extra onnx-graphkit[fleet] is not installed"),
]
OTHER_VERSION = (
    r"Error: tcp://\S+: graphkit is {} on this worker, and \S+ where the survey runs - install one version on all "
    r"machines, with the extra onnx-graphkit\[fleet\]\n"
)
LIMITS = Limits(seconds=5.0, memory=1 << 30)


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "dask") as made:
        yield made


def started(folder: Path, dask: Cluster) -> subprocess.Popen[str]:
    """Start a survey, and return it as soon as rows are written."""
    words = [*SURVEY, "m", "-o", "t.parquet", "--scheduler", dask.address]
    run = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not list(folder.glob(".t.parquet.parts/*.parquet")):
        time.sleep(0.02)
    assert run.poll() is None, run.communicate()
    return run


def content(table: Path) -> str:
    """Return all of a table but the seconds, in bytes that do not depend on how it was written."""
    return json.dumps(pq.read_table(table).drop_columns(["seconds"]).to_pylist())


def test_two_workers_give_the_rows_of_one_process(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 12, 5, real=1)
    dask.worker()
    dask.worker()
    assert surveyed(tmp_path, "one.parquet", "--jobs", "1").returncode == 0
    assert surveyed(tmp_path, "dask.parquet", "--scheduler", dask.address).returncode == 0
    made = surveyed(tmp_path, "here.parquet", "--dask", "--jobs", "2")
    assert (made.returncode, made.stderr) == (0, "")
    whole = content(tmp_path / "one.parquet")
    assert json.loads(whole)[0]["nodes"] > 0
    for name in ("dask", "here"):
        assert content(tmp_path / f"{name}.parquet") == whole


def test_a_worker_that_is_killed_loses_and_doubles_no_row(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 60, 10, real=1)
    workers = [dask.worker("--no-nanny"), dask.worker("--no-nanny")]
    run = started(tmp_path, dask)
    workers[0].kill()
    out, err = run.communicate(timeout=300)
    assert (run.returncode, err) == (0, "")
    assert out.startswith("60 models in t.parquet, 10 errors, ")
    paths = [str(row["path"]) for row in rows_of(tmp_path / "t.parquet")]
    assert paths == sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "m").rglob("*.onnx"))
    assert surveyed(tmp_path, "one.parquet", "--jobs", "2").returncode == 0
    assert content(tmp_path / "t.parquet") == content(tmp_path / "one.parquet")


def test_a_scheduler_that_goes_away_is_one_error_and_what_is_done_is_kept(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 60, 10, real=1)
    workers = [dask.worker("--no-nanny"), dask.worker("--no-nanny")]
    run = started(tmp_path, dask)
    dask.scheduler.send_signal(signal.SIGKILL)
    out, err = run.communicate(timeout=300)
    assert (run.returncode, out) == (2, ""), err
    lost = f"Error: {dask.address}: the scheduler is lost - what is done is kept: start the survey again to go on\n"
    assert err == lost
    assert not (tmp_path / "t.parquet").exists()
    for worker in workers:
        worker.kill()
    with cluster(tmp_path / "another") as another:
        another.worker()
        made = surveyed(tmp_path, "t.parquet", "--scheduler", another.address)
    assert made.returncode == 0, made.stderr
    kept = int(made.stdout.split(", ")[1].split()[0])
    assert 0 < kept < 60
    assert surveyed(tmp_path, "one.parquet", "--jobs", "2").returncode == 0
    assert content(tmp_path / "t.parquet") == content(tmp_path / "one.parquet")


def test_a_model_that_ends_its_workers_costs_its_own_row(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 12, 0, real=0)
    (tmp_path / "m" / "evil.onnx").write_bytes(b"")
    (tmp_path / "evil.py").write_text(
        "import os\nfrom graphkit.fleet.local_pool import LocalPool\nrun = LocalPool.run\n"
        "def evil(self, tasks, parts):\n"
        "    os._exit(1) if any('evil' in task.path for task in tasks) else None\n"
        "    yield from run(self, tasks, parts)\n"
        "def dask_setup(worker):\n    LocalPool.run = evil\n"
    )
    for _ in range(3):
        dask.worker("--no-nanny", "--preload", str(tmp_path / "evil.py"))
    made = surveyed(tmp_path, "t.parquet", "--scheduler", dask.address)
    assert made.returncode == 0, made.stderr
    rows = rows_of(tmp_path / "t.parquet")
    broken = [(row["path"], row["error"]) for row in rows if row["error"]]
    assert len(rows) == 13
    assert broken == [("m/evil.onnx", "m/evil.onnx: each worker that was given it has ended - see their logs")]


def test_workers_of_another_version_are_one_error(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 12, 0, real=0)
    (tmp_path / "old.py").write_text("from graphkit.fleet import dask_pool\ndask_pool.__version__ = '0.0.9'\n")
    dask.worker("--preload", str(tmp_path / "old.py"))
    made = surveyed(tmp_path, "t.parquet", "--scheduler", dask.address)
    assert (made.returncode, made.stdout, made.stderr.count("\n")) == (2, "", 1)
    assert re.fullmatch(OTHER_VERSION.format("0\\.0\\.9"), made.stderr), made.stderr


def test_workers_without_graphkit_are_one_error(tmp_path: Path, dask: Cluster) -> None:
    catalogue(tmp_path / "m", 12, 0, real=0)
    (tmp_path / "none.py").write_text(
        "import sys\nimport distributed.versions\nsys.modules['graphkit'] = None\n"
        "distributed.versions._version_cached = {}.get\n"
    )
    dask.worker("--preload", str(tmp_path / "none.py"))
    made = surveyed(tmp_path, "t.parquet", "--scheduler", dask.address)
    assert (made.returncode, made.stdout, made.stderr.count("\n")) == (2, "", 1)
    assert re.fullmatch(OTHER_VERSION.format("missing"), made.stderr), made.stderr


def test_no_scheduler(tmp_path: Path) -> None:
    catalogue(tmp_path / "m", 1, 0, real=0)
    made = surveyed(tmp_path, "t.parquet", "--scheduler", "tcp://127.0.0.1:1")
    assert (made.returncode, made.stdout) == (2, "")
    assert made.stderr == (
        "Error: tcp://127.0.0.1:1: no scheduler answers there - check the address, and whether the scheduler runs\n"
    )


def test_a_poisoned_model_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    from graphkit.fleet.dask_pool import DaskPool

    monkeypatch.setattr(local_pool, "PROCESS", "poisoned_worker")
    models = ["a", f"crash {tmp_path}/tries", "b", "hang", "c", "large", "d"]
    with LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as made:
        pool = DaskPool(made.scheduler_address, limits=LIMITS)
        done = survey_models(dict.fromkeys(models, "1"), str(tmp_path / "t.parquet"), pool)
    rows = rows_of(tmp_path / "t.parquet")
    assert (done.models, [row["path"] for row in rows]) == (7, sorted(models))
    errors = {str(row["path"]).split()[0]: str(row["error"]) for row in rows}
    assert "ends the process with SIGSEGV" in errors["crash"]
    assert errors["hang"] == "hang: it does not finish in 5 s"
    assert all(errors[name].startswith("pid ") for name in "abcd")
    assert (tmp_path / "tries").read_text() == "1"


def test_a_cluster_whose_workers_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    from graphkit.fleet import dask_pool

    monkeypatch.setattr(dask_pool, "SECONDS_WITHOUT_WORKERS", 0.5)
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as made:
        pool = dask_pool.DaskPool(made.scheduler_address)
        with pytest.raises(GraphkitError, match=r"there has been no worker for 0\.5 s - start some with `dask worker "):
            survey_models({"a.onnx": "1"}, str(tmp_path / "t.parquet"), pool)
