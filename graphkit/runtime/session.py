"""onnxruntime sessions: quiet, on the CPU or a provider, plain unless asked; here or in another process."""

from __future__ import annotations

import copy
import itertools
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
from onnx import TensorProto

from graphkit.errors import ModelError, UsageError
from graphkit.io.byte_source import in_shown_paths, refer_to_bytes, shown_path, source_of
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model, load
from graphkit.progress import COPIES, DEFAULT_LIMITS, HELD_RUNS, check_stopped, check_time
from graphkit.runtime.isolation import DiedError, Process, current_process, shared_isolation
from graphkit.runtime.onnxruntime_loader import (
    device_memories,
    device_value,
    open_model,
    run_model,
    run_unrecorded,
    value_of,
)
from graphkit.runtime.providers import CPU, Provider, ProviderError, check_provider, parse_provider
from graphkit.runtime.shared_memory import block_of, live_blocks
from graphkit.runtime.worker import Message

LOADING = "see whether its data files are there, and whether this onnxruntime knows its operators"
HINTS = {  # by a part of onnxruntime's message
    "two nodes with same node name": "`graphkit fold` gives its nodes names of their own",
    "InferenceError]": "correct the node; `graphkit fold` takes out a branch of an If that never runs",
    "Dynamic shape is not": "the device takes fixed dims: `graphkit lower EXPORT -o OUT --target NAME`, then `Host`",
    "EP_FAIL": "see whether the driver of the device is there",
    "graph capture": "leave out the option that records runs; `graphkit report --provider` names the nodes on the CPU",
    "Could not find an implementation": "this onnxruntime has no kernel for the operator at the dtypes that it has",
}
SOURCE = re.compile(r"/\S+\.(?:cc|cpp|cu|h):\d+ (?:[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? )?")  # with a signature
NO_COPY = "a copy from the device or to it fails"
MAX_TIMEOUTS = 2  # runs of a session that may take too long, before no more are tried
MAX_DEATHS = 4  # runs of a session that may end the process
SMALL = 16 << 20  # bytes of a model whose operators are so short that threads mostly wait
MAX_SHAPES = 8  # inputs whose shape a message tells
NUMBERS = itertools.count()
LIMITED = "raise --timeout or --memory to allow more"
AT_ONCE = 128  # small models of a request
# Arrays, or zeros by their dtype and dims; None to run nothing, and tell the dims that onnxruntime infers, -1 for any.
Feed = Mapping[str, np.ndarray | tuple[str, Sequence[int]]] | None
SmallModel = tuple[bytes, Sequence[Feed]]
Found = list[list[np.ndarray] | str]  # the outputs for each feed, or why it does not run


class RunError(ModelError):
    """A model that onnxruntime loads, and that fails on some inputs."""

    message: str = ""  # of onnxruntime, or how the process ended
    signal: str = ""  # that ended the process that the model ran in, such as SIGFPE
    model: Path | Model | None = None  # what ran then
    feed: Mapping[str, np.ndarray] = MappingProxyType({})
    timed_out: bool = False
    is_final: bool = False  # whether it is not run any more: runs before took too long, or ended the process

    @classmethod
    def of(cls, message: str, label: str, problem: str = "onnxruntime fails", hint: str | None = None) -> RunError:
        """Return the error for a message of onnxruntime."""
        error = cls(f"{problem}: {_short_message(message)}", file=label, hint=hint)
        error.message = message
        return error


def as_provider(provider: Provider | str) -> Provider:
    """Return the installed provider of a text. Raises UsageError where nobody knows it, or it is not installed."""
    try:
        known = parse_provider(provider) if isinstance(provider, str) else provider
        check_provider(known)
    except ProviderError as error:
        raise UsageError(str(error)) from error
    return known


def load_error(message: str, label: str, hint: str = "") -> ModelError:
    """Return the error for a model that onnxruntime does not load."""
    if message.startswith("this onnxruntime "):
        return ModelError(message, file=label)
    if message.startswith("provider '"):
        problem, _, remedy = message.partition(" - ")
        return ModelError(problem, file=label, hint=remedy)
    hint = hint or next((text for part, text in HINTS.items() if part in message), LOADING)
    return ModelError(f"onnxruntime does not load it: {_short_message(message)}", file=label, hint=hint)


