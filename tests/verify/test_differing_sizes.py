"""Sizes at which the terms of two models differ first: a fault at one size is found there."""

from __future__ import annotations

import pytest
from rewriting import model_of

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.shapes import Expr, const, symbol
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.verify import run_sizes, verify_rewrite

N = symbol("N", 1)
WHOLE = model_of("g (float[M, N] x) => (float[M] y) { y = ReduceSum <keepdims = 0> (x, i1) }", i1=[1])


def wrong_at(size: int) -> Model:
    """Return a model that leaves out the last column where there are so many: min(|N - size|, 1) is 0 there alone."""
    return model_of(
        "g (float[M, N] x) => (float[M] y) { n = Shape <start = 1> (x) o = Neg (n) a = Add (n, under) "
        "b = Add (o, over) c = Max (a, b, i0) d = Min (c, i1) e = Add (n, d) end = Add (e, minus) "
        "z = Slice (x, i0, end, i1) y = ReduceSum <keepdims = 0> (z, i1) }",
        i0=[0], i1=[1], minus=[-1], under=[-size], over=[size],
    )  # fmt: skip


@pytest.mark.cases("23")
@pytest.mark.parametrize("size", [37, 23, 101])
def test_a_fault_at_one_size_is_found(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = verify_rewrite(WHOLE, wrong_at(size))
    assert not proof.passed
    assert {run.dims["N"] for run in proof.runs if run.failure} == {size}
    monkeypatch.setattr(run_sizes, "differing_sizes", lambda *_: iter(()))
    assert verify_rewrite(WHOLE, wrong_at(size)).passed


def test_terms_that_differ_say_by_which_expressions() -> None:
    (left, right), *others = check_equivalence(WHOLE, wrong_at(37)).differing
    assert not others
    assert str(left) == "N"
    assert [size for size in range(1, 60) if left.evaluate({"N": size}) != right.evaluate({"N": size})] == [37]
    assert not check_equivalence(WHOLE, WHOLE).differing


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((N // 41, const(0)), [{"M": 2, "N": 41}]),
        ((N, N + 1), []),  # at all sizes: the usual runs are enough
        ((N // 5000, const(0)), [{"M": 2, "N": 5000}]),  # past the sizes of which each one is tried
        ((N // (1 << 27), const(0)), []),  # past the largest one that is
        ((symbol("?0"), const(0)), []),
    ],
)
def test_sizes_are_the_least(pair: tuple[Expr, Expr], expected: list[dict[str, int]]) -> None:
    found = list(run_sizes.differing_sizes([pair], legal_sizes(WHOLE), [{"M": 2, "N": 5}]))
    assert found == expected
