from __future__ import annotations

import pytest
from rewriting import check, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.npu.reduce_rank import MergeMeanAxes, ReduceRank
from graphkit.passes.registry import NPU_PASSES
from graphkit.rewrite.base import Outcome
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer

PASS = ReduceRank()


def graph(nodes: str, data: str = "float[2, 3, 4]", inits: str = "", opset: int = 17) -> Model:
    return model_of(f"g ({data} x) => (y) <{inits}> {{ {nodes} }}", opset)


def highest(model: Model) -> int:
    shapes = infer(model)
    return max(
        shapes[value].rank or 0 for node in model.graph.nodes for value in (*node.inputs, *node.outputs) if value
    )


def around(nodes: str, dims: str, after: str, inits: str = "", opset: int = 17, data: str = "float[2, 3, 48]") -> Model:
    """Return a model that reshapes to five axes or more, works there, and reshapes back."""
    size = dims.count(",") + 1, after.count(",") + 1
    all_inits = f"int64[{size[0]}] up = {{{dims}}}, int64[{size[1]}] down = {{{after}}}" + (
        f", {inits}" if inits else ""
    )
    return graph(f"a = Reshape (x, up) {nodes} y = Reshape (b, down)", data, all_inits, opset)


LOWERED = {
    "elementwise": around("b = Relu (a)", "2, 3, 2, 4, 6", "6, 48"),
    "qkv": around("b = Transpose <perm = [2, 0, 3, 1, 4]> (a)", "2, 3, 3, 4, 4", "3, 2, 12, 4"),
    "windows": around("b = Transpose <perm = [0, 1, 3, 2, 4, 5]> (a)", "2, 3, 2, 2, 4, 3", "24, 12"),
    "pixel shuffle": around("b = Transpose <perm = [0, 1, 4, 2, 5, 3]> (a)", "1, 3, 4, 2, 3, 4", "1, 3, 12, 8"),
    "a Transpose without perm": around("b = Transpose (a)", "2, 3, 2, 4, 6", "6, 48"),
    "no neighbours stay together": around("b = Transpose <perm = [4, 2, 0, 3, 1]> (a)", "2, 3, 2, 4, 6", "6, 48"),
    "broadcast": around("b = Add (a, c)", "2, 3, 1, 8, 6", "6, 48", "float[8, 1] c = {1,2,3,4,5,6,7,8}"),
    "masked scores": around("b = Add (a, c)", "1, 6, 2, 4, 6", "12, 4, 6", "float[1, 6, 1, 1, 1] c = {1,2,3,4,5,6}"),
    "MatMul": around("t = Transpose <perm = [0, 1, 2, 4, 3]> (a) b = MatMul (a, t)", "1, 2, 3, 4, 12", "1, 2, 3, 16"),
    "MatMul with a matrix": around("b = MatMul (a, w)", "1, 2, 3, 24, 2", "6, 24", "float[2, 1] w = {2, 3}"),
    "Softmax": around("b = Softmax <axis = -2> (a)", "2, 3, 1, 4, 12", "6, 48"),
    "ReduceSum of neighbours": around(
        "b = ReduceSum <keepdims = 0> (a, axes)", "2, 3, 2, 4, 6", "2, 3, 6", "int64[2] axes = {2, 3}"
    ),
    "ReduceMean, opset 13": around("b = ReduceMean <axes = [-1], keepdims = 1> (a)", "2, 3, 2, 4, 6", "6, 8", opset=13),
    "LayerNormalization": around(
        "b = LayerNormalization <axis = 4> (a, s)", "2, 3, 2, 4, 6", "6, 48", "float[6] s = {1,2,3,4,5,6}"
    ),
    "Concat": around("b = Concat <axis = 2> (a, a)", "2, 3, 2, 4, 6", "6, 96"),
    "Split": around("c, d = Split <axis = -1> (a) b = Sub (c, d)", "2, 3, 2, 4, 6", "6, 24"),
    "Slice": around(
        "b = Slice (a, s, e, t)", "2, 3, 2, 4, 6", "6, 36", "int64[1] s = {1}, int64[1] e = {9}, int64[1] t = {-2}"
    ),
    "Slice without axes": around(
        "b = Slice (a, s, e)", "1, 2, 3, 8, 6", "1, 3, 48", "int64[2] s = {0, 1}, int64[2] e = {1, 2}"
    ),
    "Pad": around("b = Pad (a, p)", "2, 3, 2, 4, 6", "6, 60", "int64[10] p = {0,0,0,1,0,0,0,0,0,0}"),
    "Expand": around("b = Expand (a, e)", "2, 3, 1, 8, 6", "6, 96", "int64[5] e = {1, 1, 2, 1, 1}"),
    "Tile": around("b = Tile (a, r)", "2, 3, 1, 8, 6", "6, 96", "int64[5] r = {1, 1, 2, 1, 1}"),
    "Cast": around("c = Cast <to = 10> (a) b = Cast <to = 1> (c)", "2, 3, 1, 8, 6", "6, 48"),
    "an empty tensor": around("b = Relu (a)", "0, 3, 2, 4, 6", "0, 144", data="float[0, 3, 48]"),
    "Squeeze of a reshaped tensor": graph(
        "a = Reshape (x, up) b = Relu (a) y = Squeeze (b, one)",
        "float[2, 3, 8]",
        "int64[5] up = {2, 1, 3, 4, 2}, int64[1] one = {1}",
    ),
}


