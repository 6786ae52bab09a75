"""Run onnxoptimizer in a child process, because some broken models crash it."""

from __future__ import annotations

import subprocess
import sys

from graphkit.runtime.limits import DEFAULT_LIMITS, allocated, limit_memory
from graphkit.runtime.process import command, ending

__all__ = ["OptimizerError", "main", "optimize"]

REFUSED = 3  # exit code where onnxoptimizer raises; what it says goes to stderr


class OptimizerError(Exception):
    """onnxoptimizer raises, dies, or takes too long."""


def optimize(model: bytes) -> bytes:
    """Return a serialized model after onnxoptimizer's default passes.

    Raises:
        OptimizerError: It fails, or takes too much time or memory.
    """
    seconds = DEFAULT_LIMITS.time(0)
    started = command("graphkit.runtime.optimizing", str(DEFAULT_LIMITS.bytes()))
    try:
        ran = subprocess.run(started, input=model, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise OptimizerError(f"it does not finish in {seconds:g} s") from error
    if not ran.returncode:
        return ran.stdout
    said = ran.stderr.decode("utf-8", "replace")
    raise OptimizerError(said if ran.returncode == REFUSED else ending(ran.returncode))


def main(memory: str) -> None:
    """Optimize the model on stdin, and write it to stdout."""
    import onnx
    import onnxoptimizer

    limit_memory(allocated() + int(memory))
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    try:
        result = onnxoptimizer.optimize(model).SerializeToString()
    except Exception as error:  # what its C++ core throws depends on the pass
        sys.stderr.write(str(error) or type(error).__name__)
        raise SystemExit(REFUSED) from None
    sys.stdout.buffer.write(result)
