"""Which cases of a test are left to the slow suite."""

from __future__ import annotations

import pytest
from properties import leave_cases_to_the_slow_suite

NAMES = ("bert", "gpt2", "t5", "vit", "whisper")


def quick_cases(request: pytest.FixtureRequest, *which: object) -> list[str]:
    """Return the names of the cases of a test that the quick suite runs."""
    items = []
    for name in NAMES:
        item = pytest.Function.from_parent(request.node.parent, name=f"test[{name}]", callobj=lambda: None)
        item.callspec = type("CallSpec", (), {"id": name})()
        item.add_marker(pytest.mark.cases(*which))
        items.append(item)
    leave_cases_to_the_slow_suite(items)
    return [item.callspec.id for item in items if item.get_closest_marker("slow") is None]


def test_a_number_of_cases_is_spread_over_all(request: pytest.FixtureRequest) -> None:
    assert quick_cases(request, 1) == ["bert"]
    assert quick_cases(request, 2) == ["bert", "t5"]
    assert quick_cases(request, 5) == list(NAMES)


def test_cases_are_chosen_by_parts_of_their_names(request: pytest.FixtureRequest) -> None:
    assert quick_cases(request, "gpt", "whisper") == ["gpt2", "whisper"]


@pytest.mark.parametrize("which", [("llama",), ("gpt", "llama")])
def test_a_name_that_no_case_has_is_an_error(which: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.UsageError, match="no case has a name with 'llama'"):
        quick_cases(request, *which)
