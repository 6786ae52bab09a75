"""Golden files: texts that are compared exactly, and that `pytest --write-golden` writes anew."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphkit

__all__ = ["GOLDEN", "Golden", "check_golden", "normalised"]

GOLDEN = Path(__file__).parents[1] / "golden"
FLOAT = re.compile(r"(?<=[ \[])-?\d+\.\d+(?:e-?\d+)?(?=,?$)", re.MULTILINE)  # the last digits are the processor's
VERSION = re.compile(r'("(?:graphkit|version)": ")' + re.escape(graphkit.__version__) + '"')
Golden = Callable[[str, str], None]


def normalised(text: str, *folders: Path) -> str:
    """Return a JSON text without temporary folders, graphkit's version, and digits that differ by processor.

    Of a list it has the first two items, and the first of each further form, so that a person can read all of it.
    """
    for folder in folders:
        text = text.replace(str(folder), "TEMPORARY")
    text = json.dumps(_shortened(json.loads(text)), indent=2) + "\n"
    return FLOAT.sub(lambda number: repr(round(float(number[0]), 5)), VERSION.sub(r'\1VERSION"', text))


def _shortened(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _shortened(value) for name, value in plain.items()}
    if not isinstance(plain, list):
        return plain
    first = {_form(item): number for number, item in reversed([*enumerate(plain)])}
    kept = sorted({*range(min(2, len(plain))), *first.values()})
    more = [f"and {len(plain) - len(kept)} more"] if len(kept) < len(plain) else []
    return [*(_shortened(plain[number]) for number in kept), *more]


def _form(plain: Any) -> object:
    """Return what tells an item of a list from others: its names, and the types of their values."""
    if isinstance(plain, dict):
        return plain.get("kind"), *((name, type(value)) for name, value in plain.items())
    return type(plain)


def check_golden(name: str, text: str, *, writes: bool) -> None:
    """Compare a text with a golden file, or write the file."""
    path = GOLDEN / f"{name}.json"
    if writes:
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"tests/golden/{path.name} is missing: run pytest --write-golden and read what it wrote"
    hint = f"the JSON is not tests/golden/{path.name}: if that is meant, run pytest --write-golden and read the diff"
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines(), hint
