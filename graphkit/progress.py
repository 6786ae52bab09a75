"""Long work: its current step, the share of the work that is done before that, its limit of time, signals to end it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import NamedTuple

from graphkit.errors import GraphkitError

Progress = Callable[[str], None]


class _Step(str):
    """The name of a step, which knows the share of the work that is done before it."""

    share: float


def with_share(share: float, name: str) -> str:
    """Return the name of a step, with the share of the work that is done before it, from 0 to 1."""
    step = _Step(name)
    step.share = share
    return step


def share_of(name: str) -> float | None:
    """Return the share of the work that is done before a step, None where it is not known."""
    return name.share if isinstance(name, _Step) else None


def portion_of(progress: Progress, begin: float, end: float) -> Progress:
    """Return what tells the steps of a portion of some work.

    Args:
        progress: Called with the steps of the whole work.
        begin: The share of the whole work that is done before the portion.
        end: The same after it.
    """

    def tell(name: str) -> None:
        share = share_of(name)
        progress(name if share is None else with_share(begin + (end - begin) * share, name))

    return tell


# A limit of time on work of this process, kept by the loops that may take long: rewriting, and inferring shapes.
#
#     with time_limit("folding", 5.0):
#         fold(model)
#
# Runs of a model have limits of their own, for they go on in a process that can be ended: see
# `graphkit.runtime.limits`.


class OutOfTimeError(GraphkitError):
    """Work that took longer than it may."""


class _Limit(NamedTuple):
    what: str
    seconds: float
    end: float


_CURRENT: ContextVar[_Limit | None] = ContextVar("time_limit", default=None)


@contextlib.contextmanager
def time_limit(what: str, seconds: float | None) -> Iterator[None]:
    """Let `check_time` raise an error that names the work, once so many seconds have passed; None for no limit."""
    token = _CURRENT.set(None if seconds is None else _Limit(what, seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def check_time() -> None:
    """Check that the work may go on.

    Raises:
        OutOfTimeError: Its time is over.
    """
    limit = _CURRENT.get()
    if limit is not None and time.monotonic() > limit.end:
        raise OutOfTimeError(f"{limit.what} does not finish in {limit.seconds:g} s - raise --timeout to allow more")


STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

_received: list[int] = []  # the signal that `interruptible` raised an exception for


class StoppedError(BaseException):
    """A signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


@contextlib.contextmanager
def raise_signals() -> Iterator[None]:
    """Raise the first stopping signal as an exception, so that unfinished work is cleaned up; ignore later ones."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    asked = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def stop(number: int, _: FrameType | None) -> None:
        for signal_number in asked:
            signal.signal(signal_number, signal.SIG_IGN)
        _received.append(number)
        raise StoppedError(number)

    for number in asked:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _received.clear()
        for number in asked:
            signal.signal(number, before[number])


def check_stopped() -> None:
    """Check that no signal has asked the process to end.

    The exception that `interruptible` raises is lost where it meets compiled code: a module that is being imported, or
    a call of onnxruntime, replaces it by an error of its own. Whoever catches such errors asks here what they were.

    Raises:
        StoppedError: One has.
    """
    if _received:
        raise StoppedError(_received[0])


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl+C end the block inside, which has nothing else to end it, such as a server."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Hold back signals that end the process until the block inside is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in STOPPING if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
