"""Tolerances: what counts as equal for logits of a lowering, column by column, and for those of a bundle."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from bundles import decoder
from rewriting import model_of

from graphkit.model import Model
from graphkit.verify.comparator import BundleTolerance, ColumnTolerance, compare_output, computes_in_half

RNG = np.random.default_rng(3)
STEPS = [RNG.standard_normal(8).astype(np.float32) for _ in range(5)]
NEVER = np.finfo(np.float32).min


def of(steps: list[np.ndarray], *, is_half: bool = False) -> ColumnTolerance:
    allowance = ColumnTolerance(1e-4, is_half=is_half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allowance.learn(steps)
    return allowance


def with_column(steps: list[np.ndarray], column: object, dtype: type = np.float32) -> list[np.ndarray]:
    columns = np.broadcast_to(np.asarray(column, np.float32), len(steps))
    return [np.append(step, last).astype(dtype) for step, last in zip(steps, columns, strict=True)]


def rolled(step: np.ndarray, by: int = 1) -> np.ndarray:
    return np.append(np.roll(step[:-1], by), step[-1]).astype(step.dtype)


@pytest.mark.parametrize("column", [NEVER, -np.inf, -1e9, 1e30, [1e6, -1e6, 1e6, 2e6, 0]])
def test_a_large_column_allows_nothing_to_the_others(column: object) -> None:
    steps = with_column(STEPS, column)
    allowance = of(steps)
    assert not any(allowance.differ(step, step) for step in steps)
    assert all(allowance.differ(rolled(step), step) for step in steps)


def test_nor_does_it_in_float16() -> None:
    steps = with_column(STEPS, -65504, np.float16)
    allowance = of(steps, is_half=True)
    assert not any(allowance.differ(step, step) for step in steps)
    assert all(allowance.differ(rolled(step), step) for step in steps)


@pytest.mark.parametrize("column", [NEVER, 1e30])
def test_nor_does_it_in_the_output_of_an_encoder(column: float) -> None:
    hidden = RNG.standard_normal((1, 4, 8)).astype(np.float32)
    hidden[..., 3] = column
    wrong = hidden.copy()
    wrong[0, 1, 2] += 0.01
    allowance = ColumnTolerance(1e-4, is_half=False)
    assert not allowance.differ(hidden, hidden)
    assert allowance.differ(wrong, hidden)


def test_a_bias_allows_nothing_to_its_own_column() -> None:
    steps = [step + np.float32(50) for step in STEPS]
    assert of(steps).differ(steps[0] + np.float32(1e-3), steps[0])


def test_the_last_digits_of_a_large_number_may_differ() -> None:
    steps = with_column(STEPS, -1e9)
    near = steps[0].copy()
    near[-1] = np.nextafter(near[-1], np.float32(0))
    assert not of(steps).differ(near, steps[0])


def test_outputs_that_vary_far_may_differ_further() -> None:
    steps = [1000 * step for step in STEPS]
    assert not of(steps).differ(steps[0] + np.float32(0.01), steps[0])
    assert of(STEPS).differ(STEPS[0] + np.float32(0.01), STEPS[0])


@pytest.mark.parametrize("found", [np.full(8, np.nan, np.float32), np.zeros(7, np.float32), np.full(8, np.inf)])
def test_numbers_that_are_none_and_other_dims_differ(found: np.ndarray) -> None:
    assert of(STEPS).differ(found, STEPS[0])
    assert compare_output(STEPS[0], found, any_width=True).absolute == np.inf


def test_outputs_without_elements_agree() -> None:
    empty = np.zeros((1, 0, 8), np.float32)
    assert not ColumnTolerance(1e-4, is_half=False).differ(empty, empty)
    assert not ColumnTolerance(1e-4, is_half=False).differ(np.zeros((3, 0)), np.zeros((3, 0)))
    assert compare_output(empty, empty).absolute == 0


def test_tokens_are_a_tie_only_where_their_own_logits_are_near() -> None:
    steps = [np.array([1.0, 1.00005, 0.5, 1e6 * (-1) ** n], np.float32) for n in range(4)]
    allowance = of(steps)
    assert allowance.is_tie(steps[0], 1, 0)
    assert not allowance.is_tie(steps[0], 1, 2)


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("g (float[n] x) => (float[n] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }", True),
        ("g (float16[n] x) => (float16[n] y) { y = Neg (x) }", True),
        ("g (float16[n] x) => (float[n] y) { h = Identity (x) f = Cast <to = 1> (h) y = Neg (f) }", False),
        ("g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> { f = Cast <to = 1> (w) y = Mul (x, f) }", False),
        (
            "g (float[2] x) => (float[2] y, float16[2] z) <float[2] w = {1, 2}> { z = Cast <to = 10> (w) y = Neg (x) }",
            False,
        ),
    ],
)
def test_a_model_that_rounds_to_float16_on_its_way_is_compared_as_one(text: str, rounds: bool) -> None:
    assert computes_in_half(model_of(text)) is rounds


def test_an_original_that_gives_nan_proves_nothing() -> None:
    steps = [*STEPS[:-1], np.append(STEPS[-1][:-1], np.float32(np.nan))]
    assert of(STEPS).differ(steps[-1], steps[-1])


@pytest.mark.parametrize(
    ("apart", "plain", "fused", "is_raised"),
    [
        (0.0, 1e-5, 1e-4, False),
        (4e-6, 1e-5, 1e-4, False),
        (3e-5, 6.3e-5, 1e-4, True),
        (9.2e-5, 1.9e-4, 1.9e-4, True),
        (1.0, 2.1e-4, 2.1e-4, True),  # a model that the runtime breaks is no licence
    ],
)
def test_it_follows_the_levels_within_bounds(apart: float, plain: float, fused: float, is_raised: bool) -> None:
    model = Model.from_proto(decoder())
    allowed = BundleTolerance.of([model], apart, 1e-5, exact=False)
    assert (allowed.plain, allowed.near, allowed.fused) == (plain, plain, fused)
    assert allowed.is_raised is is_raised
    assert BundleTolerance.of([model], apart, 1e-5, exact=True).plain == 0
