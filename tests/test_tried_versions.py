"""The versions of Python and of libraries that a release names are those that were tried."""

from __future__ import annotations

import re
from pathlib import Path

from old_onnxruntime import REASONS

ROOT = Path(__file__).parents[1]


def test_the_versions_of_python_that_are_named_are_those_that_were_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = [int(minor) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)]
    oldest = int(re.findall(r'^requires-python = ">=3\.(\d+)"$', text, re.M)[0])
    assert named == list(range(oldest, max(named) + 1))
    table = (ROOT / "docs" / "maintainers" / "versions.md").read_text(encoding="utf-8")
    assert sorted({int(minor) for minor in re.findall(r"^\| 3\.(\d+)", table, re.M)}) == named


def test_the_lower_bounds_of_the_table_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "maintainers" / "versions.md").read_text(encoding="utf-8")
    bounds = re.findall(r"^- (\w+) ([\d.]+):", table, re.M)
    assert len(bounds) >= 3
    assert [f'"{name}>={version}"' for name, version in bounds if f'"{name}>={version}"' not in text] == []


def test_the_tests_that_an_old_onnxruntime_skips_exist() -> None:
    for beginning in REASONS:
        file, _, name = beginning.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")
