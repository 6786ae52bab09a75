"""Name the node at which a model ends the process that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx

from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.rewrite.base import copy_proto
from graphkit.runtime.isolation import DiedError, shared_isolation
from graphkit.runtime.limits import Limits
from graphkit.runtime.session import IsolatedSession, RunError

__all__ = ["fatal_error", "run_isolated"]


@contextmanager
def run_isolated(limits: Limits) -> Iterator[None]:
    """Let models run in a process with limits; one that ends it ends the proof, with an error that names the node.

    Raises:
        ModelError: A model ends the process.
    """
    with shared_isolation(limits):
        try:
            yield
        except RunError as error:
            if not error.signal or error.model is None:
                raise
            model = error.model if isinstance(error.model, Model) else load(error.model)
            raise fatal_error(model, error.feed, error.message) from error


def fatal_error(model: Model, feed: Mapping[str, np.ndarray], problem: str) -> ModelError:
    """Return the error for a model that ends its process on all inputs, with the node of the main graph that does.

    Args:
        model: The model, whose nodes are in an order in which they run.
        feed: Some inputs.
        problem: How it ends the process.
    """
    runs, ends = 0, len(model.proto.graph.node)  # how many of the first nodes run, and how many end the process
    while ends - runs > 1:
        count = (runs + ends) // 2
        runs, ends = (runs, count) if _ends_process(_first_nodes(model, count), feed) else (count, ends)
    where = model.graph.nodes[ends - 1].path
    return ModelError(f"onnxruntime cannot run it: {problem}", file=model.label, node=where, hint="correct the node")


def _first_nodes(model: Model, count: int) -> Model:
    """Return a model of so many of the first nodes."""
    proto = copy_proto(model)
    graph = proto.graph
    del graph.node[count:]
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in graph.node[-1].output if name)
    return model.with_proto(proto)


def _ends_process(model: Model, feed: Mapping[str, np.ndarray]) -> bool:
    try:
        with IsolatedSession(model, prepack=False) as session:
            session.run(feed)
    except ModelError as error:
        return isinstance(error.__cause__, DiedError)
    return False
