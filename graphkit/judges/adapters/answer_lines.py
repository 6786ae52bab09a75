"""How a script answers: a line for each model that it is asked about, and nothing else on its output."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Any

Ask = Callable[[str, Callable[[], str]], dict[str, Any]]

__all__ = ["answer_lines"]


def answer_lines(start: Callable[[], Ask]) -> None:
    """Answer each line of the input, a JSON object with the `number` and the `path` of a model, in that order.

    What a compiler prints goes into a log, which is empty for each model.

    Args:
        start: Starts the compiler, and returns what asks it: that gets a path, and a function that reads the log.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    ask = start()
    with tempfile.TemporaryFile() as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        for line in sys.stdin:
            _flush()
            log.seek(0)
            log.truncate()
            question = json.loads(line)
            answer = ask(question["path"], lambda: _read_log(log))
            out.write(f"{json.dumps(answer | {'number': question['number']})}\n")
            out.flush()
    os._exit(0)  # some compilers crash where they are unloaded


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with contextlib.suppress(OSError, TypeError):
        ctypes.CDLL(None).fflush(None)  # what libraries keep


def _read_log(log: IO[bytes]) -> str:
    _flush()
    log.seek(0)
    return log.read().decode("utf-8", "replace")
