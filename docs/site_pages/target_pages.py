"""A page for each target, as `graphkit targets` shows it: every fact with its source."""

from __future__ import annotations

import re

from graphkit.analysis.target_facts import target_facts, targets
from graphkit.targets import NAMES, load_target
from site_pages.markdown import contents

__all__ = ["pages"]

CELL = re.compile(rf"^\| `({'|'.join(map(re.escape, NAMES))})` \|", re.M)


def pages() -> dict[str, str]:
    """Return the page of each target, and the table of all."""
    made = {f"{name}.md": _code(target_facts(load_target(name)).to_markdown()) for name in NAMES}
    index = CELL.sub(r"| [`\1`](\1.md) |", _code(targets().to_markdown()))
    return made | {"index.md": index + contents(NAMES)}


def _code(text: str) -> str:
    """Return Markdown of a result, whose backticks are escaped, with what is between them as code."""
    return text.replace("\\`", "`")
