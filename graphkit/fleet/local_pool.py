"""The executor of one machine: a few processes, each of which does one task after the other."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from graphkit.fleet.row_parts import PartWriter, RowParts
from graphkit.fleet.survey_task import Row, SurveyTask
from graphkit.fleet.task_process import TaskProcess
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits, machine_memory

__all__ = ["LocalPool", "memory_of_each"]

AHEAD = 2  # tasks for each process that wait or run: no list of all tasks is kept


def memory_of_each(jobs: int, limits: Limits) -> int:
    """Return the bytes that a model may take: as limits say, else so many that all jobs fit into the machine."""
    return limits.bytes() if limits.memory is not None else min(limits.bytes(), machine_memory() // (jobs + 1))


class LocalPool:
    """Processes on this machine.

    Args:
        jobs: How many; 0 for one for each processor.
        limits: Time and memory that a model may take.
        folder: Where the paths of tasks begin; "" for the folder of this process.
    """

    def __init__(self, jobs: int = 0, limits: Limits = DEFAULT_LIMITS, folder: str = "") -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self._limits, self._memory, self._folder = limits, memory_of_each(self.jobs, limits), folder

    def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
        """Do tasks, and put their rows into parts: see `Executor`."""
        with PartWriter(parts) as writer, contextlib.closing(self.rows(tasks)) as rows:
            for row in rows:
                writer.add(row)
                yield 1, int(row.get("error") is not None)

    def rows(self, tasks: Iterable[SurveyTask]) -> Generator[Row, None, None]:
        """Yield the row of each task as it is done; the processes end with the iterator."""
        processes = [TaskProcess(self._limits, self._memory, self._folder) for _ in range(self.jobs)]
        idle: SimpleQueue[TaskProcess] = SimpleQueue()
        for process in processes:
            idle.put(process)

        def row_of(task: SurveyTask) -> Row:
            process = idle.get()
            try:
                return process.row(task)
            finally:
                idle.put(process)

        waiting = iter(tasks)
        pool = ThreadPoolExecutor(self.jobs)
        try:
            running = {pool.submit(row_of, task) for task in itertools.islice(waiting, AHEAD * self.jobs)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(row_of, task) for task in itertools.islice(waiting, len(done))}
                yield from map(Future.result, done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for wait_for_threads in (False, True):  # a thread may start a process while the others are ended
                pool.shutdown(wait=wait_for_threads)
                for process in processes:
                    process.close()
