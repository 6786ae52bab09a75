"""The executor of many machines: tasks on the workers of a Dask cluster, many in one task of Dask.

A worker does them as this machine does, in a process that may die, and writes their rows itself; what comes back is how
many there are. Dask gives the tasks of a worker that is lost to another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from distributed import Client, Future, KilledWorker, LocalCluster, get_worker

from graphkit import __version__
from graphkit.errors import GraphkitError, UsageError
from graphkit.fleet.local_pool import LocalPool, memory_of_each
from graphkit.fleet.survey import PartWriter, RowParts
from graphkit.fleet.survey_task import SurveyTask, failed_row
from graphkit.progress import DEFAULT_LIMITS, Limits

MOST, PER_THREAD = 64, 4  # models of a batch at most, and batches for each thread at least
PACKAGE = "onnx-graphkit"  # as it is installed, of which Dask tells the versions
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_LOOK, SECONDS_WITHOUT_WORKERS = 5.0, 60.0
AGAIN = "what is done is kept: start the survey again to go on"


@dataclass(frozen=True)
class _Batch:
    tasks: Sequence[SurveyTask]
    parts: RowParts
    limits: Limits
    folder: str  # where their paths begin
    graphkit: str  # the version that wants their rows


def do_batch(batch: _Batch) -> tuple[int, int]:
    """On a worker: do a batch, and return how many models it has, and how many of them are errors."""
    worker = get_worker()
    if batch.graphkit != __version__:
        raise _other_version(worker.address, __version__, batch.graphkit)
    threads, memory = worker.state.nthreads, worker.memory_manager.memory_limit
    most = memory_of_each(threads, batch.limits)
    if batch.limits.memory is None and memory:
        most = min(most, memory // threads)
    pool = LocalPool(1, Limits(batch.limits.seconds, most), batch.folder)
    return len(batch.tasks), sum(errors for _, errors in pool.run(batch.tasks, batch.parts))


class DaskPool:
    """Workers of a Dask cluster: of a scheduler, or of this machine with so many jobs, 0 for its processors."""

    def __init__(self, scheduler: str | None, jobs: int = 0, limits: Limits = DEFAULT_LIMITS) -> None:
        self._scheduler, self._jobs, self._limits = scheduler, jobs or os.cpu_count() or 1, limits
        self._name = scheduler or "the cluster of this machine"

    def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
        """Let workers do tasks: see `Executor`."""
        if not tasks:
            return
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what is wrong is told once, as an error of ours
        try:
            with self._open_client() as client:
                yield from self._yield_counts(client, tasks, parts)
        except (OSError, CancelledError) as error:
            raise self._gone_error() from error

    @contextlib.contextmanager
    def _open_client(self) -> Iterator[Client]:
        with contextlib.ExitStack() as stack:
            try:
                place = self._scheduler or stack.enter_context(_cluster_here(self._jobs))
                client = stack.enter_context(Client(place, timeout=SECONDS_TO_CONNECT, set_as_default=False))
            except (OSError, ValueError) as error:
                hint = "check the address, and whether the scheduler runs"
                raise UsageError(f"{self._name}: no scheduler answers there - {hint}") from error
            try:
                client.wait_for_workers(1, timeout=SECONDS_WITHOUT_WORKERS)
            except TimeoutError as error:
                raise self._alone_error() from error
            for address, about in client.get_versions(packages=[PACKAGE])["workers"].items():
                if (version := about["packages"][PACKAGE]) != __version__:  # one without graphkit would end
                    raise _other_version(address, version or "missing", __version__)
            yield client

    def _yield_counts(
        self, client: Client, tasks: Sequence[SurveyTask], parts: RowParts
    ) -> Generator[tuple[int, int], None, None]:
        finished: SimpleQueue[Future] = SimpleQueue()
        running: dict[Future, Sequence[SurveyTask]] = {}
        suspects, alone = list[SurveyTask](), None  # of a worker that ended: that of another task, if several ran

        def start(batch: Sequence[SurveyTask]) -> None:
            work = _Batch(batch, parts, self._limits, str(Path.cwd()), __version__)
            running[future := client.submit(do_batch, work, pure=False)] = batch
            future.add_done_callback(finished.put)

        size = max(1, min(MOST, len(tasks) // (PER_THREAD * sum(client.nthreads().values()))))
        for at in range(0, len(tasks), size):
            start(tasks[at : at + size])
        while running:
            future = self._next_finished(finished, client)
            batch = running.pop(future)
            if future.cancelled():
                raise self._gone_error()
            error = future.exception()
            if error is None:
                yield future.result()
            elif isinstance(error, GraphkitError):
                raise error
            elif not isinstance(error, KilledWorker):
                problem = f"a worker cannot run graphkit: {type(error).__name__}: {error}"
                hint = f"install onnx-graphkit[fleet] {__version__} on all machines"
                raise UsageError(f"{self._name}: {problem} - {hint}")
            elif len(batch) > 1:  # each for itself: one of them may be why
                for task in batch:
                    start([task])
            elif batch[0] is not alone:
                suspects.extend(batch)
            else:
                problem = f"{batch[0].name}: each worker that was given it has ended - see their logs"
                with PartWriter(parts) as writer:
                    writer.add(failed_row(batch[0], problem, 0.0))
                yield 1, 1
            if suspects and not running:
                start([alone := suspects.pop()])

    def _next_finished(self, finished: SimpleQueue[Future], client: Client) -> Future:
        """Return the next batch that has an end; as long as there is none, see whether there are workers."""
        seen = time.monotonic()
        while True:
            with contextlib.suppress(Empty):
                return finished.get(timeout=SECONDS_TO_LOOK)
            seen = time.monotonic() if client.nthreads() else seen
            if time.monotonic() - seen > SECONDS_WITHOUT_WORKERS:
                raise self._alone_error()

    def _gone_error(self) -> GraphkitError:
        return GraphkitError(f"{self._name}: the scheduler is lost - {AGAIN}")

    def _alone_error(self) -> GraphkitError:
        problem = f"there has been no worker for {SECONDS_WITHOUT_WORKERS:g} s"
        hint = f"start some with `dask worker {self._scheduler or ''}`; {AGAIN}"
        return GraphkitError(f"{self._name}: {problem} - {hint}")


def _cluster_here(workers: int) -> LocalCluster:
    return LocalCluster(workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL)


def _other_version(worker: str, version: str, required: str) -> UsageError:
    problem = f"graphkit is {version} on this worker, and {required} where the survey runs"
    return UsageError(f"{worker}: {problem} - install one version on all machines, with the extra onnx-graphkit[fleet]")
