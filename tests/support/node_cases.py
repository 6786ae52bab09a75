"""onnx's own test cases of every operator, made once a process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple
from unittest import mock

import numpy as np
import onnx

__all__ = ["NodeCase", "node_cases", "symbolic"]


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


def symbolic(proto: onnx.ModelProto, arrays: list[object]) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return a model with a symbol for each dim and its small integer inputs as constants, and what the symbols are."""
    model, assignment = onnx.ModelProto(), {}
    model.CopyFrom(proto)
    for info, array in zip(list(model.graph.input), arrays, strict=False):
        if not isinstance(array, np.ndarray):
            continue
        if (array.dtype.kind in "ib" and array.size <= 16) or info.name in ("scales", "roi", "k", "depth"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
            model.graph.input.remove(info)
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value != 1:
                name = f"{info.name}_{axis}" if dim.dim_value else f"past_{info.name}_{axis}"
                assignment[name] = dim.dim_value
                dim.dim_param = name
    del model.graph.value_info[:]
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return model, assignment
