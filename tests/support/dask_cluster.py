"""A Dask scheduler and its workers, each a process of this machine that a test may kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Cluster", "cluster"]


class Cluster:
    """A scheduler, and workers that know nothing of the folder of the test.

    Attributes:
        address: Of the scheduler.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        environment = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
        self.scheduler = self._start("scheduler", "--port", "0", "--host", "127.0.0.1", **environment)
        while not self._file.exists() or not self._file.read_text():
            assert self.scheduler.poll() is None
            time.sleep(0.05)
        self.address: str = json.loads(self._file.read_text())["address"]

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker of one thread, which does one batch after the other."""
        return self._start("worker", "--nthreads", "1", "--local-directory", str(self._folder), *options)

    def _start(self, kind: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self._file)]
        with (self._folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [*words, "--no-dashboard", *options],
                cwd=self._folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all that is left."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Give a scheduler without workers."""
    folder.mkdir()
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()
