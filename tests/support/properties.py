"""Random examples, and cases: a few of them in the quick suite, all of them in the slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

__all__ = ["examples", "how_many", "leave_cases_to_the_slow_suite", "run_all_examples"]

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


def leave_cases_to_the_slow_suite(items: list[pytest.Item]) -> None:
    """Mark as slow the cases of a test that its `@pytest.mark.cases` does not choose for the quick suite.

    Where cases are asked for by name, these run.
    """
    if items and any("[" in argument for argument in items[0].config.args):
        return
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.get_closest_marker("cases")
            and not item.get_closest_marker("slow")
        ):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        first, *more = cases[0].get_closest_marker("cases").args  # type: ignore[union-attr]
        if isinstance(first, int):
            chosen = {at * len(cases) // first for at in range(first)}
            quick = [case for at, case in enumerate(cases) if at in chosen]
        else:
            quick = [case for case in cases if any(text in case.callspec.id for text in (first, *more))]
            stale = [text for text in (first, *more) if not any(text in case.callspec.id for case in cases)]
            if len(cases) > 1 and stale:
                raise pytest.UsageError(f"{cases[0].nodeid}: no case has a name with {', '.join(map(repr, stale))}")
        for case in cases if len(cases) > 1 else ():
            if case not in quick:
                case.add_marker("slow")
