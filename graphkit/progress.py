"""Long work: its current step, the share of the work that is done before that, its limits, signals to end it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from msgspec import Struct

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
    """Return what tells the steps of a portion of some work, from one share of the whole work to another one."""

    def tell(name: str) -> None:
        share = share_of(name)
        progress(name if share is None else with_share(begin + (end - begin) * share, name))

    return tell


# A limit of time on work of this process, kept by the loops that may take long: rewriting, and inferring shapes.
#
#     with time_limit("folding", 5.0):
#         fold(model)
#
# Runs of a model have `Limits` of their own, for they go on in a process that can be ended.


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
    """Check that the work may go on. Raises OutOfTimeError where its time is over."""
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
    a call of onnxruntime, replaces it by an error of its own. Whoever catches such errors asks here what they were: a
    StoppedError says that one has.
    """
    if _received:
        raise StoppedError(_received[0])


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


# Limits of time and memory for a model that runs in a separate process.

HAS_MEMORY_LIMIT = sys.platform == "linux"  # elsewhere no limit counts the memory that a process allocates
SECONDS = 60.0
SECONDS_PER_GIGABYTE = 30.0  # of weights: to read them, and to multiply with them
SHARE = 4  # a model may take one part in so many of the machine's memory
LEAST_MEMORY = 1 << 30
COPIES = 3  # of its weights: as parsed, as onnxruntime keeps them, as its kernels like them
HELD_RUNS = 16  # whose outputs are held at once, to be compared
FEW_RUNS = 4  # the same where only the last ones are: a cache that a step gives and the next one takes, copied each
LEAST_OUTPUTS = 256 << 20
MOST_INPUTS = 1 << 30
INPUTS_PER_SECOND = 32 << 20  # bytes of random numbers that a slow processor makes
SEARCH = 4


class Limits(Struct, frozen=True):
    """Limits of time and memory while a model is loaded or run.

    Attributes:
        seconds: Time of one load or one run; a proof looks for sizes for so many times as long (`SEARCH`). Default: a
            minute, plus half a minute for each GB of weights, and as long as it takes to look for sizes; more where
            others keep the processors busy.
        memory: Bytes, not counting the weights. Default: a quarter of the machine's memory. Has no effect if
            `HAS_MEMORY_LIMIT` is false.
    """

    seconds: float | None = None
    memory: int | None = None

    def time(self, weights: int) -> float:
        """Return the seconds that one load or one run may take, for a model with so many bytes of weights."""
        if self.seconds is not None:
            return self.seconds
        return (SECONDS + SECONDS_PER_GIGABYTE * weights / 1e9) * waiting_factor()

    def bytes(self) -> int:
        """Return the bytes that a model may take beyond its weights."""
        return max(machine_memory() // SHARE, LEAST_MEMORY) if self.memory is None else self.memory

    def outputs(self, held_runs: int = HELD_RUNS) -> int:
        """Return the bytes that the outputs of one run may take, where those of so many are held at once."""
        return max(self.bytes() // held_runs, LEAST_OUTPUTS)

    def inputs(self) -> int:
        """Return the bytes that the inputs of one run may take, so that making them is no longer than a run may be."""
        return MOST_INPUTS if self.seconds is None else int(min(MOST_INPUTS, self.seconds * INPUTS_PER_SECOND))

    def search(self) -> float:
        """Return the seconds after which a search for sizes at which a model runs starts no further run."""
        return math.inf if self.seconds is None else SEARCH * self.seconds


DEFAULT_LIMITS = Limits()


def waiting_factor() -> float:
    """Return how many times as long work takes because other processes wait for the processors too, at least 1."""
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, waiting / (os.cpu_count() or 1))


@cache
def machine_memory() -> int:
    """Return the bytes of memory that this machine, or the container around this process, has."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(allowed)) if allowed.isdigit() else physical


def allocated_bytes() -> int:
    """Return the bytes of this process that count against its limit of memory; 0 where there is none."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if HAS_MEMORY_LIMIT and status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


def limit_memory(most: int) -> None:
    """Limit the memory this process allocates, where `HAS_MEMORY_LIMIT`; files that it maps to read do not count."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = min(most, sys.maxsize if hard == resource.RLIM_INFINITY else hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
