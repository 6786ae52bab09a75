"""Properties of random examples: a few of them in the quick suite, all of them in the slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

__all__ = ["examples", "how_many", "run_all_examples"]

Test = TypeVar("Test", bound=Callable[..., Any])
_runs_all = False


def run_all_examples() -> None:
    """Let tests that are imported from now on run all of their examples."""
    global _runs_all
    _runs_all = True


def how_many(quick: int, all_: int) -> int:
    """Return how many random examples a test takes that makes its own, and is marked with `pytest.mark.examples`."""
    return all_ if _runs_all else quick


def examples(quick: int, all_: int, **more: Any) -> Callable[[Test], Test]:
    """Return a decorator that gives a property its number of random examples, in the quick suite and in the slow one.

    Args:
        quick: How many the quick suite runs.
        all_: How many the slow one runs, which repeats the property for them.
        more: Other settings of Hypothesis.
    """

    def decorate(test: Test) -> Test:
        counted = settings(max_examples=how_many(quick, all_), deadline=None, **more)(test)
        marked: Test = pytest.mark.examples(counted)
        return marked

    return decorate
