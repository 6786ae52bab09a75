"""Run onnxoptimizer in a child process."""

from __future__ import annotations

from graphkit.runtime.tools import run_tool, serve

__all__ = ["main", "optimize"]


def optimize(model: bytes) -> bytes:
    """Return a serialized model after onnxoptimizer's default passes.

    Raises:
        ToolError: It fails, or takes too much time or memory.
    """
    return run_tool("graphkit.runtime.optimizing", model)


def main(memory: str) -> None:
    """Optimize the model on stdin, and write it to stdout."""
    import onnxoptimizer

    serve(memory, onnxoptimizer.optimize)
