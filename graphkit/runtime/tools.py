"""Pass a model through a tool of others in a child process, because some models crash such tools.

A tool is a module whose `main` calls `serve` with a function from a model to another one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import onnx

from graphkit.runtime.limits import DEFAULT_LIMITS, allocated, limit_memory
from graphkit.runtime.process import command, ending

__all__ = ["ToolError", "run_tool", "serve"]

REFUSED = 3  # exit code where the tool raises; what it says goes to stderr


class ToolError(Exception):
    """A tool raises, dies, or takes too long."""


def run_tool(module: str, model: bytes, *arguments: str) -> bytes:
    """Return the result of running the tool in a module on a serialized model.

    Raises:
        ToolError: It fails, or takes too much time or memory.
    """
    seconds = DEFAULT_LIMITS.time(0)
    started = command(module, str(DEFAULT_LIMITS.bytes()), *arguments)
    try:
        ran = subprocess.run(started, input=model, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"it does not finish in {seconds:g} s") from error
    if not ran.returncode:
        return ran.stdout
    said = ran.stderr.decode("utf-8", "replace")
    raise ToolError(said if ran.returncode == REFUSED else ending(ran.returncode))


def serve(memory: str, tool: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """In the child process: pass the model on stdin through a tool, and write the result to stdout."""
    limit_memory(allocated() + int(memory))
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    try:
        result = tool(model).SerializeToString()
    except Exception as error:  # what a C++ core throws depends on the tool
        sys.stderr.write(str(error) or type(error).__name__)
        raise SystemExit(REFUSED) from None
    sys.stdout.buffer.write(result)
