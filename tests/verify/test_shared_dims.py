"""One name for dims of several inputs: what folds read of them, what proofs say, and sizes that differ in runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sessions import session_of
from small_models import model

import graphkit
from graphkit.equivalence import check_equivalence
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.shapes import DimSpec, infer
from graphkit.verify.rewrite_verifier import verify_rewrite

RNG = np.random.default_rng(0)
# Queries for each picture, as OwlViT has them: exporters call the numbers of both `batch`.
QUERIES = """
g (int64[batch, 6] input_ids, int64[batch, 6] attention_mask, float[batch, 3, 4, 4] pixel_values)
  => (float[batch, places, queries] logits) {
    rows = Gather (table, input_ids)
    kept = Cast <to = 1> (attention_mask)
    wide = Unsqueeze (kept, last)
    valid = Mul (rows, wide)
    texts = ReduceSum <keepdims = 0> (valid, one)
    pictures = Shape <start = 0, end = 1> (pixel_values)
    all = Shape <start = 0, end = 1> (texts)
    each = Div (all, pictures)
    sizes = Concat <axis = 0> (pictures, each, width)
    queries = Reshape (texts, sizes)
    turned = Transpose <perm = [0, 2, 1]> (queries)
    places = Reshape (pixel_values, grid)
    logits = MatMul (places, turned)
}"""
CONSTANTS = {
    "table": RNG.standard_normal((9, 8)).astype(np.float32),
    "last": [-1],
    "one": [1],
    "width": [8],
    "grid": [0, 6, 8],
}


def queries() -> Model:
    return model(QUERIES, **CONSTANTS)


def fed(texts: int, pictures: int) -> dict[str, np.ndarray]:
    return {
        "input_ids": RNG.integers(0, 9, (texts, 6)),
        "attention_mask": RNG.integers(0, 2, (texts, 6)),
        "pixel_values": RNG.standard_normal((pictures, 3, 4, 4)).astype(np.float32),
    }


def logits(made: Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    (found,) = session_of(made).run(None, feed)
    return np.asarray(found)


def test_nothing_is_read_across_inputs_that_no_node_relates() -> None:
    original = queries()
    assert str(infer(original)["logits"]) == "[pixel_values.0, 6, max(1, batch // pixel_values.0)]"
    folded = graphkit.fold(original).model
    assert sum(1 for _ in all_nodes(folded.scopes)) < sum(1 for _ in all_nodes(original.scopes))
    for texts, pictures in ((2, 1), (4, 2), (3, 3), (6, 1)):
        feed = fed(texts, pictures)
        np.testing.assert_array_equal(logits(folded, feed), logits(original, feed), strict=True)


def test_a_proof_by_runs_tries_unlike_sizes() -> None:
    original = queries()
    found = verify_rewrite(original, graphkit.fold(original).model, options=RewriteProofOptions(runs=5))
    assert found.passed
    assert "batch" in found.runs[0].dims
    assert "pixel_values.0" in found.runs[0].dims
    tied = model(QUERIES.replace("each = Div (all, pictures)", "each = Identity (one)"), **CONSTANTS)
    wrong = verify_rewrite(original, tied)
    assert not wrong.passed
    assert any(run.failure and run.dims["batch"] != run.dims["pixel_values.0"] for run in wrong.runs)
    assert not any(run.failure for run in wrong.runs if run.dims["batch"] == run.dims["pixel_values.0"])


def test_sizes_that_are_given_are_proven_at_these() -> None:
    original = queries()
    folded = graphkit.fold(original, dims={"batch": 4, "pixel_values.0": 2}).model
    feed = fed(4, 2)
    np.testing.assert_array_equal(logits(folded, feed), logits(original, feed), strict=True)
    found = verify_rewrite(original, folded, DimSpec.of({"batch": 4, "pixel_values.0": 2}))
    assert found.passed
    assert found.fixed == {"batch": 4, "pixel_values.0": 2}


MASKED = """g (float[n, s] x, float[n, s] mask) => (float[a, b] y) {{
    shape = Shape (x)  wide = Expand ({}, {})  y = Mul (x, wide)
}}"""


def test_what_dims_of_one_name_are_taken_for_is_in_the_headline() -> None:
    """With a mask of one row onnxruntime runs the original, and the Expand of the rewrite does not widen it."""
    original, narrow = model(MASKED.format("mask", "shape")), model(MASKED.format("mask", "rows"), rows=[1, 1])
    found = verify_rewrite(original, narrow)
    assert found.passed
    assert found.proven() == ("Proven bit for bit at every size with one n and s (1 of 1 output), and run once.")
    assert check_equivalence(original, narrow).is_proven
    assert not check_equivalence(original, narrow, dims="apart").proven
    same = model(MASKED.format("mask", "shape").replace("Expand", "Expand "))
    assert verify_rewrite(original, same).proven() == "Proven bit for bit at every size (1 of 1 output), and run once."


def test_an_expression_that_an_input_declares_is_in_the_headline() -> None:
    inputs = "float[a] x, float[b] z, float[a_plus_b] u"
    added = model(f"g ({inputs}) => (int64[1] y) {{ s = Shape (x)  t = Shape (z)  y = Add (s, t) }}")
    whole = model(f"g ({inputs}) => (int64[1] y) {{ y = Shape (u) }}")
    found = verify_rewrite(added, whole)
    assert found.proven().startswith("Proven bit for bit at every size with u.0 = a + b (1 of 1 output)")
    assert verify_rewrite(added, added).proven().startswith("Proven bit for bit at every size (1 of 1 output)")


ROWS = """g (float[n, 4] x, float[n, 4] mask) => (float[a, 4] y) {{
    {}  y = Mul (x, wide)  shown = Identity (y)
}}"""


def test_unlike_sizes_at_which_a_tested_rewrite_fails_are_told() -> None:
    """What normal forms leave open is run with a mask of one row too, which the original takes."""
    original = model(ROWS.format("wide = Identity (mask)"))
    one = "n = IsNaN (mask)  f = Cast <to = 1> (n)  g = Mul (f, f)  h = Sub (g, f)  one = Exp (h)"
    rewritten = model(ROWS.format(f"{one}  s = Shape (x)  same = Mul (mask, one)  wide = Reshape (same, s)"))
    found = verify_rewrite(original, rewritten)
    assert found.passed
    assert found.equivalence.unproven
    assert "not covered: unlike sizes of dims of one name, as at n=" in found.proven()
    assert "mask.0=1" in found.proven()
    like = model(ROWS.format(f"{one}  wide = Mul (mask, one)"))
    assert "unlike sizes" not in verify_rewrite(original, like).proven()


def test_a_contract_says_that_dims_of_one_name_are_equal() -> None:
    """What a host feeds by a contract has one size for each name of a dim."""
    text = "g (float[n] x, float[n] z) => (int64[1] y) {{ y = Shape ({}) }}"
    pair = model(text.format("x")), model(text.format("z"))
    assert check_equivalence(*pair).shared_dims == ("one n",)
    assert not check_equivalence(*pair, dims="apart").proven
    both = "y = Shape (x)  w = Shape (z)", "y = Shape (z)  w = Shape (x)"
    text = "g (float[n] x, float[n] z) => (int64[1] y, int64[1] w) {{ {} }}"
    pair = model(text.format(both[0])), model(text.format(both[1]))
    assert not check_equivalence(*pair).proven
    assert check_equivalence(*pair, dims="named").is_proven


def test_hazards_are_those_of_sizes_that_the_inputs_claim() -> None:
    text = "g (float[n, n] x, float[n] z) => (float[a, b] y) { t = Transpose <perm = [1, 0]> (x)  y = MatMul (x, x) }"
    assert graphkit.hazards(model(text)).hazards == ()
    assert graphkit.hazards(model(text.replace("n, n", "n, m"))).hazards


@pytest.mark.parametrize("edges", [True, False])
def test_dims_that_a_rewrite_gives_two_sizes_are_two(edges: bool) -> None:
    """`set-dims x.1=8` sets one of two dims of a name; the proof is about sizes of the other one."""
    text = "g (float[n, n] x) => (float[a, b] y) { y = Neg (x) }"
    original = model(text)
    made = graphkit.fold(original, dims={"x.1": 8}).model
    spec = DimSpec.of({"x.1": 8}) if edges else DimSpec()
    found = verify_rewrite(original, replace(made, is_edited=True), spec)
    assert (found.fixed, found.passed) == ({"x.1": 8}, edges)
    assert {run.dims["n"] for run in found.runs} != {8}