def is_timeout(error: Exception) -> bool:
    """Whether a model was not loaded, or not run, because that took too long."""
    return (isinstance(cause := error.__cause__, DiedError) and cause.timed_out) or getattr(error, "is_final", False)


class Runner(Protocol):
    """The interface of a session that proofs use, in this process or in one of its own."""

    label: str

    @property
    def inputs(self) -> Sequence[str]:
        """Names, in order."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names, in order."""

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""


class Session:
    """A model, loaded by onnxruntime.

    Args:
        source: The model file; or a model as it is in memory, whose weights onnxruntime maps from their files.
        optimize: Whether onnxruntime may fuse operators. Off for proofs: two equal graphs then give equal bits,
            where fusions could differ between them.
        threads: Threads inside an operator; 0 for onnxruntime's choice.
        prepack: Whether kernels may keep their own copy of weights, in the layout that they like.
        provider: Where it runs; the CPU runs the nodes that this refuses. An option that records runs is for
            `CapturedSession` alone.

    Attributes:
        inputs, outputs: Names, in order.

    Raises:
        ModelError: A data file is missing, the provider does not start, or onnxruntime does not load it.
    """

    _captures: ClassVar[bool] = False

    def __init__(
        self,
        source: Path | Model,
        *,
        optimize: bool = False,
        threads: int = 0,
        prepack: bool = True,
        provider: Provider = CPU,
    ) -> None:
        if not isinstance(source, Model) and not source_of(Path(source)).is_local:
            source = load(source)
        path_or_bytes: str | bytes = str(source)
        folder: Path | None = None
        self.label = source.label if isinstance(source, Model) else shown_path(source)
        if isinstance(source, Model):
            check_files(source)
            path_or_bytes, folder = model_content(source)
        place = None if folder is None else str(folder)
        provider = provider if self._captures else provider.without_capture()
        try:
            self.onnx = open_model(
                path_or_bytes, folder=place, optimize=optimize, threads=threads, prepack=prepack, provider=provider
            )
        except Exception as error:  # onnxruntime's errors have no common base
            check_stopped()
            raise load_error(str(error), self.label) from error
        self.inputs: Sequence[str] = [port.name for port in self.onnx.get_inputs()]
        self.outputs: Sequence[str] = [port.name for port in self.onnx.get_outputs()]

    def bound(self) -> BoundSession:
        """Return its inputs and outputs, to be bound to arrays."""
        return BoundSession(self)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name: an array, or a list, a dict or None where it is no tensor.

        Raises RunError where the model fails on these inputs.
        """
        with _told_errors(self.label):
            values = run_model(self.onnx, feed)
        return dict(zip(self.outputs, values, strict=True))


def check_files(model: Model) -> None:
    """Check that the files that hold a model's weights are there. Raises ModelError where one is missing."""
    for data in model.source.data_files:
        if data.size is None:
            raise ModelError("its data file is missing", file=shown_path(data.path), hint="put it there")


def as_read(model: Model) -> Path | Model:
    """Return the file of a model, to trust no reader of ours; the model itself where it has none, or was edited."""
    return model if model.path is None or model.is_edited else model.path


def model_content(model: Model) -> tuple[bytes, Path | None]:
    """Return a model whose weights stay in their files, and the folder that these are in.

    onnxruntime wants no links that lead out of that folder, such as those of the cache of Hugging Face: then the files
    that they lead to are named. So are they where a rewrite made weights, which lie in a folder of their own.
    """
    external = [tensor for tensor, _ in walk_tensors(model.proto) if tensor.data_location == TensorProto.EXTERNAL]
    model.fetch(external)
    real = {path: Path(os.path.realpath(path)) for path in {model.piece(tensor)[0] for tensor in external}}
    is_as_read = not any(model.is_made(tensor) for tensor in external)
    if not real or (is_as_read and model.path is None):
        return model.proto.SerializeToString(), None
    if is_as_read and model.path is not None:
        folder = Path(os.path.realpath(model.path.parent))
        if all(file.is_relative_to(folder) for file in real.values()):
            return model.proto.SerializeToString(), folder
    proto = copy.deepcopy(model.proto)
    folder = Path(os.path.commonpath([file.parent for file in real.values()]))
    for tensor, _ in walk_tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            path, offset, length = model.piece(tensor)
            refer_to_bytes(tensor, real[path].relative_to(folder).as_posix(), offset, length)
    return proto.SerializeToString(), folder


