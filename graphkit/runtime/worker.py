"""The child process that runs models: it may crash, and must not outlive its parent.

Requests and replies pass through pipes, as JSON after its length; arrays pass through shared memory. Each request gets
one reply: its result, or an `error`. The process imports little, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from graphkit.progress import allocated_bytes, limit_memory
from graphkit.runtime.onnxruntime_loader import open_model, run_in_place, run_model, runtime_version
from graphkit.runtime.providers import parse_provider
from graphkit.runtime.shared_memory import Arena

LENGTH = struct.Struct("<Q")
DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
STACKS = 16 << 20  # bytes for the stack and the heap of a thread
ROOM = 64 << 20  # for the interpreter
FAILS_TO_ALLOCATE = ("bad_alloc", "bad allocation", "failed to allocate memory", "cannot allocate memory")
Message = dict[str, Any]


def write_message(pipe: IO[bytes], message: Message) -> None:
    """Write a message to a pipe."""
    content = json.dumps(message).encode()
    pipe.write(LENGTH.pack(len(content)) + content)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> Message | None:
    """Return the next message from a pipe, None where it has ended."""
    header = pipe.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    content = pipe.read(length)
    message: Message | None = json.loads(content) if len(content) == length else None
    return message


def main(place: str, parent: str) -> None:
    """Serve requests until the parent process, of this id, is gone; `place` is that of the shared memory."""
    serve_requests(int(parent), lambda: partial(_Server().reply, arena=Arena(place)))


def serve_requests(parent: int, start: Callable[[], Callable[[Message], Message]]) -> None:
    """Answer requests until the parent is gone, by the function that `start` makes once output is out of its way."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGKILL)
    if os.name == "posix":
        if os.getppid() != parent:  # it died before
            os._exit(1)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    # pipes of our own; output that a library prints goes to stderr
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    reply = start()
    write_message(replies, {"ready": True})
    for request in _receive_requests(requests):
        write_message(replies, reply(request))


def _receive_requests(requests: IO[bytes]) -> Iterator[Message]:
    if sys.platform == "linux":  # which ends this process with its parent, even while a model runs
        yield from iter(lambda: read_message(requests) or {}, {})
        return
    received: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def receive() -> None:
        while (request := read_message(requests)) is not None:
            received.put(request)
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        yield received.get()


class _Server:
    def __init__(self) -> None:
        runtime_version()  # imports onnxruntime, so that the first model need not wait for it
        self.sessions: dict[int, Any] = {}
        self.allowed: dict[int, int] = {}
        self.floor = allocated_bytes() + ROOM + STACKS * (os.cpu_count() or 1)

    def reply(self, request: Message, arena: Arena) -> Message:
        try:
            for number in request.get("drop", list(self.sessions)):
                self.sessions.pop(number, None)
                self.allowed.pop(number, None)
            arena.keep_blocks(request.get("blocks", ()))
            if request["do"] == "free":
                return {}
            if request["do"] == "small models":
                self._limit_memory(request["memory"])
                parts: Any = arena.get(request["parts"], copy=True)
                found = [_run_small_model(content.tobytes(), feeds) for content, feeds in parts]
                return _hold_values(found, request, arena)
            if request["do"] == "place":
                self._limit_memory(request["memory"])
                content: Any = arena.get(request["content"], copy=False)
                provider = parse_provider(request["provider"])
                from graphkit.runtime.placement import place_nodes

                return place_nodes(content.tobytes(), provider, folder=request["folder"], dims=request["dims"])
            return self._load(request, arena) if request["do"] == "load" else self._run(request, arena)
        except MemoryError:
            return {"error": "memory ran out", "memory": True}
        except Exception as error:  # onnxruntime's errors have no common base
            text = str(error) or type(error).__name__
            return {"error": text, "memory": any(words in text.lower() for words in FAILS_TO_ALLOCATE)}

    def _load(self, request: Message, arena: Arena) -> Message:
        number = request["id"]
        self.allowed[number] = request["allowed"]
        self._limit_memory(request["memory"])
        path_or_bytes = request["path"]
        if path_or_bytes is None:
            content: Any = arena.get(request["content"], copy=False)
            path_or_bytes = content.tobytes()
        provider = parse_provider(request["provider"])
        open_it = partial(open_model, path_or_bytes, provider=provider, **request["options"])
        placed: dict[str, int] = {}
        if provider.is_cpu:
            session = open_it(entries={})
        else:
            from graphkit.runtime.placement import RECORD, count_nodes

            session = open_it(entries=RECORD)
            placed = count_nodes(session)
        self.sessions[number] = session
        return {
            "placed": placed,
            "inputs": [port.name for port in session.get_inputs()],
            "outputs": [port.name for port in session.get_outputs()],
        }

    def _run(self, request: Message, arena: Arena) -> Message:
        self._limit_memory(request["memory"])
        session = self.sessions[request["id"]]
        feed: Any = arena.get(request["feed"], copy=False)
        outputs: Any = arena.get(request["outputs"], copy=False) if "outputs" in request else None
        began = time.perf_counter()
        values = run_model(session, feed) if outputs is None else [run_in_place(session, feed, outputs)]
        return {**_hold_values(values, request, arena), "seconds": time.perf_counter() - began}

    def _limit_memory(self, memory: int) -> None:
        limit_memory(self.floor + sum(self.allowed.values()) + memory)


def _hold_values(values: list[Any], request: Message, arena: Arena) -> Message:
    """Return an answer with values, unless these are too large."""
    size = sum(_value_bytes(value) for value in values)
    if size > request["most"]:
        text = f"its outputs have {size:,} bytes, more than the {request['most']:,} that are held"
        return {"error": text, "memory": True}
    encoded, _ = arena.put(values, request["end"])
    return {"values": encoded}


def _run_small_model(content: bytes, feeds: list[dict[str, Any] | None]) -> list[Any] | str:
    """Return the outputs of a model for each feed, or why it does not run; why it does not load."""
    try:
        session = open_model(content, folder=None, optimize=False, threads=1, prepack=False)
    except Exception as error:  # onnxruntime's errors have no common base
        return str(error) or type(error).__name__
    import numpy as np

    found: list[Any] = []
    for feed in feeds:
        if feed is None:
            shapes = [port.shape for port in session.get_outputs()]
            found.append([np.array([dim if isinstance(dim, int) else -1 for dim in dims], np.int64) for dims in shapes])
            continue
        try:
            arrays = {name: np.zeros(*each[::-1]) if isinstance(each, list) else each for name, each in feed.items()}
            found.append(session.run(None, arrays))
        except Exception as error:  # as above
            found.append(str(error) or type(error).__name__)
    return found


def _value_bytes(value: object) -> int:
    if isinstance(value, dict):
        return sum(_value_bytes(key) + _value_bytes(member) for key, member in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_value_bytes, value))
    if getattr(getattr(value, "dtype", None), "kind", "") == "O":
        return _value_bytes(value.tolist())  # type: ignore[attr-defined]
    return getattr(value, "nbytes", None) or sys.getsizeof(value)
