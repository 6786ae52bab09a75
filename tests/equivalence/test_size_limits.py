"""Conditions of a proof are numbers that are evaluated: where one does not hold, nothing is proven."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import model

from graphkit.equivalence import Equivalence, OutputProof, check_equivalence
from graphkit.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.equivalence.result import SizeLimit
from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.shapes import Expr, floor_div, maximum, symbol
from graphkit.verify import verify_rewrite

N, M = symbol("n"), symbol("m")
BOUNDED = symbol("k", 1, 8)
PROVEN = (OutputProof("y", "proven", "bit for bit"),)


@pytest.mark.parametrize(
    ("expr", "most", "text"),
    [
        (2 * N - 4, 9, "n <= 6"),
        (4 * N * M, (1 << 31) - 1, "m*n <= 536,870,911"),
        (-N - 3, 5, "n >= -8"),
        (5 - 2 * N, -3, "n >= 4"),
        (N + 3 * M, 7, "n + 3*m <= 7"),
    ],
)
def test_a_limit_is_told_in_its_plainest_form(expr: Expr, most: int, text: str) -> None:
    assert str(SizeLimit.of(expr, most)).replace("3*m + n", "n + 3*m") == text


def test_a_limit_holds_at_some_sizes() -> None:
    limit = SizeLimit.of(floor_div(N, 2) * M, 10)
    assert limit.holds({"n": 5, "m": 5})
    assert not limit.holds({"n": 6, "m": 4})
    assert limit.holds({"n": 6})  # nothing is known of m
    assert SizeLimit.of(floor_div(N, M), 1).holds({"n": 5, "m": 0})  # where the model does not run
    assert not limit.is_certain
    assert not limit.is_bounded
    assert SizeLimit.of(BOUNDED * 2, 16).is_certain
    assert SizeLimit.of(BOUNDED * 2, 15).is_bounded
    assert SizeLimit.of(maximum(N, 300), 200).is_impossible
    assert SizeLimit.of(N * M, 5).implies(SizeLimit.of(N, 7))
    assert not SizeLimit.of(N, 5).implies(SizeLimit.of(N * M, 7))


def test_what_is_proven_of_some_sizes_is_not_proven_of_larger_ones() -> None:
    limit = SizeLimit.of(N * N, 100)
    found = Equivalence(PROVEN, conditions=("n >= 1", str(limit)), limits=(limit,))
    assert found.at([{"n": 2}, {"n": 30}]) is found
    assert not found.at([{"n": 20}, {"n": 30}]).proven
    assert "none of the sizes that were tried" in str(found.at([{"n": 20}]))
    kept = found.up_to(10)
    assert kept.is_proven
    assert (kept.conditions, kept.limits) == (("n >= 1",), ())
    assert "not at all sizes up to 11" in str(found.up_to(11))
    assert "n*n <= 100" in str(found.up_to(11))


CAST = "g (float[{}] x) => (y) {{ s = Shape (x) c = Cast <to = {}> (s) d = Cast <to = 7> (c) y = Expand (x, d) }}"


@pytest.mark.parametrize(
    ("dims", "dtype", "limits"),
    [("n", 1, ["n <= 16,777,216"]), ("n, 4", 6, []), ("n", 7, []), ("n", 11, []), ("8", 1, [])],
)
def test_the_headline_tells_up_to_which_sizes_a_model_is_proven(dims: str, dtype: int, limits: list[str]) -> None:
    made = model(CAST.format(dims, dtype))
    found = verify_rewrite(made, made)
    assert [*found.equivalence.limits] == limits
    reach = f" with {' and '.join(limits)}" if limits else ""
    assert found.proven().startswith(f"Proven bit for bit at every size{reach} (1 of 1 output)")


def test_many_limits_are_counted() -> None:
    limits = ("a <= 1", "b <= 2", "c <= 3")
    headline = EquivalenceSummary({"y": "bit for bit"}, limits=limits).headline("1 output equal", 1)
    assert (
        headline
        == "Proven bit for bit at every size within 3 limits that are told below (1 of 1 output), and run once."
    )


def test_limits_after_names_of_dims_are_a_clause_of_their_own() -> None:
    shown = EquivalenceSummary({"y": "bit for bit"}, limits=("n <= 1",), shared_dims=("one batch",))
    assert "at every size with one batch, where n <= 1 (1 of 1" in shown.headline("1 output equal", 1)


RANGED = """g (float[{}] x) => (int64[1] y) {{
    s = Shape (x) c = Cast <to = 6> (s) m = Mul (c, k) y = Cast <to = 7> (m) }}"""


@pytest.mark.parametrize(("most", "is_proven"), [(2047, True), (2048, False)])
def test_a_limit_must_hold_at_all_sizes_that_a_bundle_or_a_lowering_has(most: int, is_proven: bool) -> None:
    made = model(RANGED.format("n"), k=np.array([1 << 20], np.int32))
    found = check_equivalence(made, made)
    assert [*map(str, found.limits)] == ["n <= 2,047"]
    assert found.up_to(most).is_proven is is_proven


def wrong(times: int) -> tuple[Model, Model]:
    """Return a model that gives another number from so many on, as an int32 wraps around, and one that never does."""
    text = "s = Shape (x) c = Cast <to = 6> (s) m = Mul (c, k) e = Less (m, zero) w = Where (e, m, zero)"
    factor, zero = (1 << 31) // times + 1, np.array([0], np.int32)
    constants = {"k": np.array([factor], np.int32), "zero": zero}
    before = model(f"g (float[n] x) => (int32[1] y) {{ {text} y = Identity (w) }}", **constants)
    return before, model("g (float[n] x) => (int32[1] y) { y = Identity (zero) }", zero=zero)


@pytest.mark.parametrize("times", [4096, 50_000])
def test_runs_are_at_sizes_beyond_a_limit_too(times: int) -> None:
    before, after = wrong(times)
    found = check_equivalence(before, after)
    assert found.is_proven
    assert not all(limit.holds({"n": 2 * times}) for limit in found.limits)
    proof = verify_rewrite(before, after)
    assert not proof.passed
    assert f"the first at n={times}:" in proof.failures[0]


def test_a_model_that_turns_far_beyond_its_limit_is_tried_there() -> None:
    """Its limit is 255, from which on a product is rounded; it differs where another number is passed as well."""
    text = "g (float[n] x) => (int64[1] y) {{ c = Shape (x) {} }}"
    rounded = "m = Mul (c, h) i = Cast <to = 1> (m) j = Cast <to = 7> (i) e = Equal (j, m) d = Not (e) "
    turned = text.format(rounded + "g = Greater (c, many) w = And (d, g) k = Neg (c) y = Where (w, k, c)")
    constants = {"h": np.array([65537]), "many": np.array([300])}
    before, after = (model(each, **constants) for each in (turned, text.format("y = Identity (c)")))
    assert not verify_rewrite(before, after).passed


def test_what_is_not_followed_is_tried_where_it_wraps_around() -> None:
    before, after = wrong(301)
    assert not check_equivalence(before, after).proven
    proof = verify_rewrite(before, after, options=RewriteProofOptions(runs=3))
    assert not proof.passed
    assert "the first at n=301:" in proof.failures[0]


def test_a_limit_of_a_file_is_shown_by_its_report(tmp_path: Path) -> None:
    made = model(CAST.format("n", 1))
    onnx.save(made.proto, tmp_path / "m.onnx")
    shown = [
        block.text
        for block in verify_rewrite(tmp_path / "m.onnx", tmp_path / "m.onnx").blocks()
        if hasattr(block, "text")
    ]
    assert any(", for n >= 1, n <= 16,777,216: 1 bit for bit, of 1." in text for text in shown)
