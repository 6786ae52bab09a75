"""onnxruntime sessions for comparisons: quiet, on the CPU, without graph optimizations by default."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.io.stream_files import shown
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model
from graphkit.runtime.loading import open_model

__all__ = ["RunError", "Runner", "Session", "check_files", "content", "load_error"]

LOADING = "see whether its data files are there, and whether this onnxruntime knows its operators"


class RunError(ModelError):
    """A model that onnxruntime loads, and that fails on some inputs.

    Attributes:
        signal: The one that ended the process that the model ran in, such as SIGFPE.
        timed_out: Whether the run took too long.
        is_final: Whether the model is not run any more, because runs before took too long or ended the process.
    """

    message: str = ""
    signal: str = ""
    timed_out: bool = False
    is_final: bool = False

    @classmethod
    def of(cls, message: str, label: str, what: str = "onnxruntime fails") -> RunError:
        """Return the error for a message of onnxruntime."""
        error = cls(f"{what}: {_short(message)}", file=label)
        error.message = message
        return error


def load_error(message: str, label: str, hint: str = LOADING) -> ModelError:
    """Return the error for a model that onnxruntime does not load."""
    return ModelError(f"onnxruntime does not load it: {_short(message)}", file=label, hint=hint)


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
        what: str | bytes = str(source)
        folder: Path | None = None
        self.label = "" if isinstance(source, Model) else shown(source)
        if isinstance(source, Model):
            self.label = source.label
            check_files(source)
            what, folder = content(source)
        place = None if folder is None else str(folder)
        try:
            self.onnx = open_model(what, folder=place, optimize=optimize, threads=threads, prepack=prepack)
        except Exception as error:  # onnxruntime's errors have no common base
            raise load_error(str(error), self.label) from error
        self.inputs: Sequence[str] = [found.name for found in self.onnx.get_inputs()]
        self.outputs: Sequence[str] = [found.name for found in self.onnx.get_outputs()]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name: an array, or a list, a dict or None where it is no tensor.

        Raises:
            RunError: The model fails on these inputs.
        """
        try:
            values = self.onnx.run(None, dict(feed))
        except Exception as error:  # onnxruntime's errors have no common base
            raise RunError.of(str(error), self.label) from error
        return dict(zip(self.outputs, values, strict=True))


def check_files(model: Model) -> None:
    """Check that the files that hold a model's weights are there.

    Raises:
        ModelError: One is missing.
    """
    for data in model.source.data_files:
        if data.size is None:
            raise ModelError("its data file is missing", file=str(data.path), hint="put it there")


def content(model: Model) -> tuple[bytes, Path | None]:
    """Return a model whose weights stay in their files, and the folder that these are in.

    onnxruntime wants no links that lead out of that folder, such as those of the cache of Hugging Face: then the files
    that they lead to are named. So are they where a rewrite made weights, which lie in a folder of their own.
    """
    external = [tensor for tensor, _ in walk_tensors(model.proto) if tensor.data_location == TensorProto.EXTERNAL]
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


def _short(message: str) -> str:
    return " ".join(message.split())[:300]
