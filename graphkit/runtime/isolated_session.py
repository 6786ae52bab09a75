"""Sessions in a separate process with limits, so that a model can crash that process, but not this one."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.io.byte_source import source_of
from graphkit.io.stream_files import shown_path
from graphkit.model import Model, load
from graphkit.runtime.isolation import Process, current_process
from graphkit.runtime.limits import COPIES, DEFAULT_LIMITS
from graphkit.runtime.session import RunError, check_files, load_error, model_content
from graphkit.runtime.shared_memory import block_of, live_blocks
from graphkit.runtime.worker import Message
from graphkit.runtime.worker_process import DiedError

__all__ = ["MAX_TIMEOUTS", "IsolatedSession"]

MAX_TIMEOUTS = 2  # runs of a session that may take too long, before no more are tried
MAX_DEATHS = 4  # runs of a session that may end the process
SMALL = 16 << 20  # bytes of a model whose operators are so short that threads mostly wait
MAX_SHAPES = 8  # inputs whose shape a message tells
NUMBERS = itertools.count()
LIMITED = "raise --timeout or --memory to allow more"


class IsolatedSession:
    """A model, loaded by onnxruntime in a process of its own: `Session`'s public face and arguments.

    A model file is read once more, to know its files, unless `known` is the model that was read from it.

    Attributes:
        inputs, outputs: Names, in order.
        took: Seconds that onnxruntime took for the last run.
        close: Lets the process free the memory of the model.

    Raises:
        ModelError: A data file is missing, or onnxruntime does not load it, or ends with it.
    """

    def __init__(
        self,
        source: Path | Model,
        *,
        optimize: bool = False,
        threads: int = 0,
        prepack: bool = True,
        known: Model | None = None,
    ) -> None:
        self.label = source.label if isinstance(source, Model) else shown_path(source)
        model = source if isinstance(source, Model) else known or load(source)
        is_here = isinstance(source, Model) or source_of(Path(source)).is_local
        self._source, self._number = source if is_here else model, next(NUMBERS)
        check_files(model)
        self._weights = _model_bytes(model)
        spin = self._weights >= SMALL
        self._options = {"optimize": optimize, "threads": threads, "prepack": prepack, "spin": spin}
        self._timeouts = self._deaths = 0
        self._last: tuple[DiedError, Mapping[str, np.ndarray]] | None = None
        self.took = 0.0
        current = current_process()
        self._process = Process(DEFAULT_LIMITS) if current is None else current
        end = self._process.release if current is None else partial(self._process.dropped.append, self._number)
        self.close = weakref.finalize(self, end)
        self.close.atexit = False  # the process is ended then anyway
        self.inputs, self.outputs = self._load()

    def __enter__(self) -> IsolatedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name: an array, or a list, a dict or None where it is no tensor.

        Raises:
            RunError: The model fails on these inputs, takes too much time or memory, or ends the process.
        """
        values = self._run({name: np.asarray(array) for name, array in feed.items()})
        return dict(zip(self.outputs, values, strict=True))

    def bound(self) -> IsolatedBinding:
        """Return its inputs and outputs, to be bound to arrays."""
        return IsolatedBinding(self)

    def run_in_place(
        self, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray | None]
    ) -> dict[str, np.ndarray]:
        """Let outputs be written into these arrays, of `shared_zeros`; return those that have none.

        Raises:
            RunError: See `run`.
        """
        (values,) = self._run(feed, outputs=outputs)
        assert isinstance(values, dict)
        return values

    def _run(self, arrays: Mapping[str, np.ndarray], **more: object) -> list[Any]:
        self._check_patience()
        if self._generation != self._process.generation:
            self._load()
        request = {"do": "run", "id": self._number, "most": self._process.limits.outputs()}
        try:
            answer = self._ask_worker(request, feed=arrays, **more)
        except DiedError as error:
            self._timeouts += error.timed_out
            self._deaths += not error.timed_out
            raise self._death(error, arrays) from error
        if "error" in answer:
            raise self._failure_error(answer)
        self.took = answer["seconds"]
        values = self._process.worker.take(answer["values"])
        assert isinstance(values, list)
        return values

    def _check_patience(self) -> None:
        if self._timeouts >= MAX_TIMEOUTS:
            raise self._given_up(f"{self._timeouts} runs before took too long")
        if self._deaths >= MAX_DEATHS:
            raise self._given_up(f"{self._deaths} runs before ended the process")

    def _given_up(self, why: str) -> RunError:
        error = RunError(f"not run: {why}", file=self.label)
        error.is_final = True
        return self._with_death(error)

    def _with_death(self, error: RunError) -> RunError:
        """Return an error with what is known of the last run that ended the process, if one did."""
        if self._last is not None:
            died, error.feed = self._last
            error.signal, error.message, error.model = died.signal, died.why, self._source
        return error

    def _death(self, error: DiedError, arrays: Mapping[str, np.ndarray]) -> RunError:
        died = RunError(error.why, file=self.label, hint=f"it ran at {_shapes_text(arrays)}")
        died.timed_out = error.timed_out
        self._last = None if error.timed_out else (error, arrays)
        return self._with_death(died)

    def _failure_error(self, answer: Message) -> RunError:
        if not answer["memory"]:
            return RunError.of(answer["error"], self.label)
        memory = self._process.limits.bytes()
        problem = f"it needs more memory than the {memory:,} bytes beyond its weights that --memory allows"
        return RunError.of(answer["error"], self.label, problem)

    def _load(self) -> tuple[list[str], list[str]]:
        """Load the model into the process as it is now, and return the names of its inputs and outputs."""
        allowed = COPIES * self._weights
        request: Message = {"do": "load", "id": self._number, "allowed": allowed, "path": None}
        folder, values = None, {}
        if isinstance(self._source, Model):
            serialized, folder = model_content(self._source)
            values["content"] = np.frombuffer(serialized, np.uint8)
            request["allowed"] += COPIES * len(serialized)
        else:
            request["path"] = str(Path(self._source).absolute())  # the process may have been started in another folder
        request["options"] = {**self._options, "folder": None if folder is None else str(Path(folder).absolute())}
        try:
            answer = self._ask_worker(request, **values)
        except DiedError as error:
            raise load_error(error.why, self.label, LIMITED) from error
        if "error" in answer:
            raise load_error(answer["error"], self.label, *([LIMITED] if answer["memory"] else []))
        self._generation = self._process.generation
        return answer["inputs"], answer["outputs"]

    def _ask_worker(self, request: Message, **values: object) -> Message:
        limits = self._process.limits
        common = {"memory": limits.bytes(), "blocks": live_blocks()}
        return self._process.ask({**request, **common}, limits.time(self._weights), **values)


