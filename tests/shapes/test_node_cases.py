"""onnx's own test cases of every operator: the dims and elements that we infer against their expected outputs."""

from __future__ import annotations

import numpy as np
import onnx
from node_cases import node_cases
from truth import Truth, problems

from graphkit.model import Model
from graphkit.shapes import infer


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


def check(proto: onnx.ModelProto, expected: list[object], assignment: dict[str, int], truth: Truth) -> None:
    shapes = infer(Model.from_proto(proto))
    truth.wrong += [str(finding) for finding in shapes.findings]
    for value, array in zip(shapes.model.graph.outputs, expected, strict=False):
        if isinstance(array, np.ndarray):
            truth.tensors += 1
            truth.known += shapes[value].is_known
            truth.wrong += list(problems(shapes[value], array, assignment, truth))


def test_every_operator_is_as_onnx_expects():
    truth = Truth()
    for name, model, inputs, outputs in node_cases():
        before = len(truth.wrong)
        if "_expanded" not in name:  # the same as a function, which has many nodes
            check(model, outputs, {}, truth)
        with_symbols, assignment = symbolic(model, inputs)
        check(with_symbols, outputs, assignment, truth)
        truth.wrong[before:] = [f"{name}: {text}" for text in truth.wrong[before:]]
    assert not truth.wrong, truth.wrong[:5]
    assert truth.known > 0.85 * truth.tensors
