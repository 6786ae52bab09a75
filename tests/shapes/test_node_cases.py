"""onnx's own test cases of every operator: the dims and elements that we infer against their expected outputs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from node_cases import node_cases, symbolic
from truth import Truth, problems

from graphkit.model import Model
from graphkit.shapes import infer


def check(proto: onnx.ModelProto, expected: list[object], assignment: dict[str, int], truth: Truth) -> None:
    shapes = infer(Model.from_proto(proto))
    truth.wrong += [str(finding) for finding in shapes.findings]
    for value, array in zip(shapes.model.graph.outputs, expected, strict=False):
        if isinstance(array, np.ndarray):
            truth.tensors += 1
            truth.known += shapes[value].is_known
            truth.wrong += list(problems(shapes[value], array, assignment, truth))


@pytest.mark.parametrize(("most", "share"), [(3, 0.82), pytest.param(1000, 0.85, marks=pytest.mark.slow)])
def test_every_operator_is_as_onnx_expects(most: int, share: float) -> None:
    """In so many cases of each operator in each version at most."""
    truth, count = Truth(), Counter[tuple[str, int]]()
    for name, model, inputs, outputs in node_cases():
        kind = model.graph.node[0].op_type, model.opset_import[0].version
        count[kind] += 1
        if count[kind] > most:
            continue
        before = len(truth.wrong)
        if "_expanded" not in name:  # the same as a function, which has many nodes
            check(model, outputs, {}, truth)
        with_symbols, assignment = symbolic(model, inputs)
        check(with_symbols, outputs, assignment, truth)
        truth.wrong[before:] = [f"{name}: {text}" for text in truth.wrong[before:]]
    assert not truth.wrong, truth.wrong[:5]
    assert truth.known > share * truth.tensors
