"""Models with random weights, rewritten by a pass that changes the last digits, and run before and after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx.checker
from rewriting import feeds_of, model_of
from sessions import run

from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass

__all__ = ["TOLERANCE", "check_close", "operators", "random_model"]

TOLERANCE = 1e-6  # of the largest magnitude: an element of float32 has 24 bits, and sums here have few terms


def random_model(text: str, opset: int = 17, dtype: type = np.float32, **dims: tuple[int, ...]) -> Model:
    """Return the model of a graph in ONNX text; keywords become initializers of these dims, with random numbers.

    Names that start with `v` are variances: their numbers are positive.
    """
    rng = np.random.default_rng(0)
    numbers = {name: rng.uniform(0.5 if name.startswith("v") else -2, 2, shape) for name, shape in dims.items()}
    return model_of(text, opset, **{name: array.astype(dtype) for name, array in numbers.items()})


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.proto.graph.node]


def check_close(step: Pass, model: Model, sizes: Mapping[str, int] = {"N": 3}, tolerance: float = TOLERANCE) -> Outcome:
    """Rewrite; the result is valid, as large, and gives what the original gives within a tolerance of the magnitude."""
    before = model.proto.SerializeToString(deterministic=True)
    outcome = step.run(model)
    assert model.proto.SerializeToString(deterministic=True) == before
    complete = Model.from_proto(outcome.model.restore())
    onnx.checker.check_model(complete.proto, full_check=True)
    feeds = feeds_of(model, sizes)
    for one, two in zip(run(model, feeds), run(complete, feeds), strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        largest = np.abs(one.astype(np.float64)).max(initial=0.0)
        assert np.abs(one.astype(np.float64) - two).max(initial=0.0) <= tolerance * largest
    return outcome
