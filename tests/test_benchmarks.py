"""What the scripts of benchmarks/ share."""

from __future__ import annotations

import measure


def test_the_versions_above_a_table_are_those_of_packages_that_are_installed() -> None:
    assert measure.environment().count(", ") >= len(measure.PACKAGES)
