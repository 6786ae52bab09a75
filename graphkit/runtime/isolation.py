"""Run models in isolation: all sessions inside share one process with limits, which is started early.

    with isolation(Limits(seconds=10)):
        session = IsolatedSession(path)
        outputs = session.run(feed)

When a model ends the process, the run fails with a `RunError`, and later runs get a new process. A process that
nobody uses is kept for a while, because starting one costs as much as a small proof.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeVar, cast

from graphkit.errors import GraphkitError
from graphkit.progress import DEFAULT_LIMITS, Limits, waiting_factor
from graphkit.runtime.shared_memory import Arena
from graphkit.runtime.worker import Message, read_message, write_message

# No folder of the user's is searched for modules that this process does not search too.
START = (
    "import importlib, json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "importlib.import_module(sys.argv[2]).main(*sys.argv[3:])\n"
)
T = TypeVar("T")
SECONDS_TO_START = 120.0
SECONDS_TO_END = 2.0
TAIL = 2000  # bytes of the last messages of a process
MEANINGS = {
    "SIGFPE": "an integer division that has no result",
    "SIGSEGV": "memory that is not its own",
    "SIGKILL": "perhaps the system ran out of memory",
}
IDLE = 30.0  # seconds that an idle process is kept
SECONDS_TO_FREE = 10.0
_CURRENT: ContextVar[Process | None] = ContextVar("isolation", default=None)


@dataclass
class DiedError(Exception):
    """The process has ended instead of answering."""

    why: str  # how it ended, in a clause
    timed_out: bool = False
    signal: str = ""  # that ended it, such as SIGFPE

    def __str__(self) -> str:
        return self.why


def worker_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main` of a module of ours in a Python like this one."""
    return [sys.executable, "-I", "-c", START, json.dumps(sys.path), module, *arguments]


