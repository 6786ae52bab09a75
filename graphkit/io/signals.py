"""The signals that ask a process to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["STOPPING", "StoppedError", "check_stopped", "ended_by_interrupt", "hold_signals", "raise_signals"]

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
