from __future__ import annotations

import pytest
from rewriting import check, constants, lines, model_of

from graphkit.model import Model
from graphkit.passes.shapes.simplify_reshape import MergeChains

PASS = MergeChains()
INITS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {2}, int64[2] flat = {0, -1}, "
    "int64[3] back = {0, -1, 4}, int64[1] all = {-1}"
)


def graph(nodes: str, data: str = "float[N, L, 4]", opset: int = 17) -> Model:
    return model_of(f"g ({data} x) => (y) <{INITS}> {{ {nodes} }}", opset)


GONE = {
    "Unsqueeze and Squeeze": graph("a = Unsqueeze (x, one) b = Squeeze (a, one) y = Neg (b)"),
    "Reshape there and back": graph("a = Reshape (x, flat) b = Reshape (a, back) y = Neg (b)"),
    "several": graph(
        "a = Reshape (x, flat) b = Unsqueeze (a, zero) c = Squeeze (b, zero) d = Reshape (c, back) y = Neg (d)"
    ),
    "an empty past": graph("a = Reshape (x, flat) b = Reshape (a, back) y = Neg (b)", "float[N, past, 4]"),
    "a Gather of the one element of an axis": graph(
        "a = Unsqueeze (x, one) b = Squeeze (zero) c = Gather <axis = 1> (a, b) y = Neg (c)"
    ),
    "Transposes": graph("a = Transpose <perm = [1, 0, 2]> (x) b = Transpose <perm = [1, 0, 2]> (a) y = Neg (b)"),
}


@pytest.mark.parametrize("model", GONE.values(), ids=GONE)
def test_a_chain_that_changes_nothing_is_gone(model: Model) -> None:
    assert lines(check(PASS, model).model) == ["y = Neg (x)"]


def test_of_a_chain_that_others_read_inside_only_the_end_goes() -> None:
    outcome = check(PASS, graph("a = Unsqueeze (x, one) b = Squeeze (a, one) c = ReduceSum (a) y = Add (b, c)"))
    assert lines(outcome.model) == ["a = Unsqueeze (x, one)", "c = ReduceSum (a)", "y = Add (x, c)"]


def test_reshapes_are_one() -> None:
    outcome = check(PASS, graph("a = Reshape (x, flat) b = Unsqueeze (a, zero) y = Neg (b)", "float[2, L, 4]"))
    assert lines(outcome.model) == ["b = Reshape (x, b_shape)", "y = Neg (b)"]
    assert constants(outcome.model) == {"b_shape": [1, 2, -1]}
    assert outcome.changes == ("1 chain of reshapes merged into one Reshape",)


def test_flatten_is_a_reshape() -> None:
    outcome = check(PASS, graph("a = Flatten <axis = 2> (x) b = Unsqueeze (a, one) y = Neg (b)"))
    assert lines(outcome.model) == ["b = Reshape (x, b_shape)", "y = Neg (b)"]
    assert constants(outcome.model) == {"b_shape": [-1, 1, 4]}


def test_a_chain_starts_where_its_end_can_be_written_as_a_constant() -> None:
    nodes = "a = Reshape (x, flat) b = Transpose <perm = [1, 0]> (a) c = Unsqueeze (b, zero) d = Unsqueeze (c, zero)"
    outcome = check(PASS, graph(f"{nodes} y = Neg (d)", "float[2, L, 4]"))
    assert lines(outcome.model)[2:] == ["d = Reshape (b, d_shape)", "y = Neg (d)"]
    assert constants(outcome.model)["d_shape"] == [1, 1, -1, 2]


def test_transposes_are_one() -> None:
    outcome = check(
        PASS, graph("a = Transpose <perm = [1, 2, 0]> (x) b = Transpose <perm = [0, 2, 1]> (a) y = Neg (b)")
    )
    assert lines(outcome.model) == ["b = Transpose <perm: ints = [1, 0, 2]> (x)", "y = Neg (b)"]
    assert outcome.changes == ("1 pair of Transposes merged",)


def test_a_transpose_that_moves_dims_of_1_is_a_reshape() -> None:
    outcome = check(PASS, graph("a = Transpose <perm = [0, 2, 1, 3]> (x) y = Neg (a)", "float[2, 1, L, 4]"))
    assert lines(outcome.model) == ["a = Reshape (x, a_shape)", "y = Neg (a)"]


