"""Many small models at once, each run on several feeds, in a process that one of them may end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.runtime.isolation import Process, current_process, shared_isolation
from graphkit.runtime.worker_process import DiedError
from graphkit.time_limit import check_time

__all__ = ["Feed", "SmallModel", "run_small_models"]

AT_ONCE = 128
# Arrays, or zeros by their dtype and dims; None to run nothing, and tell the dims that onnxruntime infers, -1 for any.
Feed = Mapping[str, np.ndarray | tuple[str, Sequence[int]]] | None
SmallModel = tuple[bytes, Sequence[Feed]]
Found = list[list[np.ndarray] | str]  # the outputs for each feed, or why it does not run


def run_small_models(models: Sequence[SmallModel]) -> list[Found | str]:
    """Load models without optimizations, and run each on its feeds.

    Args:
        models: Serialized models, each with feeds.

    Returns:
        The outputs of each for each feed, or why it does not run; one text where it does not load, or ends the process.
    """
    with shared_isolation():
        process = current_process()
        assert process is not None
        starts = range(0, len(models), AT_ONCE)
        return [found for start in starts for found in _run_models(process, models[start : start + AT_ONCE])]


def _run_models(process: Process, models: Sequence[SmallModel]) -> list[Found | str]:
    check_time()
    parts = [[np.frombuffer(content, np.uint8), list(feeds)] for content, feeds in models]
    limits = process.limits
    request = {"do": "small models", "memory": limits.bytes(), "most": limits.outputs()}
    try:
        answer = process.ask(request, limits.time(0), parts=parts)
    except DiedError as error:
        if len(models) == 1:
            return [error.why]
        half = len(models) // 2
        return _run_models(process, models[:half]) + _run_models(process, models[half:])
    if "error" in answer:
        return [answer["error"]] * len(models)
    found: list[Found | str] = process.worker.take(answer["values"])  # type: ignore[assignment]
    return found
