from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, lines, model_of

from graphkit.model import Model
from graphkit.passes.npu.decompose_operators import MoveConstantsRight, WriteLayerNormDefaults

OUTER, INNER = "float[4] w = {1, 2, 3, 4}, float e = {0.5}", "(float[2, 4] x, float[2, 4] z) => (y)"


def graph(nodes: str, head: str = INNER, inits: str = OUTER, opset: int = 17) -> Model:
    return model_of(f"g {head} <{inits}> {{ {nodes} }}", opset)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_constant_comes_second(op: str) -> None:
    outcome = check(MoveConstantsRight(), graph(f"a = {op} (w, x) y = {op} (e, a)"))
    assert lines(outcome.model) == [f"a = {op} (x, w)", f"y = {op} (a, e)"]
    assert outcome.changes == ("2 constants moved to the right",)


@pytest.mark.parametrize(
    "nodes",
    ["y = Mul (x, w)", "y = Mul (x, z)", "y = Mul (w, e)", "y = Sub (w, x)", "y = Div (w, x)", "y = Max (w, x)"],
)
def test_what_has_no_constant_on_the_left_or_no_choice_of_sides_stays(nodes: str) -> None:
    model = graph(nodes)
    assert MoveConstantsRight().run(model).model is model


def test_infinity_and_signs_of_zero_stay_with_the_constant_on_the_right() -> None:
    head, inits = "(float[4] x) => (y)", "float[4] w = {0, -1, 2, 3}"
    feeds = [{"x": np.array(row, np.float32)} for row in ([-0.0, 0, np.inf, np.nan], [np.inf, -np.inf, -0.0, 1e38])]
    check(MoveConstantsRight(), graph("a = Mul (w, x) y = Reciprocal (a)", head, inits), feeds=feeds)


def test_a_constant_of_a_body_comes_second() -> None:
    nodes = """y = If (p) <then_branch = t () => (float[2, 4] u) { u = Mul (w, x) },
                           else_branch = f () => (float[2, 4] v) { v = Add (x, w) }>"""
    model = model_of(f"g (float[2, 4] x, bool p) => (float[2, 4] y) <{OUTER}> {{ {nodes} }}")
    outcome = check(MoveConstantsRight(), model, feeds=[{"x": np.ones((2, 4), np.float32), "p": np.array(True)}])
    assert outcome.changes == ("1 constant moved to the right",)


NORM = "(float[2, 3, 4] x) => (y)"


@pytest.mark.parametrize(
    ("before", "count"), [("", 2), ("<axis = -1>", 1), ("<epsilon = 1e-5>", 1), ("<stash_type = 1>", 2)]
)
def test_defaults_of_a_normalization_are_written_out(before: str, count: int) -> None:
    outcome = check(WriteLayerNormDefaults(), graph(f"y = LayerNormalization {before} (x, w, w)", NORM))
    (node,) = outcome.model.graph.nodes
    assert (node.attr("axis", int), node.attr("epsilon", float)) == (-1, np.float32(1e-5))
    assert outcome.changes == (
        f"{count} default{'s' * (count > 1)} of LayerNormalization{'s' * (count > 1)} written out",
    )


def test_defaults_are_written_out_before_opset_17_where_the_operator_is_that_of_onnxruntime() -> None:
    (node,) = WriteLayerNormDefaults().run(graph("y = LayerNormalization (x, w)", NORM, opset=13)).model.graph.nodes
    assert (node.attr("axis", int), node.attr("epsilon", float)) == (-1, np.float32(1e-5))


def test_a_normalization_keeps_its_own_attributes_and_all_its_outputs() -> None:
    scale = f"float[3, 4] k = {{{', '.join(map(str, range(12)))}}}"
    nodes = "a, m, d = LayerNormalization <axis = 1> (x, k) b = Add (a, m) y = Add (b, d)"
    outcome = check(WriteLayerNormDefaults(), graph(nodes, NORM, scale))
    assert outcome.model.graph.nodes[0].attr("axis", int) == 1
    full = graph("y = LayerNormalization <axis = 1, epsilon = 0.5> (x, k)", NORM, scale)
    assert WriteLayerNormDefaults().run(full).model is full