STAYS = {
    "a Gather from an axis of several": graph(
        "a = Squeeze (zero) b = Gather <axis = 2> (x, a) c = Unsqueeze (b, last) y = Neg (c)"
    ),
    "a Gather of one element twice": graph(
        "a = Unsqueeze (x, one) b = Concat <axis = 0> (zero, zero) c = Gather <axis = 1> (a, b) y = Neg (c)"
    ),
    "an inner tensor that others read": graph(
        "a = Reshape (x, flat) b = Unsqueeze (a, zero) c = Neg (a) d = Unsqueeze (c, zero) y = Add (b, d)"
    ),
    "an inner tensor that is an output": model_of(
        f"g (float[N, L, 4] x) => (y, a) <{INITS}> {{ a = Reshape (x, flat) b = Unsqueeze (a, zero) y = Neg (b) }}"
    ),
    "two dims that are neither": graph("a = Squeeze (x, zero) b = Unsqueeze (a, last) y = Neg (b)", "float[1, L, N]"),
    "Transposes between which others read": graph(
        "a = Transpose <perm = [1, 2, 0]> (x) b = Transpose <perm = [0, 2, 1]> (a) c = ReduceSum (a) y = Add (b, c)"
    ),
    "Transposes without perm": graph("a = Transpose (x) b = Transpose (a) y = Neg (b)"),
    "one alone": graph("a = Reshape (x, flat) y = Neg (a)"),
    "an input without rank": graph("a = Unsqueeze (x, zero) b = Unsqueeze (a, zero) y = Neg (b)", "float[]"),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    assert not PASS.run(model).changes


def test_a_chain_does_not_leave_its_body() -> None:
    model = model_of(f"""
        g (float[N, L] x) => (float[N, L] y) <{INITS}, int64 two = {{2}}, bool true = {{1}}> {{
            a = Unsqueeze (x, one)
            y = Loop (two, true, x) < body = b (int64 i, bool go, float[N, L] s) => (bool on, float[N, L] t)
                {{ on = Identity (go) q = Squeeze (a, one) t = Add (s, q) }} >
        }}""")
    outcome = check(PASS, model)
    assert not outcome.changes


@pytest.mark.parametrize("opset", [7, 11, 12])
def test_axes_as_attributes(opset: int) -> None:
    nodes = (
        "a = Unsqueeze <axes = [1]> (x) b = Squeeze <axes = [1]> (a) c = "
        "Unsqueeze <axes = [0]> (b) d = Flatten <axis = 1> (c) y = Neg (d)"
    )
    outcome = check(PASS, graph(nodes, "float[N, L, 4]", opset))
    assert lines(outcome.model) == ["d = Reshape (x, d_shape)", "y = Neg (d)"]
    assert constants(outcome.model) == {"d_shape": [1, -1]}


def test_one_that_gives_an_output_becomes_an_identity() -> None:
    assert lines(check(PASS, graph("a = Unsqueeze (x, one) y = Squeeze (a, one)")).model) == ["y = Identity (x)"]


def test_a_chain_that_runs_on_an_empty_batch_stays_where_one_reshape_would_not() -> None:
    model = graph("a = Squeeze (x, one) b = Unsqueeze (a, last) y = Neg (b)", "float[N, 1, L]")
    assert check(PASS, model, [{"N": 2, "L": 3}, {"N": 0, "L": 3}]).model is model


def test_a_chain_that_fails_on_an_empty_batch_too_is_one_reshape() -> None:
    outcome = check(PASS, graph("a = Reshape (x, flat) b = Unsqueeze (a, one) y = Neg (b)"))
    assert lines(outcome.model) == ["b = Reshape (x, b_shape)", "y = Neg (b)"]
    assert constants(outcome.model) == {"b_shape": [0, 1, -1]}


@pytest.mark.parametrize("opset", [11, 17])
def test_a_chain_that_adds_or_takes_away_an_axis_of_1_does_so_by_itself_and_runs_on_an_empty_batch(opset: int) -> None:
    inits = "int64[4] heads = {0, 0, 1, 4}, int64[3] flat = {0, 0, 4}"
    turn = "Transpose <perm = [0, 2, 1, 3]>"
    nodes = f"a = Reshape (x, heads) b = {turn} (a) c = Neg (b) d = {turn} (c) y = Reshape (d, flat)"
    model = model_of(f"g (float[N, L, 4] x) => (y) <{inits}> {{ {nodes} }}", opset)
    outcome = check(PASS, model, [{"N": 2, "L": 3}, {"N": 0, "L": 3}])
    assert [node.op_type for node in outcome.model.proto.graph.node] == ["Unsqueeze", "Neg", "Squeeze"]


def test_axes_are_added_at_once_where_no_constant_shape_will_do() -> None:
    outcome = check(PASS, graph("a = Unsqueeze (x, zero) b = Unsqueeze (a, all) y = Neg (b)", "float[L, N]"))
    assert outcome.changes == ("1 chain of reshapes merged into one Unsqueeze",)
