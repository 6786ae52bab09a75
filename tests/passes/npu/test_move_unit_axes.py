from __future__ import annotations

import pytest
from rewriting import check, lines, model_of

from graphkit.model import Model
from graphkit.passes.npu.reduce_rank import MoveUnitAxesFirst
from graphkit.passes.registry import NPU_PASSES
from graphkit.rewrite import run_to_fixpoint

PASS = MoveUnitAxesFirst()
INITS = (
    "int64[4] rows = {1, 1, 2, 4}, int64[4] heads = {1, 2, 1, 4}, int64[1] last = {-1}, int64[1] third = {2}, "
    "float[4] weight = {1, 2, 3, 4}, float[2, 1] scale = {2, 3}, float two = {2.0}, float little = {0.5}, "
    "int64[4] wide = {1, 1, 2, 4}"
)
NORM = "q = Pow (a, two) m = ReduceMean (q, last) s = Add (m, little) r = Sqrt (s) d = Div (a, r) n = Mul (d, weight)"


def graph(nodes: str, head: str = "(float[1, 1, 8] x) => (y)", inits: str = INITS) -> Model:
    return model_of(f"g {head} <{inits}> {{ {nodes} }}", 18)


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def test_a_norm_of_the_heads_of_a_token_is_computed_where_they_are_read() -> None:
    outcome = check(PASS, graph(f"a = Reshape (x, rows) {NORM} h = Reshape (n, heads) y = Neg (h)"))
    assert outcome.changes == ("1 Reshape of axes of 1 made part of those before",)
    plain = run_to_fixpoint(outcome.model, [kind() for kind in NPU_PASSES]).model
    assert operators(plain) == ["Reshape", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Neg"]
    assert plain.graph.nodes[0].input(1).name.endswith("shape")


MOVES = {
    "a Transpose of an axis of 1": graph(
        f"a = Reshape (x, rows) {NORM} h = Transpose <perm = [0, 2, 1, 3]> (n) y = Neg (h)"
    ),
    "an output of the model": graph("a = Reshape (x, rows) n = Softmax <axis = -1> (a) y = Reshape (n, heads)"),
    "two that read it": graph(
        "a = Reshape (x, rows) n = Relu (a) h = Reshape (n, heads) g = Reshape (n, heads) y = Sub (h, g)"
    ),
    "two Reshapes that lead there": graph(
        "a = Reshape (x, rows) b = Unsqueeze (z, last) c = Add (a, b) y = Reshape (c, heads)",
        "(float[1, 1, 8] x, float[1, 1, 2] z) => (y)",
    ),
}


@pytest.mark.parametrize("model", MOVES.values(), ids=MOVES)
def test_what_moves_axes_of_1_is_part_of_what_comes_before(model: Model) -> None:
    outcome = check(PASS, model)
    assert outcome.changes[0].endswith("made part of those before")


STAY = {
    "what else reads it": graph("a = Reshape (x, rows) n = Relu (a) h = Reshape (n, heads) y = Sub (h, n)"),
    "an output on the way": graph(
        "a = Reshape (x, rows) n = Relu (a) y = Reshape (n, heads)", "(float[1, 1, 8] x) => (y, n)"
    ),
    "an axis that moves is summed": graph(
        "a = Reshape (x, rows) n = ReduceMean (a, third) b = Add (a, n) y = Reshape (b, heads)"
    ),
    "a constant along an axis that moves": graph(
        "a = Reshape (x, rows) n = Mul (a, scale) y = Reshape (n, heads)"
    ),
    "sizes that are written down": graph("a = Reshape (x, rows) n = Expand (a, wide) y = Reshape (n, heads)"),
    "no Reshape before": graph("n = Relu (x) y = Reshape (n, heads)", "(float[1, 1, 2, 4] x) => (y)"),
    "more than axes of 1": graph("a = Reshape (x, rows) n = Relu (a) y = Transpose <perm = [0, 1, 3, 2]> (n)"),
    "symbolic dims": graph("a = Unsqueeze (x, last) n = Relu (a) y = Transpose <perm = [1, 0, 2, 3]> (n)",
                           "(float[N, 1, 8] x) => (y)"),
    "read by a product of as many dims": graph(
        "a = Reshape (x, rows) n = Relu (a) h = Reshape (n, heads) p = MatMul (z, n) y = Add (h, p)",
        "(float[1, 2, 1, 2] x, float[1, 2, 1, 2] z) => (y)",
        INITS.replace("{1, 1, 2, 4}", "{1, 1, 2, 2}").replace("{1, 2, 1, 4}", "{1, 2, 1, 2}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", STAY.values(), ids=STAY)
def test_what_does_not_treat_the_axes_alike_stays(model: Model) -> None:
    assert PASS.run(model).model is model


def test_the_form_is_in_the_plain_ones_of_any_target() -> None:
    model = graph(f"a = Reshape (x, rows) {NORM} y = Reshape (n, heads)")
    plain = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model).model
    assert operators(plain).count("Reshape") == 1, lines(plain)
