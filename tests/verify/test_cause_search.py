"""The search for a cause names what mends a difference, clearly and alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from graphkit.verify.cause_search import CLEAR, Cause, find_sole_cause, is_mended, largest_multiple, with_attributes


class Candidate:
    """A candidate whose calls are so far from the original's, in multiples of the tolerance."""

    def __init__(self, *apart: float) -> None:
        self.apart: Sequence[float] = apart

    def distances(self) -> Sequence[float]:
        return self.apart

    def cause(self, words: str, *apart: float) -> Cause:
        """Return a cause; without it, the calls are so far apart."""
        return Cause("weights", words, undo=partial(with_attributes, self, apart=apart))


def words(cause: Cause | None) -> str:
    return "" if cause is None else cause.text


@pytest.mark.parametrize(("before", "after", "is_named"), [
    ((50.0, 0.0), (0.5, 0.9), True),
    ((50.0, 0.0), (0.5, 1.1), False),  # another call is wrong
    ((1.2, 0.0), (0.9, 0.0), False),  # within the tolerance, and no clearer than chance
    ((1.2, 0.0), (1.2 / CLEAR, 0.0), True),
    ((1.2, 0.0), (1.3 / CLEAR, 0.0), False),
    ((math.inf, 0.0), (1.0, 0.0), True),  # it did not run
    ((2.0, 0.0), (math.inf, 0.0), False),
    ((0.9, 0.0), (0.0, 0.0), False),  # nothing is wrong with these calls
    ((0.0, 0.0), (0.0, 0.0), False),
])  # fmt: skip
def test_a_cause_is_named_where_undoing_it_clearly_mends_all_calls(
    before: tuple[float, ...], after: tuple[float, ...], is_named: bool
) -> None:
    candidate = Candidate(*before)
    found = find_sole_cause(candidate.distances, [candidate.cause("the fault", *after)])
    assert words(found) == ("the fault" if is_named else "")
    assert candidate.apart == before


def test_two_causes_that_mend_it_are_none() -> None:
    candidate = Candidate(50.0)
    causes = [candidate.cause("this", 0.1), candidate.cause("neither", 40.0), candidate.cause("that", 0.1)]
    assert find_sole_cause(candidate.distances, causes) is None
    assert words(find_sole_cause(candidate.distances, causes[:2])) == "this"


def test_a_later_round_is_tried_only_where_nothing_simpler_mends_it() -> None:
    candidate = Candidate(50.0)
    pair = [candidate.cause("both together", 0.0)]
    assert words(find_sole_cause(candidate.distances, [candidate.cause("one", 0.1)], pair)) == "one"
    assert words(find_sole_cause(candidate.distances, [candidate.cause("one", 9.0)], pair)) == "both together"
    assert (
        find_sole_cause(candidate.distances, [candidate.cause("one", 0.1), candidate.cause("two", 0.1)], pair) is None
    )


def test_what_is_undone_is_done_again_after_an_error() -> None:
    candidate = Candidate(50.0)

    def fail() -> None:
        with candidate.cause("", 0.0).undo():
            assert candidate.apart == (0.0,)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert candidate.apart == (50.0,)


@pytest.mark.parametrize(("apart", "allowed", "expected"), [
    (2.0, 0.5, 4.0),
    (0.0, 0.0, 0.0),
    (1e-9, 0.0, math.inf),
    (math.inf, 1.0, math.inf),
    (5.0, math.inf, 0.0),
    (math.inf, math.inf, 0.0),
    (np.array([0.0, 3.0, 1.0]), np.array([0.0, 1.0, 2.0]), 3.0),
    (np.zeros(0), np.zeros(0), 0.0),
])  # fmt: skip
def test_multiples_of_the_tolerance(apart: float | np.ndarray, allowed: float | np.ndarray, expected: float) -> None:
    assert largest_multiple(apart, allowed) == expected
    assert is_mended([largest_multiple(apart, allowed)]) == (expected <= 1)
