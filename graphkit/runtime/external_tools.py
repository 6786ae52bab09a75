"""Run onnxoptimizer or onnx's version converter on a model in a child process, because some models crash them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import onnx

from graphkit.errors import ModelError
from graphkit.progress import DEFAULT_LIMITS, allocated_bytes, limit_memory
from graphkit.runtime.isolation import describe_ending, worker_command

if TYPE_CHECKING:
    from graphkit.model import Model, ModelLike

REFUSED = 3  # exit code where the tool raises; its message goes to stderr


class ToolError(Exception):
    """A tool raises, dies, or takes too long."""


def optimized(model: ModelLike) -> Model:
    """Return a copy of the graph after `onnxoptimizer.optimize` with its default passes, for counting only.

    The optimizer sees tensors whose bytes stay in the file as empty, and may merge them as duplicates. Its result has
    the right nodes, but must never be written as a model.

    Returns:
        A model to count the nodes of; its weights are not all there.

    Raises:
        ModelError: onnxoptimizer fails on the model.

    Example:
        >>> graphkit.optimized(graphkit.load("example:causal-attention"))
        Model('main_graph', 139 nodes)
    """
    from graphkit.model import Model, as_model  # which the child process need not import

    model = as_model(model)
    try:
        serialized = optimize_bytes(model.proto.SerializeToString())
    except ToolError as error:
        problem = f"onnxoptimizer fails: {' '.join(str(error).split())[:200]}"
        raise ModelError(problem, file=model.file, hint="report without --optimize") from error
    return Model.from_proto(onnx.ModelProto.FromString(serialized))


def optimize_bytes(model: bytes) -> bytes:
    """Return a serialized model after onnxoptimizer's default passes; ToolError if it fails."""
    return _run_tool("optimize", model)


def convert_bytes(model: bytes, version: int) -> bytes:
    """Return a serialized model in another opset, as onnx's version converter makes it; ToolError if it fails."""
    return _run_tool("convert", model, str(version))


def _run_tool(tool: str, model: bytes, *arguments: str) -> bytes:
    """Return what a tool makes of a serialized model; ToolError where it fails, or takes too much time or memory."""
    seconds = DEFAULT_LIMITS.time(0)
    started = worker_command("graphkit.runtime.external_tools", str(DEFAULT_LIMITS.bytes()), tool, *arguments)
    try:
        ran = subprocess.run(started, input=model, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"it does not finish in {seconds:g} s") from error
    if not ran.returncode:
        return ran.stdout
    message = ran.stderr.decode("utf-8", "replace")
    raise ToolError(message if ran.returncode == REFUSED else describe_ending(ran.returncode))


def main(memory: str, tool: str, version: str = "") -> None:
    """In the child process: pass the model on stdin through a tool, and write the result to stdout."""
    limit_memory(allocated_bytes() + int(memory))
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    try:
        if tool == "optimize":
            import onnxoptimizer

            result = onnxoptimizer.optimize(model).SerializeToString()
        else:
            from onnx import version_converter

            result = version_converter.convert_version(model, int(version)).SerializeToString()
    except Exception as error:  # the exceptions of a C++ core depend on the tool
        sys.stderr.write(str(error) or type(error).__name__)
        raise SystemExit(REFUSED) from None
    sys.stdout.buffer.write(result)