def _short_message(message: str) -> str:
    """Return a message of onnxruntime without the place in its sources, which may be longer than its reason."""
    return in_shown_paths(SOURCE.sub("", " ".join(message.split())))[:300]


@contextmanager
def _told_errors(label: str, *problem: str) -> Iterator[None]:
    """Raise RunError where onnxruntime fails, unless that is because the process is to stop."""
    try:
        yield
    except Exception as error:  # onnxruntime's errors have no common base
        check_stopped()
        raise RunError.of(str(error), label, *problem) from error


class DeviceArray:
    """A tensor in the memory of a device, as onnxruntime describes it, of the size of the array that it holds at first.

    Raises Exception where there is no room, or onnxruntime cannot allocate there; its errors have no common base.
    """

    def __init__(self, memory: Any, array: np.ndarray) -> None:
        self.value, self.dtype, self.shape = device_value(memory, array), array.dtype.type, array.shape
        self._place = self.value.device_name(), memory.device_id

    def write(self, array: np.ndarray) -> None:
        """Copy an array of its size and dtype into it. Raises RunError for another dtype, or where the copy fails."""
        if array.dtype != self.dtype:
            raise RunError(f"an array is {array.dtype}, and the model takes {np.dtype(self.dtype)}")
        with _told_errors("", NO_COPY):
            self.value.update_inplace(array)

    def read(self) -> np.ndarray:
        """Return a copy. Raises RunError where it fails."""
        with _told_errors("", NO_COPY):
            array: np.ndarray = self.value.numpy()
        return array

    def bound(self, shape: Sequence[int]) -> tuple[object, ...]:
        """Return what to bind: its first elements, in this shape."""
        return *self._place, self.dtype, shape, self.value.data_ptr()


