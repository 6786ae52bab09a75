"""onnxruntime sessions for comparisons: quiet, on the CPU, without graph optimizations by default."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model

__all__ = ["RunError", "Session", "check_files", "runtime_version"]

FOLDER = "session.model_external_initializers_file_folder_path"


class RunError(ModelError):
    """A model that onnxruntime loads, and that fails on some inputs."""


class Session:
    """A model, loaded by onnxruntime.

    Args:
        source: The model file; or a model as it is in memory, whose weights onnxruntime maps from their files.
        optimize: Whether onnxruntime may fuse operators. Off for proofs: two equal graphs then give equal bits,
            where fusions could differ between them.
        threads: Threads inside an operator; 0 for onnxruntime's choice.
        prepack: Whether kernels may keep their own copy of weights, in the layout that they like.

    Attributes:
        onnx: The onnxruntime.InferenceSession.
        inputs, outputs: Names, in order.

    Raises:
        ModelError: A data file is missing, or onnxruntime does not load it.
    """

    def __init__(self, source: Path | Model, *, optimize: bool = False, threads: int = 0, prepack: bool = True) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        if not prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        what: str | bytes = str(source)
        self.label = str(source)
        if isinstance(source, Model):
            self.label = source.label
            check_files(source)
            what, folder = _content(source)
            if folder is not None:
                options.add_session_config_entry(FOLDER, str(folder))
        try:
            self.onnx = onnxruntime.InferenceSession(what, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base
            raise ModelError(
                f"onnxruntime does not load it: {_reason(error)}",
                file=self.label,
                hint="see whether its data files are there, and whether this onnxruntime knows its operators",
            ) from error
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
            raise RunError(f"onnxruntime fails: {_reason(error)}", file=self.label) from error
        return dict(zip(self.outputs, values, strict=True))


def check_files(model: Model) -> None:
    """Check that the files that hold a model's weights are there.

    Raises:
        ModelError: One is missing.
    """
    for data in model.source.data_files:
        if data.size is None:
            raise ModelError("its data file is missing", file=str(data.path), hint="put it there")


def _content(model: Model) -> tuple[bytes, Path | None]:
    """Return a model whose weights stay in their files, and the folder that these are in.

    onnxruntime wants no links that lead out of that folder, such as those of the cache of Hugging Face: then the files
    that they lead to are named.
    """
    external = [tensor for tensor, _ in walk_tensors(model.proto) if tensor.data_location == TensorProto.EXTERNAL]
    real = {path: Path(os.path.realpath(path)) for path in {model.piece(tensor)[0] for tensor in external}}
    if not real or model.path is None:
        return model.proto.SerializeToString(), None
    folder = Path(os.path.realpath(model.path.parent))
    if all(file.is_relative_to(folder) for file in real.values()):
        return model.proto.SerializeToString(), folder
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    folder = Path(os.path.commonpath([file.parent for file in real.values()]))
    for tensor, _ in walk_tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            place = next(entry for entry in tensor.external_data if entry.key == "location")
            place.value = real[model.piece(tensor)[0]].relative_to(folder).as_posix()
    return proto.SerializeToString(), folder


def runtime_version() -> tuple[int, int]:
    """Return major and minor version of onnxruntime."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return int(major), int(minor)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
