"""Golden files: texts that are compared exactly, and that `pytest --write-golden` writes anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import graphkit

__all__ = ["GOLDEN", "Golden", "check_golden", "normalised"]

GOLDEN = Path(__file__).parents[1] / "golden"
FLOAT = re.compile(r"(?<=[ \[])-?\d+\.\d+(?:e-?\d+)?(?=,?$)", re.MULTILINE)  # the last digits are the processor's
VERSION = re.compile(r'("(?:graphkit|version)": ")' + re.escape(graphkit.__version__) + '"')
Golden = Callable[[str, str], None]


def normalised(text: str, *folders: Path) -> str:
    """Return a JSON text without temporary folders, graphkit's version, and digits that differ by processor."""
    for folder in folders:
        text = text.replace(str(folder), "TEMPORARY")
    return FLOAT.sub(lambda number: repr(round(float(number[0]), 5)), VERSION.sub(r'\1VERSION"', text))


def check_golden(name: str, text: str, *, writes: bool) -> None:
    """Compare a text with a golden file, or write the file."""
    path = GOLDEN / f"{name}.json"
    if writes:
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"tests/golden/{path.name} is missing: run pytest --write-golden and read what it wrote"
    hint = f"the JSON is not tests/golden/{path.name}: if that is meant, run pytest --write-golden and read the diff"
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines(), hint