class IsolatedBinding:
    """An isolated session's inputs and outputs, bound to arrays: `BoundSession`'s public face.

    Arrays of `shared_zeros` are read and written where they are, and an output may be in the place of an input; others
    are copied.

    Args:
        session: The session, which others may share.
    """

    def __init__(self, session: IsolatedSession) -> None:
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._given: dict[str, np.ndarray] = {}

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Let an input be an array, which is read at each run."""
        self._inputs[name] = array

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Let an output be written into an array, whose shape is that of the output."""
        self._outputs[name] = array

    def bind_value(self, array: np.ndarray, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Let inputs and outputs be one array."""
        self._inputs |= dict.fromkeys(inputs, array)
        self._outputs |= dict.fromkeys(outputs, array)

    def free_output(self, name: str) -> None:
        """Let onnxruntime allocate an output."""
        self._outputs[name] = None

    def run(self) -> None:
        """Run the model.

        Raises:
            RunError: It fails, takes too much time or memory, or ends the process.
        """
        there = {name: a if a is not None and block_of(a) else None for name, a in self._outputs.items()}
        self._given = self._session.run_in_place(self._inputs, there)
        for name, array in self._given.items():
            room = self._outputs[name]
            if room is not None and (room.shape, room.dtype) != (array.shape, array.dtype):
                sides = " and ".join(f"{each.dtype} {list(each.shape)}" for each in (array, room))
                raise RunError(f"output '{name}' and the room for it differ: {sides}", file=self._session.label)
            if room is not None:
                room[...] = array

    def free_outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs that onnxruntime has allocated, by name."""
        return {name: array for name, array in self._given.items() if self._outputs[name] is None}


def _shapes_text(arrays: Mapping[str, np.ndarray]) -> str:
    texts = [f"{name} {list(array.shape)}" for name, array in arrays.items()]
    more = f" and {len(texts) - MAX_SHAPES} more" if len(texts) > MAX_SHAPES else ""
    return (", ".join(texts[:MAX_SHAPES]) or "no inputs") + more


def _model_bytes(model: Model) -> int:
    """Return the bytes of a model's files."""
    return sum(source_of(path).size for path in model.files)
