from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphkit.verify.compare import Difference, compare_outputs


def difference(one: object, two: object) -> Difference:
    (found,) = compare_outputs({"y": np.asarray(one)}, {"y": np.asarray(two)})
    return found


def test_equal_bits_are_equal() -> None:
    found = difference([1.0, np.nan, np.inf], [1.0, np.nan, np.inf])
    assert (found.absolute, found.relative, found.problem) == (0.0, 0.0, "")


def test_the_largest_differences_are_told() -> None:
    found = difference([1.0, 100.0, 0.0], [1.5, 101.0, 0.0])
    assert found.absolute == 1.0
    assert found.relative == pytest.approx(0.5 / 1.5)


@pytest.mark.parametrize(
    ("one", "two", "problem"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "float64 [3, 2], expected float64 [2, 3]"),
        (np.zeros(2, np.float32), np.zeros(2), "float64 [2], expected float32 [2]"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "NaNs or infinities differ"),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf]), "NaNs or infinities differ"),
        (np.array(["a"]), np.array(["b"]), "values differ"),
    ],
)
def test_what_no_tolerance_covers_is_a_problem(one: np.ndarray, two: np.ndarray, problem: str) -> None:
    found = difference(one, two)
    assert found.problem == problem
    assert not found.within(1e9)


def test_an_output_that_the_original_lacks_is_a_problem() -> None:
    (found,) = compare_outputs({}, {"y": np.zeros(1)})
    assert found.problem == "the original has no such output"


def test_empty_outputs_are_equal() -> None:
    assert difference(np.zeros((2, 0)), np.zeros((2, 0))).within(0.0)


@given(hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32)), st.floats(0.5, 100))
def test_a_shift_is_seen_as_large_as_it_is(values: np.ndarray, shift: float) -> None:
    shifted = values.astype(np.float64) + shift
    found = difference(values.astype(np.float64), shifted)
    assert found.absolute == pytest.approx(shift, rel=1e-6)
    assert not found.within(0.0)