class _Alarms:
    """Functions that one thread calls at their time, unless they are cancelled before: a thread of each costs more.

    It starts the child processes too.
    """

    def __init__(self) -> None:
        self.clear()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.clear)

    def clear(self) -> None:
        """Begin anew, as a process must that was forked from one with such a thread."""
        self._changed = threading.Condition()
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._wakes = 0.0  # when the thread looks next

    def set(self, seconds: float, function: Callable[[], None]) -> object:
        """Let a function be called after some seconds; return what cancels that."""
        key, at = object(), time.monotonic() + min(seconds, threading.TIMEOUT_MAX)
        with self._changed:
            self._due[key] = at, function
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            elif at < self._wakes:
                self._changed.notify()
        return key

    def start_process(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        """Return a child process, which is killed when the thread that started it ends."""
        started = queue.SimpleQueue[Any]()

        def start() -> None:
            try:
                started.put(subprocess.Popen(*arguments, **options))
            except BaseException as error:  # the caller gets it
                started.put(error)

        self.set(0.0, start)
        found = started.get()
        if isinstance(found, BaseException):
            raise found
        process: subprocess.Popen[bytes] = found
        return process

    def cancel(self, key: object) -> None:
        with self._changed:
            self._due.pop(key, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                now, due = time.monotonic(), self._due.copy()  # collecting garbage may set another one here
                functions = [self._due.pop(key)[1] for key, (at, _) in due.items() if at <= now and key in self._due]
                if not functions:
                    self._wakes = min((at for at, _ in due.values()), default=now + IDLE)
                    self._changed.wait(min(self._wakes - now, threading.TIMEOUT_MAX))
            for function in functions:
                with contextlib.suppress(Exception):  # with this thread, the processes would end that it started
                    function()


_ALARMS = _Alarms()


class Worker:
    """A child process that runs models; it starts at once, and is waited for when it is first asked.

    `main` of the module answers the requests; see `graphkit.runtime.worker`.
    """

    def __init__(self, module: str = "graphkit.runtime.worker") -> None:
        self.arena = Arena()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = _ALARMS.start_process(
            worker_command(module, self.arena.place, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=self.arena.inherited_files,
        )
        self.is_ready = False
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end_process, self._process, self.arena, self._errors, self._owner)

    def ask(self, request: Message, seconds: float, **values: object) -> Message:
        """Return the answer to a request, for which values are passed through shared memory under their keys.

        The `values` of the answer have passed through it too. Raises DiedError where the process has ended, or was
        ended because its time was over, and answers no more; GraphkitError where it does not start.
        """
        with self._lock:
            answer = None
            try:
                if not self.is_ready:
                    answer, _ = self._exchange_messages(None, SECONDS_TO_START * waiting_factor())
                    if answer is None:
                        self._process.kill()
                        self._process.wait()
                        hint = "see whether `python -c 'import onnxruntime'` works"
                        problem = f"the process that runs models does not start: {self._last_words() or 'no message'}"
                        raise GraphkitError(f"{problem} - {hint}")
                    self.is_ready, answer = True, None
                end = 0
                for key, value in values.items():
                    request[key], end = self.arena.put(value, end)
                answer, timed_out = self._exchange_messages({**request, "end": end}, seconds)
                if answer is not None and "values" in answer:  # before another request writes over them
                    answer["values"] = self.arena.get(answer["values"], copy=True)
                    self.arena.trim()
            finally:  # also when interrupted: an answer that nobody waits for must not be taken for the next
                if answer is None:
                    self._process.kill()
        if answer is not None:
            return answer
        code = self._process.wait()
        if timed_out:
            raise DiedError(f"it does not finish in {seconds:g} s", timed_out=True)
        said = self._last_words()
        raise DiedError(describe_ending(code) + (f" ({said})" if said else ""), signal=_signal_name(code))

    @property
    def lives(self) -> bool:
        """Whether it can be asked, by this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._end()

    def _exchange_messages(self, request: Message | None, seconds: float) -> tuple[Message | None, bool]:
        """Send a request, if any, and return the answer, None where there is none; and whether time was over."""
        timed_out = threading.Event()

        def end_process() -> None:
            timed_out.set()
            self._process.kill()

        alarm = _ALARMS.set(seconds, end_process)
        try:
            if request is not None:
                write_message(cast(IO[bytes], self._process.stdin), request)
            answer = read_message(cast(IO[bytes], self._process.stdout))
        except (BrokenPipeError, ConnectionResetError):
            answer = None
        finally:
            _ALARMS.cancel(alarm)
        if answer is None:  # its pipes close before it has ended: how it ends is its own affair
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_END)
        return answer, timed_out.is_set()

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - TAIL, 0))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")


def _end_process(process: subprocess.Popen[bytes], arena: Arena, errors: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that it belongs to
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # messages that were not sent yet have no receiver
                pipe.close()
    process.wait()
    arena.close()
    errors.close()


def describe_ending(code: int) -> str:
    """Return a clause that says how a process ended."""
    name = _signal_name(code)
    if not name:
        return f"it ends the process with code {code}"
    return f"it ends the process with {name}" + (f", {MEANINGS[name]}" if name in MEANINGS else "")


def _signal_name(code: int) -> str:
    """Return the name of the signal that an exit code stands for, "" for none."""
    if code >= 0:
        return ""
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


class _Later(threading.Thread):
    """A function that is called once another one has ended, beside other work."""

    def __init__(self, function: Callable[[], object], before: _Later | None, *, is_optional: bool) -> None:
        super().__init__(daemon=True)
        self.function, self.before, self.is_optional = function, before, is_optional
        self._found: object = None
        self._error: BaseException | None = None

    def run(self) -> None:
        if self.before is not None:
            self.before.join()
        self.before = None
        try:
            self._found = self.function()
        except BaseException as error:  # whoever waits for it gets it
            self._error = error
        self.function = _raise_cancelled  # what it holds may be large

    def result(self) -> Any:
        self.join()
        if self._error is not None:
            raise self._error
        found, self._found = self._found, None
        return found


def _raise_cancelled() -> object:
    raise DiedError("nobody waits for it any more")


class Process:
    """A process, started again where a model ended it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.generation = 0
        self.dropped: list[int] = []
        self._worker: Worker | None = _SPARE.take()
        self._asking = threading.Lock()
        self._last: _Later | None = None
        self._is_over = False

    @property
    def worker(self) -> Worker:
        """The process as it is now."""
        self._worker = self._worker or _SPARE.take()
        return self._worker

    def begin(self, function: Callable[[], T], *, is_optional: bool = False) -> Callable[[], T]:
        """Let a function that asks this process run beside other work; return one that waits for what it gives.

        Functions run one after another, in threads: they read nothing that is worked out when it is first read.
        """
        self._last = later = _Later(function, self._last, is_optional=is_optional)
        later.start()
        return later.result

    def cancel(self) -> None:
        """Leave out what is optional of what was begun, and was not asked yet."""
        later = self._last
        while later is not None:
            later.function, later = _raise_cancelled if later.is_optional else later.function, later.before

    def ask(self, request: Message, seconds: float, **values: object) -> Message:
        """Return the answer to a request. Raises DiedError where it ended the process: the next gets a new one."""
        if self._is_over:
            _raise_cancelled()
        with self._asking:  # until it is ended, where it fails
            try:
                drop, self.dropped[:] = list(self.dropped), []
                return self.worker.ask({**request, "drop": drop}, seconds, **values)
            except BaseException:  # also when interrupted
                self.close()
                raise

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
        if self._last is not None and self._last.is_alive():  # nobody waits for it any more
            self._is_over = True
            self.close()
            self._last.join()
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
    """A place for so many processes that nobody uses."""

    def __init__(self, most: int = 1) -> None:
        self._lock = threading.RLock()  # collecting garbage may put one while another is taken
        self._most = most
        self._kept: dict[Worker, object] = {}  # with what cancels their end

    def take(self) -> Worker:
        with self._lock:
            while self._kept:
                worker, end = self._kept.popitem()
                _ALARMS.cancel(end)
                if worker.lives:
                    return worker
        return Worker()

    def put(self, worker: Worker) -> None:
        """Keep a process for a while, instead of the one that is kept longest."""
        with self._lock:
            self._kept[worker] = _ALARMS.set(IDLE, partial(self._drop, worker))
            former = next(iter(self._kept)) if len(self._kept) > self._most else None
        if former is not None:
            self._drop(former)

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            end = self._kept.pop(worker, None)
        if end is not None:
            _ALARMS.cancel(end)
            worker.close()


_SPARE = _Spare()


def start_ahead() -> None:
    """Start a process that is soon needed, unless one is there: it gets ready beside other work."""
    if current_process() is None:
        _SPARE.put(_SPARE.take())


def current_process() -> Process | None:
    """Return the process of the `isolation` around the caller."""
    return _CURRENT.get()


def current_limits() -> Limits:
    """Return the limits of the `isolation` around the caller, the default ones outside of any."""
    process = _CURRENT.get()
    return DEFAULT_LIMITS if process is None else process.limits


@contextlib.contextmanager
def shared_isolation(limits: Limits = DEFAULT_LIMITS) -> Iterator[Process]:
    """Let the isolated sessions that are made inside share a process and its limits; inside another, that one's.

    At its end, those that are closed give back their memory.
    """
    if (outer := _CURRENT.get()) is not None:
        try:
            yield outer
        finally:
            outer.forget()
        return
    process = Process(limits)
    token = _CURRENT.set(process)
    try:
        yield process
    finally:
        _CURRENT.reset(token)
        process.release()
