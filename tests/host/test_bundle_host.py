"""A bundle in Python: its state, what it refuses, and that nothing moves or leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graphkit.host.bundle import Bundle

BundleOf = Callable[[str], Path]


@pytest.fixture
def opened(bundle_of: BundleOf) -> Callable[[str], Bundle]:
    return lambda name: Bundle(bundle_of(name), threads=1)


Opened = Callable[[str], Bundle]


@pytest.mark.parametrize("name", ["causal", "window"])
def test_logits_stay_as_they_are_when_the_next_step_runs(name: str, opened: Opened) -> None:
    bundle = opened(name)
    given = [bundle.prefill([[1, 2], [3, 4]])]
    kept = [given[0].copy()]
    for token in (5, 6, 7):
        given.append(bundle.step([token, token]))
        kept.append(given[-1].copy())
    np.testing.assert_array_equal(given[0], kept[0])
    np.testing.assert_array_equal(np.stack(given[1:]), np.stack(kept[1:]))
