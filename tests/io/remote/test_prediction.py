from __future__ import annotations

import itertools
import random

import pytest

from graphkit.io.remote.remote_file import predict_offsets
from graphkit.io.remote.server import join_spans


def offsets(steps: list[int]) -> list[int]:
    return list(itertools.accumulate(steps, initial=100))


def test_a_layer_that_repeats_is_predicted() -> None:
    layer = [10_000, 10_000, 40_000, 500]
    known = offsets(layer * 3)
    expected = offsets(layer * 5)
    assert [at for at, _ in predict_offsets(known, 10**9, 8)] == expected[len(known) :]


def test_names_that_are_longer_change_nothing() -> None:
    known = offsets([10_000, 40_000] * 3 + [10_007, 40_008])
    assert [at for at, _ in predict_offsets(known, 10**9, 2)] == [known[-1] + 10_007, known[-1] + 50_015]


def test_the_longest_repetition_counts() -> None:
    """Three matrices of one size are a period of one step, but the layer is the better one."""
    layer = [10_000, 10_000, 10_000, 70_000]
    known = offsets([*layer * 2, *layer[:3]])
    assert [at for at, _ in predict_offsets(known, 10**9, 1)] == [known[-1] + 70_000]


@pytest.mark.parametrize("known", [[], [5], [5, 10], [100, 2000, 70_000, 90_000, 900_000]])
def test_what_does_not_repeat_is_not_predicted(known: list[int]) -> None:
    assert predict_offsets(known, 10**9, 10) == []


def test_the_end_of_the_file_ends_it() -> None:
    assert [at for at, _ in predict_offsets(offsets([1000] * 4), 6500, 10)] == [5100, 6100]


def test_the_number_is_that_of_a_known_one_that_is_alike() -> None:
    known = offsets([10_000, 500] * 4)
    for at, number in predict_offsets(known, 10**9, 6):
        assert (known[number + 1] - known[number]) == (10_000 if (at - known[-1]) % 10_500 == 0 else 500)


def test_spans_are_joined() -> None:
    random.seed(1)
    for _ in range(200):
        spans = [(start, start + random.randrange(6)) for start in random.choices(range(60), k=8)]
        found = join_spans(spans)
        assert {at for span in found for at in range(*span)} == {at for span in spans for at in range(*span)}
        assert all(one[1] < two[0] for one, two in itertools.pairwise(found))
