"""A task in a process of its own, with limits: a model that crashes, hangs or asks for too much costs its row alone.

A process does one task after the other, because starting one takes longer than a hundred small models. It is replaced
where a model has ended it or filled its memory, and where what models leave behind in it has grown.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue

import msgspec
from google.protobuf.message import EncodeError

from graphkit.fleet.survey import PartWriter, RowParts
from graphkit.fleet.survey_task import Row, SurveyTask, failed_row
from graphkit.progress import DEFAULT_LIMITS, Limits, allocated_bytes, limit_memory, machine_memory
from graphkit.runtime.isolation import DiedError, Worker
from graphkit.runtime.worker import Message, serve_requests

PROCESS = __name__  # the module whose main does tasks
MOST_TASKS = 1000  # of a process
MOST_LEFT = 256 << 20  # bytes that tasks may leave behind in a process
ROOM = 32 << 20  # bytes for what is imported as it is needed
AHEAD = 2  # tasks for each process that wait or run: no list of all tasks is kept


class TaskProcess:
    """A process that does tasks, and is started again where one ends it; their paths begin in `folder`."""

    def __init__(self, limits: Limits, memory: int, folder: str = "") -> None:
        self._limits, self._memory, self._folder = limits, memory, folder
        self._worker: Worker | None = None
        self._done = 0

    def row(self, task: SurveyTask) -> Row:
        """Return the row of a task, in any case."""
        start, worker = time.monotonic(), self._worker
        if worker is not None and (self._done >= MOST_TASKS or not worker.lives):
            self.close()
        if self._worker is None:
            self._worker, self._done = Worker(PROCESS), 0
        worker = self._worker
        try:
            request = {"task": msgspec.to_builtins(task), "memory": self._memory, "folder": self._folder}
            answer = worker.ask(request, self._limits.time(0))
        except DiedError as error:
            self.close()
            return failed_row(task, f"{task.name}: {error.why}", time.monotonic() - start)
        self._done += 1
        if "row" not in answer:
            self.close()
            problem = f"{task.name}: it needs more than the {self._memory:,} bytes that --memory allows"
            return failed_row(task, problem, time.monotonic() - start)
        if answer.get("left", 0) > MOST_LEFT:
            self.close()
        row: Row = answer["row"]
        return row

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def main(place: str, parent: str) -> None:  # noqa: ARG001 - rows need no shared memory
    """In the child process: do tasks until the parent is gone."""
    serve_requests(int(parent), _start_tasks)


def _start_tasks() -> Callable[[Message], Message]:
    from graphkit.fleet.model_row import model_row  # which the parent need not import

    return partial(_reply_to_task, model_row, allocated_bytes())


def _reply_to_task(row_of: Callable[[SurveyTask], Row], floor: int, request: Message) -> Message:
    """Return the row of a task, and how many bytes all tasks so far have left behind; nothing where memory ran out."""
    if request["folder"]:
        with contextlib.suppress(OSError):  # where it is not there, the files below it are not either
            os.chdir(request["folder"])
    task = msgspec.convert(request["task"], SurveyTask)
    limit_memory(allocated_bytes() + ROOM + request["memory"])  # what others left behind is not this model's
    try:
        row = dict(row_of(task))
    except (MemoryError, EncodeError):  # the second is how protobuf says that memory ran out where it writes
        return {}
    return {"row": row, "left": allocated_bytes() - floor}


def memory_of_each(jobs: int, limits: Limits) -> int:
    """Return the bytes that a model may take: as limits say, else so many that all jobs fit into the machine."""
    return limits.bytes() if limits.memory is not None else min(limits.bytes(), machine_memory() // (jobs + 1))


class LocalPool:
    """So many processes on this machine, 0 for its processors; paths of tasks begin in `folder`."""

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
