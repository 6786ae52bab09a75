from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphkit.verify.comparator import Difference, compare_output, compare_outputs, distance_of_spread, element_counts


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
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "numbers instead of NaN"),
        (np.array([1.0, 2.0, np.inf]), np.array([np.inf, np.nan, 2.0]), "NaN instead of numbers"),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf]), "minus infinity instead of infinity"),
        (np.array([1.0, 1e308]), np.array([1.0, -1e308]), "numbers too far apart for float64"),
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


@pytest.mark.parametrize(
    ("one", "two", "problem"),
    [
        ([np.ones(2)], [np.ones(2), np.ones(2)], "2 members, expected 1"),
        ([np.ones(2), np.ones(2)], [np.ones(2), np.ones(3)], "member 1: float64 [3], expected float64 [2]"),
        ({"a": 0.5}, {"b": 0.5}, "keys differ"),
        (None, np.ones(2), "ndarray, expected no value"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "values differ"),
        (["a"], ["b"], "member 0: values differ"),
    ],
)
def test_what_is_no_tensor_is_compared_member_by_member(one: object, two: object, problem: str) -> None:
    (found,) = compare_outputs({"y": one}, {"y": two})
    assert (found.problem, found.within(1e9)) == (problem, False)
    (same,) = compare_outputs({"y": one}, {"y": copy.deepcopy(one)})
    assert (same.absolute, same.relative, same.exact) == (0.0, 0.0, True)


def test_the_largest_difference_of_members_counts() -> None:
    (found,) = compare_outputs({"y": [{"a": 1.0}, {"a": 2.0}]}, {"y": [{"a": 1.5}, {"a": 2.25}]})
    assert (found.absolute, found.relative) == (0.5, pytest.approx(1 / 3))


def test_zeros_of_either_sign_are_equal_but_not_to_the_last_bit() -> None:
    found = difference([0.0], [-0.0])
    assert (found.within(0.0), found.exact) == (True, False)


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (np.array([1.0, np.nan, np.inf]), (3, 1)),
        (np.array(["a"], object), (1, 1)),
        ([np.ones(2), {"a": 1.0}], (3, 3)),
        (None, (1, 1)),
    ],
)
def test_elements_are_counted(value: object, counts: tuple[int, int]) -> None:
    assert element_counts(value) == counts


def test_empty_outputs_are_equal() -> None:
    assert difference(np.zeros((2, 0)), np.zeros((2, 0))).within(0.0)


@given(hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32)), st.floats(0.5, 100))
def test_a_shift_is_seen_as_large_as_it_is(values: np.ndarray, shift: float) -> None:
    shifted = values.astype(np.float64) + shift
    found = difference(values.astype(np.float64), shifted)
    assert found.absolute == pytest.approx(shift, rel=1e-6)
    assert not found.within(0.0)


def test_integers_that_float64_cannot_tell_apart_differ() -> None:
    found = difference(np.array([2**53]), np.array([2**53 + 1]))
    assert (found.absolute, found.within(0.0)) == (1.0, False)


def test_another_width_of_floats_is_compared_where_that_is_allowed() -> None:
    one, two = np.array([0.5], np.float16), np.array([0.5], np.float32)
    assert compare_output(one, two).problem == "float32 [1], expected float16 [1]"
    assert compare_output(one, two, any_width=True).absolute == 0
    assert compare_output(one, np.array([1]), any_width=True).problem == "int64 [1], expected float16 [1]"


def test_below_the_floor_numbers_stand_for_minus_infinity() -> None:
    one, two = np.array([1.0, -1e9]), np.array([1.0, -np.inf])
    assert compare_output(one, two).problem == "minus infinity instead of numbers"
    assert compare_output(one, two, floor=-1e8).absolute == 0
    assert compare_output(one, -one, floor=-1e8).absolute > 1e8


def test_nan_at_the_same_places_leaves_the_others_to_be_compared() -> None:
    one, two = np.array([np.nan, 1.0, 9.0]), np.array([np.nan, 1.0, 9.5])
    assert distance_of_spread(one, two) == 0.5 / 4
    assert distance_of_spread(one, np.array([1.0, 1.0, 9.0])) == np.inf


def test_numbers_that_stand_for_infinity_widen_no_tolerance() -> None:
    one = np.array([1.0, 2.0, np.finfo(np.float32).min])
    two = one + np.array([0.0, 0.25, 0.0])
    assert (distance_of_spread(one, two), compare_output(one, two).scaled) == (0.25, 0.125)


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint32, np.bool_])
def test_integers_that_differ_are_within_no_part_of_a_magnitude(dtype: type) -> None:
    off = difference(np.array([0, 1], dtype), np.array([1, 1], dtype))
    assert not off.within(0.9, of_magnitude=True)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers_of_8_bits_are_measured_by_their_range(dtype: type) -> None:
    off = difference(np.array([0, 1], dtype), np.array([1, 1], dtype))
    assert off.scaled == 1 / 255
