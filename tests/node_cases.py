"""onnx's own test cases of every operator, made once a process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple
from unittest import mock

import numpy as np
import onnx

__all__ = ["NodeCase", "node_cases"]


class NodeCase(NamedTuple):
    """A model of one operator, what it is fed, and what onnx's reference gives; pooled elements are zeros."""

    name: str
    model: onnx.ModelProto
    inputs: list[object]
    outputs: list[object]


@cache
def node_cases() -> tuple[NodeCase, ...]:
    """Return the cases; onnx makes them while it is imported."""
    with (
        warnings.catch_warnings(),
        mock.patch("onnx.reference.ops.op_pool_common.pool", _zeros),
        mock.patch("onnx.backend.test.case.base.process_snippet"),  # source code for onnx's documentation
    ):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = [case for case in collect_testcases(None) if case.model is not None]
    return tuple(NodeCase(case.name, case.model, *map(list, case.data_sets[0])) for case in found)


def _zeros(
    padded: np.ndarray,
    x_shape: Sequence[int],
    _kernel: Sequence[int],
    _strides: Sequence[int],
    out_shape: Sequence[int],
    *_: object,
    **__: object,
) -> np.ndarray:
    """Return zeros in place of what a pool gives: onnx's reference takes 10 seconds for numbers that no test reads."""
    return np.zeros([*x_shape[:2], *out_shape], padded.dtype)
