"""A compiler of the user's own as a judge: a command that is run on each lowered model, and its answers."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, cast

from graphkit.errors import UsageError
from graphkit.options import JUDGE_SECONDS
from graphkit.render.document_blocks import Block, Column, Prose, Table
from graphkit.render.result import Result
from graphkit.runtime.isolation import describe_ending

__all__ = ["Judgement", "Judgements", "judge_models", "judge_words"]

MODEL = "{model}"
KEPT = 16384  # bytes of what a judge said last
LINES = 20  # of these, in a text


@dataclass(frozen=True)
class Judgement:
    """The answer of one judge about one model.

    Attributes:
        model: The file.
        command: As it was given, with `{model}` in it.
        status: The exit status; negative for a signal, None where its time was over.
        why: Why it does not pass, "" where it passes.
        output: The last lines that it printed.
    """

    model: str
    command: str
    status: int | None
    why: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Judgements(Result):
    """The answers of the judges about all models."""

    title: ClassVar[str] = "Judges"
    judgements: tuple[Judgement, ...]

    def findings(self) -> tuple[str, ...]:
        return tuple(f"{answer.model}: `{answer.command}`: {answer.why}" for answer in self.judgements if answer.why)

    def blocks(self) -> Iterator[Block]:
        yield Table(
            (Column("Model", "code"), Column("Judge", "code"), Column("Status", "number"), Column("Result")),
            [(answer.model, answer.command, answer.status, answer.why or "passes") for answer in self.judgements],
        )
        for answer in self.judgements:
            if answer.output:
                yield Prose(f"`{answer.command}` said of {answer.model}, last:")
                yield Table((Column("Output", "code"),), [(line,) for line in answer.output[-LINES:]])


def judge_words(command: str) -> tuple[str, ...]:
    """Return the words of a command; no shell sees them.

    Raises:
        UsageError: It is no command, no word of it has `{model}`, or there is no such program.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--judge '{command}': {error} - close the quotes") from None
    if not any(MODEL in word for word in words):
        raise UsageError(f"--judge '{command}': does not name the model - write {MODEL} where its path belongs")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--judge '{command}': there is no program '{words[0]}' - give its path, or install it")
    return words


def judge_models(command: str, models: Sequence[Path], seconds: float = JUDGE_SECONDS) -> Iterator[Judgement]:
    """Yield the answer of a judge about each model; exit status 0 passes.

    Args:
        command: A program and its arguments, with `{model}` for the path of the model.
        models: The files.
        seconds: How long it may take for each; it is ended then, with what it has started.

    Raises:
        UsageError: As in `judge_words`, or the program does not start.
    """
    words = judge_words(command)
    for model in models:
        status, said = _run_command([word.replace(MODEL, str(model.absolute())) for word in words], command, seconds)
        why = _status_text(status, seconds)
        lines = tuple(line for line in said.decode("utf-8", "replace").splitlines() if line.strip())
        yield Judgement(model.name, command, status, why, lines)


def _status_text(status: int | None, seconds: float) -> str:
    if status is None:
        return f"it does not end in {seconds:g} s"
    if status < 0:
        return describe_ending(status)
    return f"exit status {status}" if status else ""


def _run_command(words: Sequence[str], command: str, seconds: float) -> tuple[int | None, bytes]:
    """Return the exit status, None where time was over, and the end of the output."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts can be ended with it
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"--judge '{command}': does not start: {error} - see whether it runs by itself") from None
    is_over = threading.Event()

    def stop() -> None:
        is_over.set()
        _end_process(process)

    alarm = threading.Timer(seconds, stop)
    alarm.start()
    try:
        said = _read_tail(cast(IO[bytes], process.stdout))
        status = process.wait()
    finally:
        alarm.cancel()
        _end_process(process)
    return (None if is_over.is_set() else status), said


def _read_tail(stream: IO[bytes]) -> bytes:
    tail = b""
    with stream:
        while chunk := os.read(stream.fileno(), KEPT):
            tail = (tail + chunk)[-KEPT:]
    return tail


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
