"""The graph after onnxoptimizer's default passes, for counting only.

The optimizer sees tensors whose bytes stay in the file as empty, and may merge them as duplicates. Its result has the
right nodes, but must never be written as a model. The optimizer runs in a process of its own, because some broken
models crash it.
"""

from __future__ import annotations

import onnx

from graphkit.errors import ModelError
from graphkit.model import Model, ModelLike, as_model
from graphkit.runtime.optimizing import optimize
from graphkit.runtime.tools import ToolError

__all__ = ["optimized"]


def optimized(model: ModelLike) -> Model:
    """Return a copy of the graph after `onnxoptimizer.optimize` with its default passes.

    Returns:
        A model to count the nodes of; its weights are not all there.

    Raises:
        ModelError: onnxoptimizer fails on the model.

    Example:
        >>> graphkit.optimized(graphkit.load("example:causal-attention"))
        Model('main_graph', 139 nodes)
    """
    model = as_model(model)
    try:
        serialized = optimize(model.proto.SerializeToString())
    except ToolError as error:
        raise ModelError(
            f"onnxoptimizer fails: {' '.join(str(error).split())[:200]}",
            file=model.file,
            hint="report without --optimize",
        ) from error
    return Model.from_proto(onnx.ModelProto.FromString(serialized))
