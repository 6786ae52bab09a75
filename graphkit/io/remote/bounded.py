"""Calls of libraries that know no limit of time: a thread makes them, which is left alone when the time is over.

Each thread that calls has one that makes its calls, since file systems may belong to the thread that has opened them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["call_within"]

T = TypeVar("T")
Calls = SimpleQueue[Callable[[], None] | None]


class _Worker:
    """A thread that makes calls, one after the other, and does not keep the process from ending."""

    def __init__(self) -> None:
        self.calls: Calls = SimpleQueue()
        threading.Thread(target=_work_on_calls, args=(self.calls,), daemon=True, name="graphkit-bounded").start()
        weakref.finalize(self, self.calls.put, None)


class _Mine(threading.local):
    worker: _Worker | None = None


_MINE = _Mine()


def call_within(call: Callable[[], T], seconds: float) -> T:
    """Return what a call returns, or raise what it raises.

    Raises:
        asyncio.TimeoutError: It takes longer.
    """
    future: Future[T] = Future()

    def made() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # it is raised where somebody waits for it
            future.set_exception(error)

    worker = _MINE.worker = _MINE.worker or _Worker()
    worker.calls.put(made)
    try:
        return future.result(max(seconds, 0))
    except FutureTimeoutError as error:
        if future.done():  # by an error of this kind
            raise
        _MINE.worker = None  # it waits for a server
        raise asyncio.TimeoutError from error
    finally:
        if future.done():
            del future  # an error has it in its traceback, and it has the error


def _work_on_calls(calls: Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # or what it holds would stay until the next one
