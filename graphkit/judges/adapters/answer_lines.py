"""How a script answers: a line for each model that it is asked about, and nothing else on its output."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Ask = Callable[[str, Callable[[], str], Mapping[str, str]], dict[str, Any]]

Run = Callable[[Mapping[str, Any]], Sequence[Any]]
RUNS = 4  # of random numbers
LONGEST = 300  # characters of a reason


def answer_lines(start: Callable[[], Ask]) -> None:
    """Answer each line of the input, a JSON object with the `number` and the `path` of a model, in that order.

    What a compiler prints goes into a log, which is empty for each model.

    Args:
        start: Starts the compiler, and returns what asks it: that gets a path, a function that reads the log, and the
            question, which has `feeds` where numbers are asked for: see `graphkit.judges.Trial`.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    ask = start()
    with tempfile.TemporaryFile() as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        for line in sys.stdin:
            _flush_line()
            log.seek(0)
            log.truncate()
            question, begin = json.loads(line), time.monotonic()
            answer = ask(question["path"], lambda: _read_log(log), question)
            answer |= {"number": question["number"], "seconds": round(time.monotonic() - begin, 3)}
            out.write(f"{json.dumps(answer)}\n")
            out.flush()
    os._exit(0)  # some compilers crash where they are unloaded


def read_feeds(model: str, question: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what a model is fed, run by run: the arrays of a file, or random numbers where it has no name."""
    numpy, onnxruntime = importlib.import_module("numpy"), importlib.import_module("onnxruntime")
    inputs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    if any(not isinstance(size, int) for value in inputs for size in value.shape):
        raise ValueError("dims are symbols")
    if question["feeds"]:
        with numpy.load(question["feeds"]) as arrays:
            runs = min(len(arrays[value.name]) for value in inputs)
            return [{value.name: arrays[value.name][run] for value in inputs} for run in range(runs)]
    rng, names = numpy.random.default_rng(0), {"float": "float32", "double": "float64"}
    feeds: list[dict[str, Any]] = [{} for _ in range(RUNS)]
    for value in inputs:
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        for feed in feeds:
            array = rng.standard_normal(value.shape)
            is_float = "float" in kind or kind == "double"
            feed[value.name] = (array if is_float else array > 0).astype(names.get(kind, kind))
    return feeds


def try_model(model: str, question: Mapping[str, str], start: Callable[[], Run]) -> dict[str, Any]:
    """Return the numbers of a compiled model that `start` runs, or why there are none; nothing without a trial."""
    if "feeds" not in question:
        return {}
    try:
        return {"numbers": compare_outputs(question.get("reference") or model, read_feeds(model, question), start())}
    except Exception as error:  # whatever a simulator raises
        return {"no_numbers": str(error)[:LONGEST] or type(error).__name__}


def compare_outputs(model: str, feeds: Sequence[Mapping[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Return how far `run` is from onnxruntime's CPU in each output: the least cosine, the largest relative error."""
    numpy, onnxruntime = importlib.import_module("numpy"), importlib.import_module("onnxruntime")
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [value.name for value in cpu.get_outputs()]
    results = [(cpu.run(None, dict(feed)), run(feed)) for feed in feeds]
    numbers = []
    for index, name in enumerate(names):
        pairs = [[numpy.asarray(each[index], "float64").ravel() for each in both] for both in results]
        cosines = [
            float(wanted @ made / length)
            if (length := numpy.linalg.norm(wanted) * numpy.linalg.norm(made))
            else float(not wanted.any())
            for wanted, made in pairs
        ]
        largest = max(float(abs(wanted).max(initial=0)) for wanted, _ in pairs)
        error = max(float(abs(wanted - made).max(initial=0)) for wanted, made in pairs) / (largest or 1.0)
        found = (min(cosines), error) if all(map(numpy.isfinite, [error, *cosines])) else (None, None)
        numbers.append({"output": name, "cosine": found[0], "error": found[1]})
    return numbers


def _flush_line() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with contextlib.suppress(OSError, TypeError):
        ctypes.CDLL(None).fflush(None)  # what libraries keep


def _read_log(log: IO[bytes]) -> str:
    _flush_line()
    log.seek(0)
    return log.read().decode("utf-8", "replace")
