"""onnxruntime sessions for comparisons: quiet, on the CPU, without graph optimizations by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.errors import ModelError
from graphkit.model import Model

__all__ = ["RunError", "Session", "check_files"]

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
            what = source.proto.SerializeToString()
            if source.path is not None:
                options.add_session_config_entry(FOLDER, str(source.path.parent))
        try:
            self._session = onnxruntime.InferenceSession(what, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base
            raise ModelError(
                f"onnxruntime does not load it: {_reason(error)}",
                file=self.label,
                hint="see whether its data files are there, and whether this onnxruntime knows its operators",
            ) from error
        self.outputs: Sequence[str] = [output.name for output in self._session.get_outputs()]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name: an array, or a list, a dict or None where it is no tensor.

        Raises:
            RunError: The model fails on these inputs.
        """
        try:
            values = self._session.run(None, dict(feed))
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


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
