from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import pytest
from rewriting import check, constants, lines, model_of

from graphkit.model import Model
from graphkit.passes.shapes.simplify_slice import MergeSlices

PASS = MergeSlices()
INITS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {99}, int64[1] last = {-1}"


def graph(nodes: str, opset: int = 17, head: str = "(float[N, L, 4] x) => (y)") -> Model:
    return model_of(f"g {head} <{INITS}> {{ {nodes} }}", opset)


def test_all_readers_of_a_slice_cut_what_it_cut() -> None:
    model = graph(
        """a = Slice (x, zero, end, one, two) b = Slice (a, zero, end, two, two) c = Slice (a, one, end, two, two)
        y = Concat <axis = 2> (b, c)"""
    )
    outcome = check(PASS, model)
    assert lines(outcome.model) == [
        "b = Slice (x, b_starts, b_ends, b_axes, b_steps)",
        "c = Slice (x, c_starts, b_ends, b_axes, b_steps)",
        "y = Concat <axis: int = 2> (b, c)",
    ]
    assert constants(outcome.model) == {
        "b_starts": [0, 0],
        "b_ends": [99, 99],
        "b_axes": [1, 2],
        "b_steps": [2, 2],
        "c_starts": [0, 1],
    }
    assert outcome.changes == ("2 Slices merged with the one before",)


def test_a_chain_is_one() -> None:
    outcome = check(
        PASS, graph("a = Slice (x, zero, one) b = Slice (a, zero, last, two) c = Slice (b, last, end, one) y = Neg (c)")
    )
    assert lines(outcome.model) == ["c = Slice (x, c_starts, c_ends, c_axes)", "y = Neg (c)"]
    assert constants(outcome.model) == {"c_starts": [0, -1, 0], "c_ends": [1, 99, -1], "c_axes": [0, 1, 2]}


KEPT = {
    "the same axis": graph("a = Slice (x, zero, last, two) y = Slice (a, one, end, last)"),
    "another reader": graph(
        "a = Slice (x, zero, last, two) b = Slice (a, one, end, one) c = ReduceSum (a) y = Mul (b, c)"
    ),
    "an output": graph(
        "z = Slice (x, zero, last, two) y = Slice (z, one, end, one)", head="(float[N, L, 4] x) => (y, z)"
    ),
    "bounds at run time": graph(
        "a = Slice (x, zero, n, two) y = Slice (a, one, end, one)", head="(float[N, L, 4] x, int64[1] n) => (y)"
    ),
    "bounds with a default": graph(
        "a = Slice (x, zero, n, two) y = Slice (a, one, end, one)",
        head="(float[N, L, 4] x, int64[1] n = {2}) => (y)",
    ),
    "an unknown rank": graph(
        "r = Reshape (x, s) a = Slice (r, zero, one, two) y = Slice (a, one, end, one)",
        head="(float[N, L, 4] x, int64[K] s) => (float[N, L, 4] y)",
    ),
    "attributes": graph(
        "a = Slice <starts = [0], ends = [1], axes = [1]> (x) y = Slice <starts = [0], ends = [1], axes = [2]> (a)", 9
    ),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model


def test_a_step_that_no_int64_holds_stays() -> None:
    model = graph("a = Slice (x, zero, last, two, steps) y = Slice (a, one, end, one)")
    steps = onnx.numpy_helper.from_array(np.array([1 << 63], np.uint64), "steps")  # which onnxruntime refuses
    model.proto.graph.initializer.append(steps)
    model = Model.from_proto(model.proto)
    assert PASS.run(model).model is model
