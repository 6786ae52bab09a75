"""Expressions and constraints at many assignments at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.ops.preconditions import Related
from graphkit.shapes import Expr, Relation, ceil_div, const, maximum, minimum, symbol
from graphkit.shapes.constraints.node_constraints import Values

A, B, PAST = symbol("a"), symbol("b"), symbol("past")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
def test_many_dims_are_evaluated_as_one(a: int, b: int, past: int) -> None:
    exprs = [A * B + PAST - 3, (A * 3 + PAST) // 4, minimum(A, B + PAST), maximum(A * 2, B), ceil_div(A + PAST, B)]
    values = Values.of_all([{"a": a, "b": b, "past": past}] * 2)
    for expr in exprs:
        assert values.of(expr).tolist() == [expr.evaluate({"a": a, "b": b, "past": past})] * 2


def test_a_division_by_0_gives_0() -> None:
    values = Values.of_all([{"a": 3, "past": 0}, {"a": 3, "past": 2}])
    assert values.of(A // PAST).tolist() == [0, 1]


@pytest.mark.parametrize("expr", [A * A * A, A * (1 << 62) + B, A * (1 << 64), (A * A * A) // B, (A * A * A) % (B + 1)])
def test_numbers_of_more_than_64_bits_are_exact(expr: Expr) -> None:
    tried = [{"a": 3_000_000_019, "b": 7}, {"a": 2, "b": 5}]
    assert Values.of_all(tried).of(expr).tolist() == [expr.evaluate(one) for one in tried]


def test_sizes_of_more_than_64_bits_are_exact() -> None:
    assert Values.at({"a": 1 << 70}).of(A - 1).tolist() == [(1 << 70) - 1]


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (Relation.equal(A, B), [False, True, False]),
        (Relation.at_least(A, B), [False, True, True]),
        (Relation.at_most(A, B), [True, True, False]),
        (Relation.equal(A // PAST, const(0)), [True, False, True]),  # where past is 0, it says nothing
    ],
)
def test_a_relation_is_met_alone_as_in_a_precondition(relation: Relation, expected: list[bool]) -> None:
    values = Values.of_all([{"a": 1, "b": 2, "past": 2}, {"a": 2, "b": 2, "past": 1}, {"a": 3, "b": 2, "past": 0}])
    assert values.is_met(relation).tolist() == expected
    assert values.is_met(Related(relation, "", "")).tolist() == expected


def test_constants_have_a_value_at_each_assignment() -> None:
    assert np.array_equal(Values.of_all([{"a": 1}, {"a": 2}]).of(const(5)), [5, 5])
