"""onnxruntime sessions: quiet, on the CPU, without graph optimizations by default; and sessions bound to arrays."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.io.byte_source import source_of
from graphkit.io.signals import check_stopped
from graphkit.io.stream_files import in_shown_paths, shown_path
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model, load
from graphkit.runtime.onnxruntime_loader import open_model, run_model, value_of

__all__ = ["BoundSession", "RunError", "Runner", "Session", "check_files", "load_error", "model_content"]

LOADING = "see whether its data files are there, and whether this onnxruntime knows its operators"
HINTS = {  # by a part of onnxruntime's message
    "two nodes with same node name": "`graphkit fold` gives its nodes names of their own",
    "InferenceError]": "correct the node; `graphkit fold` takes out a branch of an If that never runs",
    "Could not find an implementation": "this onnxruntime has no kernel for the operator at the dtypes that it has",
}
SOURCE = re.compile(r"/\S+\.(?:cc|cpp|cu|h):\d+ (?:[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? )?")  # with a signature


class RunError(ModelError):
    """A model that onnxruntime loads, and that fails on some inputs.

    Attributes:
        message: What onnxruntime says, or how the process ended.
        signal: The one that ended the process that the model ran in, such as SIGFPE.
        model, feed: What ran then, and on which inputs.
        timed_out: Whether the run took too long.
        is_final: Whether the model is not run any more, because runs before took too long or ended the process.
    """

    message: str = ""
    signal: str = ""
    model: Path | Model | None = None
    feed: Mapping[str, np.ndarray] = MappingProxyType({})
    timed_out: bool = False
    is_final: bool = False

    @classmethod
    def of(cls, message: str, label: str, problem: str = "onnxruntime fails") -> RunError:
        """Return the error for a message of onnxruntime."""
        error = cls(f"{problem}: {_short_message(message)}", file=label)
        error.message = message
        return error


def load_error(message: str, label: str, hint: str = "") -> ModelError:
    """Return the error for a model that onnxruntime does not load."""
    hint = hint or next((text for part, text in HINTS.items() if part in message), LOADING)
    return ModelError(f"onnxruntime does not load it: {_short_message(message)}", file=label, hint=hint)


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

    Attributes:
        inputs, outputs: Names, in order.

    Raises:
        ModelError: A data file is missing, or onnxruntime does not load it.
    """

    def __init__(self, source: Path | Model, *, optimize: bool = False, threads: int = 0, prepack: bool = True) -> None:
        if not isinstance(source, Model) and not source_of(Path(source)).is_local:
            source = load(source)
        path_or_bytes: str | bytes = str(source)
        folder: Path | None = None
        self.label = "" if isinstance(source, Model) else shown_path(source)
        if isinstance(source, Model):
            self.label = source.label
            check_files(source)
            path_or_bytes, folder = model_content(source)
        place = None if folder is None else str(folder)
        try:
            self.onnx = open_model(path_or_bytes, folder=place, optimize=optimize, threads=threads, prepack=prepack)
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

        Raises:
            RunError: The model fails on these inputs.
        """
        try:
            values = run_model(self.onnx, feed)
        except Exception as error:  # onnxruntime's errors have no common base
            check_stopped()
            raise RunError.of(str(error), self.label) from error
        return dict(zip(self.outputs, values, strict=True))


def check_files(model: Model) -> None:
    """Check that the files that hold a model's weights are there.

    Raises:
        ModelError: One is missing.
    """
    for data in model.source.data_files:
        if data.size is None:
            raise ModelError("its data file is missing", file=shown_path(data.path), hint="put it there")


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
            place = next(entry for entry in tensor.external_data if entry.key == "location")
            place.value = real[model.piece(tensor)[0]].relative_to(folder).as_posix()
    return proto.SerializeToString(), folder


def _short_message(message: str) -> str:
    """Return a message of onnxruntime without the place in its sources, which may be longer than its reason."""
    return in_shown_paths(SOURCE.sub("", " ".join(message.split())))[:300]


class BoundSession:
    """A session's inputs and outputs, bound to arrays of the caller.

    An output may be bound to the array of an input: operators that write in place then do.

    Args:
        session: The session, which others may share.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._value_of = value_of()
        self._binding = session.onnx.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._free: set[str] = set()
        self._outputs: dict[str, None] = {}  # in the order in which they were first bound, which onnxruntime keeps

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Let an input be an array, which is read at each run."""
        if self._is_new(name, array):
            self._binding.bind_input(name, "cpu", 0, _element_type(array), array.shape, array.ctypes.data)

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Let an output be written into an array, whose shape is that of the output."""
        if self._is_new(name, array):
            self._outputs[name] = None
            self._free.discard(name)
            self._binding.bind_output(name, "cpu", 0, _element_type(array), array.shape, array.ctypes.data)

    def bind_value(self, array: np.ndarray, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Let inputs and outputs be one array, which is bound anew in any case: quicker than each by itself."""
        value = self._value_of(array)
        for name in inputs:
            self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._outputs[name] = None
            self._binding.bind_ortvalue_output(name, value)

    def free_output(self, name: str) -> None:
        """Let onnxruntime allocate an output."""
        self._bound.pop(name, None)
        self._kept.pop(name, None)
        self._outputs[name] = None
        self._free.add(name)
        self._binding.bind_output(name)

    def run(self) -> None:
        """Run the model.

        Raises:
            RunError: It fails.
        """
        try:
            self._session.onnx.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's errors have no common base
            check_stopped()
            raise RunError.of(str(error), self._session.label) from error

    def free_outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs that onnxruntime has allocated, by name; it takes their memory back."""
        if not self._free:
            return {}
        values = dict(zip(self._outputs, self._binding.get_outputs(), strict=True))
        return {name: values[name].numpy().copy() for name in self._free}

    def _is_new(self, name: str, array: np.ndarray) -> bool:
        """Whether the array bound under a name has another place or shape."""
        if self._kept.get(name) is array:
            return False
        place = array.ctypes.data, array.shape
        if self._bound.get(name) == place:
            return False
        self._bound[name], self._kept[name] = place, array
        return True


def _element_type(array: np.ndarray) -> type:
    kind: type = array.dtype.type
    return kind
