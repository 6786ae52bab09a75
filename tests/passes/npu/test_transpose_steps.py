from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphkit.passes.npu.reduce_rank import TransposeStep, transpose_steps


def transposed(array: np.ndarray, steps: list[TransposeStep]) -> np.ndarray:
    for step in steps:
        array = array.reshape(step.dims).transpose(step.perm)
    return array


@pytest.mark.parametrize("dims", [(2, 3, 4, 5, 2), (2, 1, 3, 1, 2), (2, 0, 3, 2, 2)], ids=str)
def test_every_order_of_five_axes_is_made_of_four(dims: tuple[int, ...]) -> None:
    array = np.arange(np.prod(dims)).reshape(dims)
    for perm in itertools.permutations(range(5)):
        steps = transpose_steps(dims, perm, 4)
        assert steps is not None
        assert all(len(step.dims) <= 4 for step in steps)
        np.testing.assert_array_equal(transposed(array, steps).ravel(), array.transpose(perm).ravel())


def test_axes_that_stay_together_take_one_step() -> None:
    assert transpose_steps((2, 3, 4, 5, 6, 7), (0, 1, 3, 2, 4, 5), 4) == [TransposeStep((6, 4, 5, 42), (0, 2, 1, 3))]


def test_a_reversal_of_six_axes_is_made_of_four() -> None:
    steps = transpose_steps((2, 3, 2, 3, 2, 3), (5, 4, 3, 2, 1, 0), 4)
    assert steps is not None
    assert max(len(step.dims) for step in steps) == 4
    array = np.arange(216).reshape(2, 3, 2, 3, 2, 3)
    np.testing.assert_array_equal(transposed(array, steps).ravel(), array.T.ravel())


def test_seven_axes_that_all_move_apart_are_left() -> None:
    assert transpose_steps((2,) * 7, (6, 5, 4, 3, 2, 1, 0), 4) is None


def test_two_axes_give_only_rotations() -> None:
    assert transpose_steps((2, 3, 4), (2, 1, 0), 2) is None
    assert transpose_steps((2, 3, 4), (2, 0, 1), 2) == [TransposeStep((6, 4), (1, 0))]
