from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.npu.gather_to_slice import GatherToSlice

PASS = GatherToSlice()
INTERLEAVED = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def graph(nodes: str, data: str = "float[6, 4, 5] x", inits: str = "", opset: int = 17) -> Model:
    return model_of(f"g ({data}) => (y) <{inits}> {{ {nodes} }}", opset)


def gather(indices: object, axis: int = 0, data: str = "float[6, 4, 5] x", opset: int = 17) -> Model:
    nodes = f"g ({data}) => (y) {{ y = Gather <axis = {axis}> (x, i) }}"
    return model_of(nodes, opset, i=np.array(indices, np.int64))


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


GONE = {
    "a scalar": (gather(2), ["Slice", "Reshape"]),
    "the last": (gather(-1, 1), ["Slice", "Reshape"]),
    "a list of one": (gather([3], 2), ["Slice"]),
    "a range": (gather([1, 2, 3], -2), ["Slice"]),
    "a range that ends at the end": (gather([4, 5]), ["Slice"]),
    "everything": (gather([0, 1, 2, 3, 4, 5]), ["Reshape"]),
    "a matrix of indices": (gather([[1, 2], [3, 4]]), ["Slice", "Reshape"]),
    "int32": (graph("y = Gather (x, i)", inits="int32[2] i = {1, 2}"), ["Slice"]),
    "halves swapped": (gather([3, 4, 5, 0, 1, 2]), ["Slice", "Slice", "Concat"]),
    "repeats": (gather([0, 0, 1]), ["Slice", "Slice", "Concat"]),
    "every other": (gather([0, 2, 4, 6, 8], data="float[10, 3] x"), ["Slice"]),
    "interleaved": (gather(INTERLEAVED, 1, "float[2, 12, 5] x"), ["Reshape", "Transpose", "Reshape"]),
    "interleaved rows only": (gather(INTERLEAVED, data="float[12] x"), ["Reshape", "Transpose", "Reshape"]),
    "a dynamic dim beside": (gather(1, 1, "float[N, 4, 5] x"), ["Slice", "Reshape"]),
    "an empty dim beside": (gather(1, 1, "float[0, 4, 5] x"), ["Slice", "Reshape"]),
    "GatherND of one place": (
        graph("y = GatherND (x, i)", inits="int64[1, 2] i = {2, -1}"),
        ["Slice", "Slice", "Reshape"],
    ),
    "GatherND along an axis": (
        graph("y = GatherND (x, i)", inits="int64[3, 2] i = {2, 1, 2, 2, 2, 3}"),
        ["Slice", "Slice", "Reshape"],
    ),
    "GatherND in a batch": (
        graph("y = GatherND <batch_dims = 1> (x, i)", "float[2, 4, 5] x", "int64[2, 1] i = {3, 3}"),
        ["Slice", "Reshape"],
    ),
    "GatherElements": (
        graph("y = GatherElements <axis = 1> (x, i)", "float[2, 4] x", "int64[2, 2] i = {1, 2, 1, 2}"),
        ["Slice"],
    ),
    "GatherElements of fewer rows": (
        graph("y = GatherElements <axis = 1> (x, i)", "float[3, 4] x", "int64[2, 2] i = {1, 2, 1, 2}"),
        ["Slice", "Slice"],
    ),
    "booleans": (gather([1, 2], data="bool[6] x"), ["Gather"]),
}  # fmt: skip


@pytest.mark.parametrize(("model", "expected"), GONE.values(), ids=GONE)
def test_a_gather_with_constant_indices_is_gone(model: Model, expected: list[str]) -> None:
    outcome = check(PASS, model)
    assert operators(outcome.model) == expected
    assert not outcome.declined


