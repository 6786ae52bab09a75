"""Run models in isolation: all sessions inside share one process with limits, which is started early.

    with isolation(Limits(seconds=10)):
        session = IsolatedSession(path)
        outputs = session.run(feed)

When a model ends the process, the run fails with a `RunError`, and later runs get a new process. A process that
nobody uses is kept for a while, because starting one costs as much as a small proof.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.runtime.worker import Message
from graphkit.runtime.worker_process import DiedError, Worker

__all__ = ["Process", "current_limits", "current_process", "shared_isolation"]

IDLE = 30.0  # seconds that an idle process is kept
SECONDS_TO_FREE = 10.0


class Process:
    """A process, started again where a model ended it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.generation = 0
        self.dropped: list[int] = []
        self._worker: Worker | None = _SPARE.take()

    @property
    def worker(self) -> Worker:
        """The process as it is now."""
        if self._worker is None:
            self._worker = _SPARE.take()
        return self._worker

    def ask(self, request: Message, seconds: float, **values: object) -> Message:
        """Return the answer to a request.

        Raises:
            DiedError: It ended the process; the next request gets a new one, without sessions.
        """
        finished = False
        try:
            drop, self.dropped[:] = list(self.dropped), []
            answer = self.worker.ask({**request, "drop": drop}, seconds, **values)
            finished = True
        finally:
            if not finished:
                self.close()
        return answer

    def forget(self) -> None:
        """Free the memory of the sessions that are closed."""
        if self.dropped and self._worker is not None:
            with contextlib.suppress(DiedError):
                self.ask({"do": "free"}, SECONDS_TO_FREE)

    def close(self) -> None:
        """End the process."""
        self.generation += 1
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def release(self) -> None:
        """Free the memory of the models, and leave the process to whoever needs one next."""
        worker, self._worker = self._worker, None
        self.generation += 1
        if worker is None:
            return
        try:
            if worker.is_ready:
                worker.ask({"do": "free"}, SECONDS_TO_FREE)
        except DiedError:
            worker.close()
        else:
            _SPARE.put(worker)


class _Spare:
    """A place for one process that nobody uses."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # collecting garbage may put one while another is taken
        self._worker: Worker | None = None
        self._end = threading.Timer(0, lambda: None)

    def take(self) -> Worker:
        """Return a process."""
        with self._lock:
            self._end.cancel()
            worker, self._worker = self._worker, None
        return worker if worker is not None and worker.lives else Worker()

    def put(self, worker: Worker) -> None:
        """Keep a process for a while, instead of the one that is kept already."""
        with self._lock:
            self._end.cancel()
            former, self._worker = self._worker, worker
            self._end = threading.Timer(IDLE, self._drop, [worker])
            self._end.daemon = True
            self._end.start()
        if former is not None:
            former.close()

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            if self._worker is not worker:
                return
            self._worker = None
        worker.close()


_SPARE = _Spare()
_CURRENT: ContextVar[Process | None] = ContextVar("isolation", default=None)


def current_process() -> Process | None:
    """Return the process of the `isolation` around the caller."""
    return _CURRENT.get()


def current_limits() -> Limits:
    """Return the limits of the `isolation` around the caller, the default ones outside of any."""
    process = _CURRENT.get()
    return DEFAULT_LIMITS if process is None else process.limits


@contextlib.contextmanager
def shared_isolation(limits: Limits = DEFAULT_LIMITS) -> Iterator[None]:
    """Let the isolated sessions that are made inside share a process and its limits; inside another, that one's.

    At its end, those that are closed give back their memory.
    """
    if (outer := _CURRENT.get()) is not None:
        try:
            yield
        finally:
            outer.forget()
        return
    process = Process(limits)
    token = _CURRENT.set(process)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        process.release()
