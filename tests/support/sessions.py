"""Sessions of onnxruntime for tests: quiet, on one thread, and with the nodes as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from graphkit.model import Model

__all__ = ["ALL", "NONE", "ONNXRUNTIME", "run", "session_of"]

ONNXRUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
LEVELS = onnxruntime.GraphOptimizationLevel
NONE, ALL = LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL
Source = Model | onnx.ModelProto | Path | bytes


def session_of(model: Source, level: LEVELS = NONE) -> onnxruntime.InferenceSession:
    """Return a session of a model in memory, or of a file. More threads than one would wait in busy loops."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    proto = model.proto if isinstance(model, Model) else model
    source = proto.SerializeToString() if isinstance(proto, onnx.ModelProto) else proto
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(model: Source, feeds: Mapping[str, object], level: LEVELS = NONE) -> list[np.ndarray]:
    """Return all outputs of a model."""
    return session_of(model, level).run(None, dict(feeds))