def test_selects_that_take_everything_are_a_split() -> None:
    nodes = "k = Gather <axis = 3> (x, one) q = Gather <axis = 3> (x, zero) v = Gather <axis = 3> (x, two)"
    inits = "int64 zero = {0}, int64 one = {1}, int64[1] two = {2}"
    outcome = check(
        PASS,
        graph(
            f"{nodes} a = Sub (q, k) b = Unsqueeze (a, at) y = Mul (b, v)",
            "float[1, 2, 4, 3, 8] x",
            f"{inits}, int64[1] at = {{3}}",
        ),
    )
    assert lines(outcome.model)[:3] == [
        "x_part, x_part_1, v = Split <axis: int = 3> (x, x_parts)",
        "k = Reshape (x_part_1, q_shape)",
        "q = Reshape (x_part, q_shape)",
    ]
    assert "Gather" not in operators(outcome.model)


def test_a_split_of_an_old_opset_has_its_sizes_as_an_attribute() -> None:
    nodes = "a = Gather (x, lo) b = Gather (x, hi) y = Concat <axis = 1> (b, a)"
    outcome = check(PASS, graph(nodes, "float[4, 3] x", "int64[2] lo = {0, 1}, int64[2] hi = {2, 3}", opset=11))
    assert lines(outcome.model)[0] == "a, b = Split <axis: int = 0, split: ints = [2, 2]> (x)"


def test_selects_that_leave_something_out_are_slices() -> None:
    nodes = "a = Gather (x, lo) b = Gather (x, hi) y = Add (b, a)"
    outcome = check(PASS, graph(nodes, "float[4, 3] x", "int64 lo = {0}, int64 hi = {2}"))
    assert operators(outcome.model) == ["Slice", "Reshape", "Slice", "Reshape", "Add"]


def test_what_is_selected_twice_is_sliced_twice() -> None:
    nodes = "a = Gather (x, lo) b = Gather (x, lo) c = Gather (x, hi) d = Add (b, a) y = Add (c, d)"
    outcome = check(PASS, graph(nodes, "float[2, 3] x", "int64 lo = {0}, int64 hi = {1}"))
    assert "Split" not in operators(outcome.model)


def test_a_graph_output_is_given_by_a_split() -> None:
    head = "g (float[2, 3] x) => (float[1, 3] a, float[3] b) <int64[1] lo = {0}, int64 hi = {1}>"
    outcome = check(PASS, model_of(f"{head} {{ a = Gather (x, lo) b = Gather (x, hi) }}"))
    assert operators(outcome.model) == ["Split", "Reshape"]


DECLINED = {
    "its indices are computed": graph("y = Gather (x, i)", "float[6, 4] x, int64[2] i"),
    "its table is a constant: extract-embedding makes an input of it": graph(
        "y = Gather (t, x)", "int64[2] x", "float[2, 2] t = {1, 2, 3, 4}"
    ),
    "its data has no fixed dim along axis 0": graph("y = Gather (x, i)", "float[N, 4] x", "int64 i = {0}"),
    "its indices are 6 separate pieces": gather([0, 5, 1, 4, 2, 3, 0]),
    "its indices differ along other axes": graph(
        "y = GatherElements <axis = 1> (x, i)", "float[2, 4] x", "int64[2, 2] i = {1, 2, 3, 0}"
    ),
    "its indices differ along the batch": graph(
        "y = GatherND <batch_dims = 1> (x, i)", "float[2, 4, 5] x", "int64[2, 1] i = {3, 2}"
    ),
    "its indices move along several axes": graph("y = GatherND (x, i)", inits="int64[2, 2] i = {0, 1, 1, 0}"),
    "it takes nothing": graph("y = Gather (x, i)", inits="int64[0] i = {}"),
}


@pytest.mark.parametrize(("reason", "model"), DECLINED.items(), ids=DECLINED)
def test_what_is_no_slice_is_declined(reason: str, model: Model) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [reason]


def test_an_index_outside_of_its_data_is_declined() -> None:
    outcome = PASS.run(graph("y = Gather (x, i)", "float[4, 3] x", "int64 i = {4}"))
    assert operators(outcome.model) == ["Gather"]


def test_what_takes_the_elements_of_a_shape_is_left_without_a_word() -> None:
    outcome = check(PASS, graph("s = Shape (x) y = Gather (s, i)", "float[N, 3] x", "int64 i = {0}"))
    assert operators(outcome.model) == ["Shape", "Gather"]
    assert not outcome.declined
