"""onnx's converter in this process, which saves starting one for each test."""

from __future__ import annotations

import onnx
import onnx.version_converter

from graphkit.runtime.external_tools import ToolError

__all__ = ["convert_here"]


def convert_here(model: bytes, version: int) -> bytes:
    """Return a serialized model in another version, as `graphkit.runtime.external_tools.convert_bytes` does."""
    try:
        made = onnx.version_converter.convert_version(onnx.load_model_from_string(model), version)
    except RuntimeError as error:
        raise ToolError(str(error)) from error
    return made.SerializeToString()