class CapturedSession(Session):
    """A model of fixed shapes whose run a device records at first, and repeats: no input or output changes its place.

    What a device records may lack a part, such as its copies: a repeated run is compared with one without a record.
    Arguments are those of `Session`, with a provider that has an option that records runs, and an array of the dtype
    and shape of each input and output, by name.

    Raises:
        UsageError: Nothing is on the device, it has no memory, or what it repeats is not what the model computes.
        ModelError: As for `Session`, or a node is on the CPU.
    """

    _captures = True

    def __init__(
        self, source: Path | Model, zeros: Mapping[str, np.ndarray], *, optimize: bool, provider: Provider
    ) -> None:
        super().__init__(source, optimize=optimize, provider=provider)
        memory = next(filter(None, device_memories(self.onnx).values()), None)
        if memory is None:
            raise UsageError(f"{self.label}: nothing of it is on '{provider.name}' - leave out {provider.capture}")
        try:
            self._binding, self._arrays = self.onnx.io_binding(), {n: DeviceArray(memory, a) for n, a in zeros.items()}
        except Exception as error:  # onnxruntime's errors have no common base
            why = f"there is no memory of '{provider.name}' for its inputs and outputs: {_short_message(str(error))}"
            raise UsageError(f"{self.label}: {why} - leave out {provider.capture}") from error
        for name in self.inputs:
            self._binding.bind_ortvalue_input(name, self._arrays[name].value)
        for name in self.outputs:
            self._binding.bind_ortvalue_output(name, self._arrays[name].value)
        self.run(zeros)
        rng = np.random.default_rng(0)
        feed = {name: zeros[name] for name in self.inputs}
        feed = {name: rng.random(a.shape).astype(a.dtype) if a.dtype.kind == "f" else a for name, a in feed.items()}
        repeated, plain = self.run(feed), dict(zip(self.outputs, run_unrecorded(self.onnx, feed), strict=True))
        for name, array in plain.items():
            room = 1e-3 * np.abs(array).max(initial=0)
            if not np.allclose(repeated[name], array, rtol=1e-3, atol=room, equal_nan=True):
                problem = f"what '{provider.name}' repeats is wrong in '{name}': its record lacks nodes that copy"
                raise UsageError(f"{self.label}: {problem} - leave out {provider.capture}")

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name. Raises RunError where the model fails on these inputs."""
        with _told_errors(self.label):
            for name in self.inputs:
                self._arrays[name].write(feed[name])
            self.onnx.run_with_iobinding(self._binding)
            return {name: self._arrays[name].read() for name in self.outputs}


class BoundSession:
    """A session's inputs and outputs, bound to arrays of the caller; others may share the session.

    An output may be bound to the array of an input: operators that write in place then do.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._value_of = value_of()
        self._binding = session.onnx.io_binding()
        self._memories = device_memories(session.onnx)
        self._copied: dict[str, np.ndarray] = {}  # arrays of inputs that are on a device
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._free: set[str] = set()
        self._outputs: dict[str, None] = {}  # in the order in which they were first bound, which onnxruntime keeps

    def memory_of(self, names: Sequence[str]) -> object:
        """Return the memory of a device that has all these inputs and outputs, None where there is none."""
        memories = [self._memories.get(name) for name in names]
        parts = attrgetter("name", "device_id", "device_vendor_id", "device_mem_type")
        places = {parts(memory) if memory is not None else None for memory in memories}
        return memories[0] if len(places) == 1 else None

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Let an input be an array, which is read at each run."""
        if name in self._memories:
            self._copied[name] = array
        elif self._is_new(name, array):
            self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Let an output be written into an array, whose shape is that of the output."""
        if self._is_new(name, array):
            self._outputs[name] = None
            self._free.discard(name)
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def bind_value(self, array: np.ndarray, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Let inputs and outputs be one array, which is bound anew in any case: quicker than each by itself."""
        value = self._value_of(array)
        for name in inputs:
            if name in self._memories:
                self._copied[name] = array
            else:
                self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._forget(name)
            self._binding.bind_ortvalue_output(name, value)

    def bind_device(
        self, array: DeviceArray, shape: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Let inputs and outputs be the first elements of a tensor in the memory of a device, in this shape."""
        bound = array.bound(shape)
        for name in inputs:
            self._copied.pop(name, None)
            self._binding.bind_input(name, *bound)
        for name in outputs:
            self._forget(name)
            self._binding.bind_output(name, *bound)

    def free_output(self, name: str) -> None:
        """Let onnxruntime allocate an output."""
        self._forget(name)
        self._free.add(name)
        self._binding.bind_output(name)

    def run(self) -> None:
        """Run the model. Raises RunError where it fails."""
        with _told_errors(self._session.label):
            for name, array in self._copied.items():
                self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._session.onnx.run_with_iobinding(self._binding)

    def free_outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs that onnxruntime has allocated, by name; it takes their memory back."""
        if not self._free:
            return {}
        values = dict(zip(self._outputs, self._binding.get_outputs(), strict=True))
        return {name: values[name].numpy().copy() for name in self._free}

    def _is_new(self, name: str, array: np.ndarray) -> bool:
        if self._kept.get(name) is array or self._bound.get(name) == (place := (array.ctypes.data, array.shape)):
            return False
        self._bound[name], self._kept[name] = place, array
        return True

    def _forget(self, name: str) -> None:
        self._outputs[name] = None
        self._bound.pop(name, None)
        self._kept.pop(name, None)
        self._free.discard(name)


class IsolatedSession:
    """A model, loaded by onnxruntime in a process of its own: `Session`'s public face and arguments.

    A model file is read once more, to know its files, unless `known` is the model that was read from it. Beside other
    work it is loaded until `wait` is called. Of `held_runs` the outputs are held at once, each of which may take as
    large a part of the memory that the limits allow.

    Attributes:
        took: Seconds that onnxruntime took for the last run.
        placed: How many nodes are on each provider, where it is not the CPU and onnxruntime says so.
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
        provider: Provider = CPU,
        known: Model | None = None,
        beside: bool = False,
        held_runs: int = HELD_RUNS,
    ) -> None:
        self.label = source.label if isinstance(source, Model) else shown_path(source)
        model = source if isinstance(source, Model) else known or load(source)
        is_here = isinstance(source, Model) or source_of(Path(source)).is_local
        self._source, self._number = source if is_here else model, next(NUMBERS)
        check_files(model)
        self._weights = sum(source_of(path).size for path in model.files)
        self._options = {"optimize": optimize, "threads": threads, "prepack": prepack, "spin": self._weights >= SMALL}
        self._provider, self._held_runs = provider.without_capture(), held_runs
        self.placed: Mapping[str, int] = {}
        self._timeouts = self._deaths = 0
        self._last: tuple[DiedError, Mapping[str, np.ndarray]] | None = None
        self.took = 0.0
        current = current_process()
        self._process = Process(DEFAULT_LIMITS) if current is None else current
        end = self._process.release if current is None else partial(self._process.dropped.append, self._number)
        self.close = weakref.finalize(self, end)
        self.close.atexit = False  # the process is ended then anyway
        self.inputs: Sequence[str] = ()
        self.outputs: Sequence[str] = ()
        # what waits for the answer, once: it refers to this session, which would not be freed with its last user else
        self._asked = [self._process.begin(self._load_request()) if beside else self._load_request()]
        if not beside:
            self.wait()

    def __enter__(self) -> IsolatedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name: an array, or a list, a dict or None where it is no tensor.

        Raises RunError where the model fails on these inputs, takes too much time or memory, or ends the process.
        """
        values = self._run({name: np.asarray(array) for name, array in feed.items()})
        return dict(zip(self.outputs, values, strict=True))

    def bound(self) -> IsolatedBinding:
        """Return its inputs and outputs, to be bound to arrays."""
        return IsolatedBinding(self)

    def run_in_place(
        self, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray | None]
    ) -> dict[str, np.ndarray]:
        """Let outputs be written into arrays of `shared_zeros`; return those without one. Raises RunError."""
        (values,) = self._run(feed, outputs=outputs)
        assert isinstance(values, dict)
        return values

    def _run(self, arrays: Mapping[str, np.ndarray], **more: object) -> list[Any]:
        ends = (self._timeouts, MAX_TIMEOUTS, "took too long"), (self._deaths, MAX_DEATHS, "ended the process")
        for count, most, how in ends:
            if count >= most:
                given_up = RunError(f"not run: {count} runs before {how}", file=self.label)
                given_up.is_final = True
                raise self._with_death(given_up)
        if self._generation != self._process.generation:
            self._asked.append(self._load_request())
            self.wait()
        request = {"do": "run", "id": self._number, "most": self._process.limits.outputs(self._held_runs)}
        try:
            answer = self._ask_worker(request, feed=arrays, **more)
        except DiedError as error:
            self._timeouts += error.timed_out
            self._deaths += not error.timed_out
            shapes = [f"{name} {list(array.shape)}" for name, array in arrays.items()]
            others = f" and {len(shapes) - MAX_SHAPES} more" if len(shapes) > MAX_SHAPES else ""
            hint = f"it ran at {', '.join(shapes[:MAX_SHAPES]) or 'no inputs'}{others}"
            died = RunError(error.why, file=self.label, hint=hint)
            died.timed_out = error.timed_out
            self._last = None if error.timed_out else (error, arrays)
            raise self._with_death(died) from error
        if "error" in answer:
            allowed = f"the {self._process.limits.bytes():,} bytes beyond its weights that --memory allows"
            needing = (f"it needs more memory than {allowed}", "raise it") if answer["memory"] else ()
            raise RunError.of(answer["error"], self.label, *needing)
        self.took = answer["seconds"]
        values: list[Any] = answer["values"]
        return values

    def _with_death(self, error: RunError) -> RunError:
        """Return an error with what is known of the last run that ended the process, if one did."""
        if self._last is not None:
            died, error.feed = self._last
            error.signal, error.message, error.model = died.signal, died.why, self._source
        return error

    def _load_request(self) -> Callable[[], Message]:
        request: Message = {"do": "load", "id": self._number, "provider": str(self._provider), "path": None}
        folder, size, values = None, self._weights, {}
        if isinstance(self._source, Model):
            serialized, folder = model_content(self._source)
            values["content"] = np.frombuffer(serialized, np.uint8)
            size += len(serialized)
        else:
            request["path"] = str(Path(self._source).absolute())  # the process may have been started in another folder
        request["options"] = {**self._options, "folder": None if folder is None else str(folder.absolute())}
        request["allowed"] = COPIES * size

        def ask() -> Message:
            answer = self._ask_worker(request, **values)
            self._generation = self._process.generation
            return answer

        return ask

    def wait(self) -> None:
        """Wait until it is loaded. Raises ModelError where onnxruntime does not load it, or ends with it."""
        try:
            answer = self._asked.pop()()
        except DiedError as error:
            raise load_error(error.why, self.label, LIMITED) from error
        if "error" in answer:
            raise load_error(answer["error"], self.label, *([LIMITED] if answer["memory"] else []))
        self.placed, self.inputs, self.outputs = answer["placed"], answer["inputs"], answer["outputs"]

    def _ask_worker(self, request: Message, **values: object) -> Message:
        limits = self._process.limits
        common = {"memory": limits.bytes(), "blocks": live_blocks()}
        return self._process.ask({**request, **common}, limits.time(self._weights), **values)


class IsolatedBinding:
    """An isolated session's inputs and outputs, bound to arrays: `BoundSession`'s public face.

    Arrays of `shared_zeros` are read and written where they are, and an output may be in the place of an input; others
    are copied.
    """

    def __init__(self, session: IsolatedSession) -> None:
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._given: dict[str, np.ndarray] = {}

    def memory_of(self, names: Sequence[str]) -> object:
        """Return None: the process that runs the model reads arrays of the CPU."""

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
        """Run the model. Raises RunError where it fails, takes too much time or memory, or ends the process."""
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


def place_model(model: Model, provider: Provider, dims: Mapping[str, int]) -> Message:
    """Return where onnxruntime places the nodes of a model at these sizes of symbols: see `place_nodes`.

    Raises ModelError where a data file is missing, the provider does not start, or onnxruntime does not load the model.
    """
    check_files(model)
    serialized, folder = model_content(model)
    weights = sum(source_of(path).size for path in model.files)
    with shared_isolation() as process:
        request: Message = {"do": "place", "provider": str(provider), "dims": dict(dims)}
        request["folder"] = None if folder is None else str(folder.absolute())
        request["memory"] = process.limits.bytes() + COPIES * (weights + len(serialized))
        try:
            answer = process.ask(request, process.limits.time(weights), content=np.frombuffer(serialized, np.uint8))
        except DiedError as error:
            answer = {"error": error.why, "memory": True}
    if "error" in answer:
        raise load_error(answer["error"], model.label, LIMITED if answer["memory"] else "")
    return answer


def run_small_models(models: Iterable[SmallModel]) -> Iterator[Found | str]:
    """Load serialized models without optimizations, and run each on its feeds, from now on, beside other work.

    They run in the process of the `shared_isolation` around the caller.

    Yields:
        The outputs of each for each feed, or why it does not run; one text where it does not load, or ends the process.
    """
    process, rest, begun = current_process(), iter(models), list[Callable[[], list[Found | str]]]()
    assert process is not None
    while listed := [*itertools.islice(rest, AT_ONCE)]:
        begun.append(process.begin(partial(run_models, process, listed), is_optional=True))

    def wait_for(answer: Callable[[], list[Found | str]]) -> list[Found | str]:
        check_time()
        return answer()

    return chain.from_iterable(map(wait_for, begun))


def run_models(process: Process, models: Sequence[SmallModel]) -> list[Found | str]:
    """Run small models in a process now, and return what `run_small_models` yields of them."""
    parts = [[np.frombuffer(content, np.uint8), list(feeds)] for content, feeds in models]
    limits = process.limits
    request = {"do": "small models", "memory": limits.bytes(), "most": limits.outputs()}
    try:
        answer = process.ask(request, limits.time(0), parts=parts)
    except DiedError as error:
        if len(models) == 1:
            return [error.why]
        half = len(models) // 2
        return run_models(process, models[:half]) + run_models(process, models[half:])
    if "error" in answer:
        return [answer["error"]] * len(models)
    found: list[Found | str] = answer["values"]
    return found
