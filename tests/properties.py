"""Properties of random examples: a few of them in the quick suite, all of them in the slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

__all__ = ["examples", "run_all_examples"]

Test = TypeVar("Test", bound=Callable[..., Any])
_runs_all = False


def run_all_examples() -> None:
    """Let tests that are imported from now on run all of their examples."""
    global _runs_all
    _runs_all = True


def examples(quick: int, all_: int, **more: Any) -> Callable[[Test], Test]:
    """Return a decorator that gives a property its number of random examples, in the quick suite and in the slow one.

    Args:
        quick: How many the quick suite runs.
        all_: How many the slow one runs, which repeats the property for them.
        more: Other settings of Hypothesis.
    """

    def decorate(test: Test) -> Test:
        counted = settings(max_examples=all_ if _runs_all else quick, deadline=None, **more)(test)
        marked: Test = pytest.mark.examples(counted)
        return marked

    return decorate
