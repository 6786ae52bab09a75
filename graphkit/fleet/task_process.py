"""A task in a process of its own, with limits: a model that crashes, hangs or asks for too much costs its row alone.

A process does one task after the other, because starting one takes longer than most models; the process that a model
has ended, or whose memory a model has filled, is replaced.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial

from graphkit.fleet.survey_task import Row, SurveyTask, failed_row
from graphkit.runtime.limits import Limits, allocated, limit_memory
from graphkit.runtime.worker import Message, serve
from graphkit.runtime.worker_process import DiedError, Worker

__all__ = ["TaskProcess", "main"]

PROCESS = __name__  # the module whose main does tasks
MOST_TASKS = 100  # of a process: what they leave behind is bounded
ROOM = 64 << 20  # bytes for the interpreter


class TaskProcess:
    """A process that does tasks, and is started again where one ends it.

    Args:
        limits: The time that a model may take.
        memory: The bytes that it may take.
        folder: Where the paths of tasks begin; "" for the folder of this process.
    """

    def __init__(self, limits: Limits, memory: int, folder: str = "") -> None:
        self._limits, self._memory, self._folder = limits, memory, folder
        self._worker: Worker | None = None
        self._done = 0

    def row(self, task: SurveyTask) -> Row:
        """Return the row of a task, in any case."""
        start = time.monotonic()
        worker = self._started()
        try:
            request = {"task": task.plain(), "memory": self._memory, "folder": self._folder}
            answer = worker.ask(request, self._limits.time(0))
        except DiedError as error:
            self.close()
            return failed_row(task, f"{task.name}: {error.why}", time.monotonic() - start)
        self._done += 1
        if "row" not in answer:
            self.close()
            problem = f"{task.name}: it needs more than the {self._memory:,} bytes that --memory allows"
            return failed_row(task, problem, time.monotonic() - start)
        row: Row = answer["row"]
        return row

    def _started(self) -> Worker:
        if self._worker is not None and (self._done >= MOST_TASKS or not self._worker.lives):
            self.close()
        if self._worker is None:
            self._worker, self._done = Worker(PROCESS), 0
        return self._worker

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def main(place: str, parent: str) -> None:  # noqa: ARG001 - rows need no shared memory
    """In the child process: do tasks until the parent is gone."""
    serve(int(parent), lambda: partial(_reply, allocated() + ROOM))


def _reply(floor: int, request: Message) -> Message:
    from graphkit.fleet.model_row import model_row  # which the parent need not import

    if request["folder"]:
        with contextlib.suppress(OSError):  # where it is not there, the files below it are not either
            os.chdir(request["folder"])
    task = SurveyTask.of(request["task"])
    limit_memory(floor + request["memory"])
    try:
        return {"row": dict(model_row(task))}
    except MemoryError:
        return {}
