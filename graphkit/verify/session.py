"""onnxruntime sessions for comparisons: quiet, on the CPU, without graph optimizations by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.errors import ModelError

__all__ = ["Session"]


class Session:
    """A model, loaded by onnxruntime.

    Args:
        path: The model file.
        optimize: Whether onnxruntime may fuse operators. Off for proofs: two equal graphs then give equal bits,
            where fusions could differ between them.
        threads: Threads inside an operator; 0 for onnxruntime's choice.
        content: The model to run, where it is not what the file has; data files lie beside `path`.

    Raises:
        ModelError: onnxruntime does not load it.
    """

    def __init__(self, path: Path, *, optimize: bool = False, threads: int = 0, content: bytes | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        if content is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        self.path = path
        source = str(path) if content is None else content
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base
            raise ModelError(
                f"onnxruntime does not load it: {_reason(error)}",
                file=str(path),
                hint="see whether its data files are there, and whether this onnxruntime knows its operators",
            ) from error
        self.outputs: Sequence[str] = [output.name for output in self._session.get_outputs()]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            ModelError: The model fails on these inputs.
        """
        try:
            values = self._session.run(None, dict(feed))
        except Exception as error:  # onnxruntime's errors have no common base
            raise ModelError(f"onnxruntime fails: {_reason(error)}", file=str(self.path)) from error
        return dict(zip(self.outputs, values, strict=True))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
