"""Run onnx's version converter in a child process."""

from __future__ import annotations

from graphkit.runtime.tools import run_tool, serve

__all__ = ["convert", "main"]


def convert(model: bytes, version: int) -> bytes:
    """Return a serialized model in another version of the operator set, as onnx's converter makes it.

    Raises:
        ToolError: It fails, or takes too much time or memory.
    """
    return run_tool("graphkit.runtime.converting", model, str(version))


def main(memory: str, version: str) -> None:
    """Convert the model on stdin, and write it to stdout."""
    import onnx.version_converter

    serve(memory, lambda model: onnx.version_converter.convert_version(model, int(version)))