@pytest.mark.cases(8)
@pytest.mark.parametrize("model", LOWERED.values(), ids=LOWERED)
def test_no_tensor_of_rank_5_is_left(model: Model) -> None:
    assert highest(model) > 4
    outcome = check(PASS, model)
    assert highest(outcome.model) <= 4
    assert not outcome.declined


@pytest.mark.parametrize("model", LOWERED.values(), ids=LOWERED)
def test_so_it_is_with_the_other_passes(model: Model) -> None:
    outcome = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    assert highest(outcome.model) <= 4


def test_repeated_heads_of_a_cache_have_four_axes() -> None:
    nodes = "a = Unsqueeze (x, two) b = Expand (a, to) c = Reshape (b, heads) y = Relu (c)"
    inits = "int64[1] two = {2}, int64[5] to = {1, 2, 3, 5, 4}, int64[4] heads = {0, 6, -1, 4}"
    outcome = check(PASS, graph(nodes, "float[1, 2, 5, 4]", inits))
    assert [line.split(" = ")[1].split(" ")[0] for line in lines(outcome.model)] == [
        "Reshape",
        "Expand",
        "Reshape",
        "Relu",
    ]
    assert highest(outcome.model) == 4


def test_two_steps_of_one_form_meet_without_a_reshape() -> None:
    outcome = check(
        lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]),
        around("c = Relu (a) d = Softmax <axis = -1> (c) b = Neg (d)", "1, 2, 3, 4, 12", "6, 48"),
    )
    assert "Reshape" in lines(outcome.model)[0]
    assert sum("Reshape" in line for line in lines(outcome.model)) == 2


def test_the_rank_is_an_option() -> None:
    outcome = check(
        ReduceRank(rank=3),
        graph(
            "a = Reshape (x, up) b = Relu (a) y = Reshape (b, down)",
            inits="int64[4] up = {2, 3, 2, 2}, int64[2] down = {6, 4}",
        ),
    )
    assert highest(outcome.model) == 3


def reason(outcome: Outcome) -> str:
    (found,) = {text.split(": its rank stays above 4: ")[1] for text in reasons(outcome)}
    return found


def test_dims_that_are_no_numbers_are_left() -> None:
    model = graph("a = Unsqueeze (x, u) b = Relu (a) y = Squeeze (b, u)", "float[N, 3, 4]", "int64[2] u = {0, 1}")
    outcome = check(PASS, model)
    assert outcome.model is model
    assert reasons(outcome)[1] == "Relu#1: its rank stays above 4: the dims of 'b' are not all numbers"


DECLINED = {
    "it multiplies a vector": around("b = MatMul (a, w)", "2, 3, 2, 4, 6", "6, 8", "float[6] w = {1,2,3,4,5,6}"),
    "5 of its axes can neither go nor merge": around(
        "b = ReduceSum <keepdims = 1> (a, axes)", "2, 3, 2, 4, 6", "3, 4", "int64[3] axes = {0, 2, 4}"
    ),
    "it names no axes": around("b = ReduceSum (a)", "2, 3, 2, 4, 6", "1"),
    "too many of its axes move apart": around(
        "b = Transpose (a)", "2, 2, 2, 2, 2, 3, 3", "9, 32", data="float[2, 3, 48]"
    ),
    "no rule says how Trilu works with fewer axes": around("b = Trilu (a)", "2, 3, 2, 4, 6", "6, 48"),
}


@pytest.mark.parametrize(("text", "model"), DECLINED.items(), ids=DECLINED)
def test_what_cannot_be_is_declined(text: str, model: Model) -> None:
    outcome = check(PASS, model)
    assert any(text in found for found in reasons(outcome))
    assert highest(outcome.model) > 4


def test_a_graph_input_of_rank_5_stays() -> None:
    outcome = check(
        PASS, model_of("g (float[2, 1, 3, 2, 2] x) => (y) <int64[2] flat = {6, 4}> { y = Reshape (x, flat) }")
    )
    assert reason(outcome) == "'x' is an input"


def test_what_another_node_needs_high_is_declined_there_only() -> None:
    model = around("c = Relu (a) b = Trilu (c)", "2, 3, 2, 4, 6", "6, 48")
    outcome = check(PASS, model)
    assert sum("Trilu" in text for text in reasons(outcome)) >= 1


def test_a_mean_of_the_channels_of_an_image_is_one_of_rows() -> None:
    model = graph("m = ReduceMean <axes = [-1], keepdims = 1> (x) y = Sub (x, m)", "float[1, 6, 8, 4]")
    outcome = check(MergeMeanAxes(), model)
    assert highest(outcome.model) == 4
    assert lines(outcome.model)[1] == "m_low = ReduceMean <axes: ints = [1], keepdims: int = 1> (m_dims)"
    assert MergeMeanAxes().run(outcome.model).model is outcome.model


def test_a_mean_of_rows_or_of_an_axis_in_between_stays() -> None:
    for axis, data in ((-1, "float[6, 4]"), (1, "float[2, 6, 4, 3]")):
        model = graph(f"y = ReduceMean <axes = [{axis}], keepdims = 1> (x)", data)
        assert MergeMeanAxes().run(model).model is model
