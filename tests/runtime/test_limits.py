from __future__ import annotations

import math
import os

import pytest

from graphkit import progress as limits_module
from graphkit.progress import Limits, machine_memory


@pytest.mark.parametrize(("load", "factor"), [(0.2, 1), (6, 6)])
def test_time_grows_with_the_weights_and_a_busy_machine_unless_it_is_given(
    load: float, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0), raising=False)
    assert Limits().time(0) == 60 * factor
    assert Limits().time(2_000_000_000) == 120 * factor
    assert Limits(seconds=5).time(2_000_000_000) == 5


def test_inputs_are_as_large_as_can_be_made_in_the_time_of_a_run() -> None:
    assert Limits().inputs() == Limits(seconds=60).inputs() == 1 << 30
    assert Limits(seconds=0.5).inputs() == 16 << 20


def test_a_search_takes_as_long_as_it_takes_unless_runs_are_limited() -> None:
    assert Limits().search() == math.inf
    assert Limits(seconds=5).search() == 20


def test_memory_is_a_share_of_the_machine_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "machine_memory", lambda: 64 << 30)
    assert (Limits().bytes(), Limits().outputs()) == (16 << 30, 1 << 30)
    monkeypatch.setattr(limits_module, "machine_memory", lambda: 0)  # unknown
    assert (Limits().bytes(), Limits().outputs()) == (1 << 30, 256 << 20)
    assert Limits(memory=5).bytes() == 5


def test_the_machine_has_memory() -> None:
    psutil = pytest.importorskip("psutil")
    assert 0 < machine_memory() <= psutil.virtual_memory().total
