"""A process of tasks that some models crash, hang, or fill the memory of, by their names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec

from graphkit.fleet.survey_task import SurveyTask, failed_row
from graphkit.runtime.worker import Message, serve_requests


def main(_: str, parent: str) -> None:
    serve_requests(int(parent), lambda: reply)


def reply(request: Message) -> Message:
    path = request["task"]["path"]
    if path.startswith("crash"):
        _, _, tries = path.partition(" ")
        if tries:
            with Path(tries).open("a") as file:
                file.write("1")
        os.kill(os.getpid(), signal.SIGSEGV)
    if path.startswith("exit"):
        raise RecursionError("too deep")
    if path.startswith("hang"):
        time.sleep(600)
    if path.startswith("large"):
        return {}
    left = int(path.removeprefix("leaves")) if path.startswith("leaves") else 0
    return {
        "row": dict(failed_row(msgspec.convert(request["task"], SurveyTask), f"pid {os.getpid()}", 0.0)),
        "left": left,
    }
